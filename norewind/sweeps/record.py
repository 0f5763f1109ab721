"""Records: everything needed to repeat each run of a study, and its results, as one line of JSON per run.

The results include the learning curve of the run.
"""

import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import filelock
import numpy as np

import norewind
from norewind.scoring.metrics import mean_of_last_part
from norewind.storage.files import write_atomically
from norewind.training.registry import AUTO, AUTO_WINDOW, parse_method

Record = dict[str, Any]

# All records of a study are in this file of its folder, sorted by name.
RECORDS = "records.jsonl"


def read_records(folder: Path) -> dict[str, Record]:
    """Read the records of a study.

    Args:
        folder: the folder of the study, which may not exist yet.

    Returns:
        The records by name. A line that is not a record is reported on standard error and ignored.
    """
    path, records = folder / RECORDS, {}
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], 1):
        try:
            record = json.loads(line)
            records[record.pop("name")] = record
        except (ValueError, RecursionError, TypeError, AttributeError, KeyError):
            print(f"{path}: line {number} is not a record and is ignored.", file=sys.stderr)
    return records


def write_record(folder: Path, name: str, record: Record) -> None:
    """Add a record to a study, or replace the record of the same name. This is safe from several processes at a time.

    Args:
        folder: the folder of the study, which is created if it does not exist.
        name: the name of the run.
        record: the settings and results of the run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder / f"{RECORDS}.lock"):
        records = {**read_records(folder), name: record}
        lines = [json.dumps({"name": name, **records[name]}) + "\n" for name in sorted(records)]
        write_atomically(folder / RECORDS, "".join(lines).encode())


def versions() -> dict[str, str]:
    """Return the versions of norewind, JAX and Python."""
    python = platform.python_version()
    return {"norewind": norewind.__version__, "commit": _commit(), "jax": version("jax"), "python": python}


def _commit() -> str:
    """Return the commit of the checkout that the package runs from, with a + if files have changed."""
    folder = Path(norewind.__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # An installed package may be inside another repository, which does not track this file.
        git("ls-files", "--error-unmatch", norewind.__file__)
        changed = git("status", "--porcelain", "--untracked-files=no", str(folder))
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def group_by(key: Callable[[Any], Any], items: Iterable[Any]) -> dict[Any, list[Any]]:
    """Group items by a key, in the order of first appearance.

    Args:
        key: a function from an item to its key.
        items: the items.

    >>> group_by(len, ["a", "bc", "d"])
    {1: ['a', 'd'], 2: ['bc']}
    """
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def interval_ends(record: Record) -> np.ndarray:
    """Return the numbers of samples at which the intervals of a curve end: at the end of a window, and of the run.

    Args:
        record: the record of a run.

    >>> interval_ends({"every": 10, "curve": [0.3, 0.2, 0.1], "samples": 25}).tolist()
    [10, 20, 25]
    >>> interval_ends({"every": 10, "curve": [0.3, 0.2, 0.1], "samples": 24, "settings": {"method": "bptt:4"}}).tolist()
    [12, 20, 24]
    >>> auto = {"every": 40, "curve": [2.0, 1.0], "samples": 80, "settings": {"method": "auto"}}
    >>> interval_ends({**auto, "unit": "bits"}).tolist(), interval_ends({**auto, "unit": "squared error"}).tolist()
    ([48, 80], [40, 80])
    """
    window = window_of(record)
    multiples = record["every"] * np.arange(1, record["samples"] // record["every"] + 1)
    ends = np.unique(np.append(-(-multiples // window) * window, record["samples"]))
    return ends[: len(record["curve"])]


def window_of(record: Record) -> int:
    """Return the number of samples per update. (The default method has windows only for symbols.)"""
    if "window" in record:
        return record["window"]
    settings = record.get("settings", {"method": AUTO})
    if settings["method"] != AUTO:
        return parse_method(settings["method"]).window
    return AUTO_WINDOW if record.get("unit") == "bits" and settings.get("loss") != "classes" else 1


def loss_curve(record: Record, entry: str = "curve") -> np.ndarray:
    """Return the mean loss of every interval; NaN where it is unknown.

    Args:
        record: the record of a run.
        entry: the curve to return, such as "baseline" for the loss of the baseline.
    """
    return np.array([np.nan if value is None else value for value in record[entry]], float)


def final_loss(record: Record, share: float, entry: str = "curve") -> float:
    """Return the mean over the last part of a curve; NaN if it is unknown.

    Args:
        record: the record of a run.
        share: the part of the curve, as a fraction; at least the last interval is used.
        entry: the curve, such as "baseline" for the loss of the baseline.

    >>> final_loss({"every": 10, "curve": [9.0, 1.0, 2.0, 3.0], "samples": 40}, 0.5)
    2.5
    """
    if not record.get(entry):
        return float("nan")
    return mean_of_last_part(interval_ends(record), loss_curve(record, entry), share)[1]
