"""The kinds of runs that tools/storm.py kills: their streams, and the options of `norewind train`."""

import json
from typing import NamedTuple

import numpy as np

from norewind.tasks import anbn

COMMON = ("--predictions", "file", "--metrics-every", 500, "--checkpoint-every", 1_000, "--keep", 2, "--quiet")
OFTEN = (*COMMON, "--metrics-every", 100, "--checkpoint-every", 100)
UORO = ("--cell", "rnn", "--hidden", 4)
# A pipe has no name from which the format could be known.
CSV = ("--format", "csv")
LEVEL = ("--inputs", "level", "--targets", "level")
LIGHT = ("--inputs", "level", "--targets", "light", "--loss", "classes", "--horizon", 0)
KEYS = ("--key", "key", *LEVEL, "--cell", "rnn", "--hidden", 4)
# Of the rows of a service, this many are learned from before it starts.
BEFORE_SERVICE = 200


class Kind(NamedTuple):
    """A kind of run.

    Attributes:
        stream: the kind of its stream: text, csv or jsonl.
        options: the options of `norewind train`.
        share: the length of its stream, as a share of the longest.
        pipe: whether the stream may come through a pipe.
        shards: the number of processes that train it, in addition to their parent; 0 if it has only one process.
        served: whether the rows are sent to a service.
        most: the most kills of one run. Fewer where a start takes long.
    """

    stream: str
    options: tuple
    share: float = 1.0
    pipe: bool = True
    shards: int = 0
    served: bool = False
    most: int = 14


KINDS = {
    "bytes": Kind("text", ("--format", "bytes", "--method", "uoro", *UORO, *COMMON)),
    "windows": Kind("text", ("--format", "text", "--method", "uoro:window=3", *UORO, *COMMON)),
    "rows": Kind("csv", (*CSV, *LEVEL, "--horizon", 6, "--method", "uoro:window=4", *UORO, *COMMON)),
    "auto on rows": Kind("csv", (*CSV, *LEVEL, "--horizon", 3, *COMMON), 0.2),
    "auto on text": Kind("text", ("--format", "text", "--budget", 10, *COMMON, "--checkpoint-every", 5_000)),
    "classes": Kind("csv", (*CSV, *LIGHT, *COMMON), 0.2),
    "fleet": Kind("csv", (*CSV, *KEYS, "--method", "uoro", *COMMON), 0.2),
    "shards": Kind("csv", (*CSV, *KEYS, "--method", "uoro", "--shards", 2, *COMMON), 0.2, pipe=False, shards=2, most=4),
    "service": Kind("jsonl", (*LIGHT, "--method", "snap1", *UORO, *OFTEN), 0.05, pipe=False, served=True, most=7),
}


def stream(kind: str, samples: int) -> bytes:
    """Return a stream of one kind.

    Args:
        kind: text, csv or jsonl.
        samples: the number of symbols or rows.
    """
    if kind == "text":
        text = anbn()
        return text.decode(next(text.chunks(0, samples))).encode()
    random = np.random.default_rng(0)
    levels = (random.normal(size=samples).cumsum() % 10).round(2).tolist()
    keys = random.integers(0, 40, samples).tolist()
    rows = [
        {"key": f"k{key}", "level": level, "light": "red" if level < 4 else "green"}
        for key, level in zip(keys, levels, strict=True)
    ]
    if kind == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    return ("key,level,light\n" + "".join(",".join(map(str, row.values())) + "\n" for row in rows)).encode()
