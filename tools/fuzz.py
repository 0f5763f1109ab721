"""`make fuzz`: random and damaged input to readers, settings, logs, compressed files and checkpoints, for some minutes.

Every input must be accepted or rejected with an error of norewind; anything else ends the fuzzing.
"""

import argparse
import csv
import hashlib
import io
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from norewind.forecasting.compress import FILE_FORMAT, MAGIC, CodeError, _header
from norewind.storage.checkpoint import CheckpointError, _write, read
from norewind.streams import ByteStream, CharacterStream, ReadOptions, RowStream, Source, StreamError
from norewind.streams.source import BLOCK_BYTES
from norewind.sweeps.record import versions, write_record
from norewind.training.checkpoint_schema import check_entries
from norewind.training.log import read_log
from norewind.training.settings import Settings, SettingsError, field_kinds, read_toml, write_toml

OUT = Path(__file__).parent.parent / "results/fuzz"
PIECES = [
    b"",
    b"a,b\n",
    b"1,2\n",
    b'"',
    b"\xff",
    b"\r\n",
    b" ",
    b",",
    b"\n",
    b"nan",
    b"1e999",
    b'{"a": 1}\n',
    b"{",
    b"[" * 99,
    b'{"loss": 1}\n',
    b"\xef\xbb\xbf",
    b"9" * 5_000,
    b"[" * 5_000,
    b'"\\ud800"',
    b"seed = ",
]
# Of all code points: JSON and arguments may contain halves of characters ("\ud800"), which UTF-8 cannot hold.
texts = st.text(st.one_of(st.characters(codec="utf-8"), st.characters(categories=["Cs"])), max_size=5)
numbers = st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), texts)
values = st.recursive(numbers, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner))
FIELDS = [
    "eco",
    "",
    "true",
    "2024-05-01T10:00",
    "1e99",
    "NaN",
    "«",
    "[1]",
    "a\nb",
    [],
    {"x": 1},
    [None, {"0": 2}],
    10**400,
]
odd = st.one_of(st.sampled_from(FIELDS), st.integers(), st.floats(), texts)
kinds = [
    st.integers(-9, 9),
    st.floats(width=32),
    st.booleans(),
    st.sampled_from("abcdefghijklmnopqrstuvwxyz"),
    st.integers(0, 10**7).map(lambda minutes: datetime.fromtimestamp(60 * minutes, UTC).isoformat()),
    st.integers(10**9, 2 * 10**9),
    st.fixed_dictionaries({"x": st.integers(0, 3), "y.z": st.none()}),
    st.lists(st.integers(0, 3), max_size=3),
]
column = st.tuples(st.sampled_from(range(len(kinds))), st.booleans())
names = st.one_of(
    st.just([]),
    st.lists(st.sampled_from(["a", "b", "t"]), unique=True, max_size=2),
    st.lists(st.sampled_from(["a.x", "t.0", "b.y.z", "c"]), max_size=1),
)


@st.composite
def tables(draw):
    """Rows of three columns, each of one kind, some with a few odd values."""
    chosen = [kinds[kind] | odd if has_odd else kinds[kind] for kind, has_odd in (draw(column) for _ in range(3))]
    return draw(st.lists(st.tuples(*chosen), min_size=1, max_size=25))


content = st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=20)), max_size=20).map(b"".join)
policies = st.sampled_from(["stop", "skip"])


def drained(make: Callable[..., Any], data: bytes, folder: Path) -> None:
    """Read a file to its end, in small steps at first, and resume at each of the first positions.

    Args:
        make: makes a stream from a source and a position.
        data: the content of the file.
        folder: the folder for the file.
    """
    (folder / "data").write_bytes(data)

    def take(position):
        sizes = chain([3] * 5, repeat(BLOCK_BYTES))
        try:
            with make(Source(folder / "data"), position) as stream:
                while (taken := stream.take(next(sizes))) is not None:
                    assert len(taken.xs)
                    if isinstance(stream, RowStream):
                        stream.times_ahead(2)
                    yield stream.position()
        except StreamError:
            return

    for position in list(take(None))[:5]:
        list(take(position))


def readers(folder: Path, inputs: Counter):
    @given(content, st.sampled_from(["csv", "jsonl", "text", "bytes"]), policies, st.integers(0, 2), st.booleans())
    def one(data, format, bad, horizon, header):
        inputs["readers"] += 1

        def make(source, position):
            if format == "bytes":
                return ByteStream(source, position=position)
            if format == "text":
                return CharacterStream(source, size=4, bad=bad, position=position)
            read_options = ReadOptions(format, header=header, bad=bad)
            return RowStream(source, read_options=read_options, horizon=horizon, targets=["a"], position=position)

        drained(make, data, folder)

    return one


def as_csv(rows: Sequence[Sequence[Any]]) -> bytes:
    """Rows as CSV in the style of spreadsheets, including line breaks inside fields."""
    text = io.StringIO()
    csv.writer(text).writerows([["a", "b", "t"], *rows])
    return text.getvalue().encode(errors="replace")


def as_json(rows: Sequence[Sequence[Any]]) -> bytes:
    lines = [json.dumps(dict(zip(("a", "b", "t"), row, strict=True))) for row in rows]
    return "\n".join(lines).encode() + b"\n"


def columns(folder: Path, inputs: Counter):
    """Fuzz tables of any values, read with any choice of columns.

    Args:
        folder: the folder for the file.
        inputs: counts the inputs.
    """
    loss, missing = st.booleans(), st.sampled_from(["last", "last", "mean", "stop", "skip"])
    bads = st.sampled_from(["skip", "skip", "skip", "stop"])
    horizons = st.sampled_from([0, 1, 3])

    @given(tables(), st.booleans(), names, names, names, bads, missing, loss, horizons)
    def one(rows, csv_file, seen, wanted, copied, bad, missing, classes, horizon):
        inputs["tables"] += 1
        chosen = {"inputs": seen or None, "targets": wanted or None, "copy": copied, "horizon": horizon}
        kind, classes = "csv" if csv_file else "jsonl", classes and len(wanted) == 1
        read_options = ReadOptions(kind, classes=classes, missing=missing, bad=bad)

        def make(source, position):
            return RowStream(source, read_options=read_options, position=position, **chosen)

        drained(make, as_csv(rows) if csv_file else as_json(rows), folder)

    return one


def options(folder: Path, inputs: Counter):
    keys = st.one_of(st.sampled_from(sorted(field_kinds(Settings))), texts)

    @given(st.dictionaries(keys, values, max_size=3), content)
    def one(entries, text):
        inputs["settings"] += 2
        try:
            known = {name: value for name, value in entries.items() if name in field_kinds(Settings)}
            made = Settings(**known)
            (folder / "settings.toml").write_text(write_toml(made), encoding="utf-8")
            assert read_toml(folder / "settings.toml") == made
        except SettingsError:
            pass
        try:
            (folder / "settings.toml").write_bytes(text)
            read_toml(folder / "settings.toml")
        except SettingsError:
            pass

    return one


def saved_entries() -> dict:
    return {
        "seconds": 1.0,
        "position": {"stream": {"kind": "bytes", "previous": 3}, "partial_window": [np.zeros(2, np.int32)] * 2},
        "predicted_early": 0,
        "tally": {"samples": 7, "interval": [1, 1.0], "all": [2, 2.0]},
        "score": {"counts": [0] * 4},
        "divergence": {"good": 0, "bad": 0},
        "logs": {"metrics.jsonl": 10},
        "settings": {},
    }


def checkpoints(folder: Path, inputs: Counter):
    places = [(name,) for name in saved_entries()]
    places += [(a, b) for a in ("position", "tally", "divergence", "logs") for b in (*saved_entries()[a], "more")]
    whole = _write(folder, 7, {"w": np.arange(9.0)}, saved_entries()).read_bytes()

    def tried(data: bytes) -> None:
        path = folder / f"{7:015d}-{hashlib.sha256(data).hexdigest()[:16]}.safetensors"
        path.write_bytes(data)
        try:
            check_entries(path, read(path)[1])
        except CheckpointError:
            pass
        finally:
            path.unlink()

    @given(st.sampled_from(places), values, st.integers(0, len(whole) - 1), st.binary(max_size=6))
    def one(place, value, where, damage):
        inputs["checkpoints"] += 3
        tried(whole[:where] + damage + whole[where + len(damage) :])
        tried(whole[:where])
        entries = saved_entries()
        inner = entries if len(place) == 1 else entries[place[0]]
        inner[place[-1]] = value
        path = _write(folder, 7, {"w": np.arange(9.0)}, entries)
        tried(path.read_bytes())

    return one


def files(folder: Path, inputs: Counter):
    """Fuzz logs, and the headers of compressed files.

    Args:
        folder: the folder for the log.
        inputs: counts the inputs.
    """
    names = st.sampled_from(["format", "network", "budget", "bytes", "first", "sha256"])

    @given(content, st.dictionaries(names, values, max_size=3))
    def one(data, entries):
        inputs["files"] += 3
        (folder / "metrics.jsonl").write_bytes(data)
        with suppress(CheckpointError):
            read_log(folder / "metrics.jsonl")
        header = {"format": FILE_FORMAT, "bytes": 9, "first": 97, "sha256": "", **entries}
        for line in (data, json.dumps(header).encode()):
            with suppress(CodeError):
                _header(MAGIC + line + b"\n")

    return one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the record")
    given_options = parser.parse_args()
    ends, inputs, rounds = time.monotonic() + 60 * given_options.minutes, Counter(), random.Random(given_options.seed)
    quick = settings(
        max_examples=100,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
        phases=[Phase.generate],
    )
    # In memory if possible: otherwise most of the time would be spent waiting for a disk.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        while time.monotonic() < ends:
            for make in (readers, columns, options, files, checkpoints):
                seed(rounds.getrandbits(32))(quick(make(Path(folder), inputs)))()
    settings_used = {"minutes": given_options.minutes, "seed": given_options.seed}
    record = {"settings": settings_used, **versions(), "seconds": round(60 * given_options.minutes)}
    write_record(given_options.out, "fuzz", {**record, "inputs": inputs.total(), "by": dict(inputs)})
    print(f"{inputs.total()} inputs, all accepted or rejected with an error of norewind (seed {given_options.seed})")
    print(", ".join(f"{name} {count}" for name, count in inputs.items()))


if __name__ == "__main__":
    main()
