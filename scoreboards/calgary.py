"""The Calgary corpus: `norewind compress`, and what `norewind train` with a network needs, for each file on its own.

python -m scoreboards calgary

The contexts of binary data were chosen on the files in `DEVELOPED`. Sizes are shown for these, for the others, and for
all.
"""

import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.text import learned
from norewind.forecasting.compress import code_of, compress
from norewind.plotting.tables import markdown
from norewind.sweeps.record import Record, read_records, versions, write_record
from scoreboards.board import Board

DEVELOPED = ("bib", "book2", "geo", "obj1", "paper1", "pic", "progc", "trans")
OTHERS = ("book1", "news", "obj2", "paper2", "progl", "progp")
# The time that a byte may take with a network, in microseconds on one core.
BUDGET = 50
WAYS = ("auto", "counts")
# The number of bytes of each file in a quick run, and of those that are compressed before anything is timed.
QUICK, WARM = 5_000, 2_000


def measured(content: bytes, way: str) -> Record:
    """Return the size of a file in bytes, without a header, and the processor time per byte in microseconds.

    Args:
        content: the file.
        way: `auto`, whose bits are those that `norewind train` reports, or `counts`, which really compresses.
    """
    if way == "auto":
        bits, microseconds = learned(content, BUDGET)
        return {"bytes": round(bits * len(content) / 8), "microseconds": round(microseconds, 1)}
    began = time.process_time()
    size = len(code_of(compress(content)))
    return {"bytes": size, "microseconds": round(1e6 * (time.process_time() - began) / len(content), 1)}


def run(data: Path, out: Path, quick: bool) -> None:
    """Compress every file in both ways. Those that have a record are not compressed again.

    Args:
        data: the folder of the files.
        out: the folder of the records.
        quick: use only the beginning of each file.
    """
    warm = set()
    for way in reversed(WAYS):
        for name in sorted(DEVELOPED + OTHERS):
            if f"{way} {name}" in read_records(out):
                continue
            content = (data / name).read_bytes()[: QUICK if quick else None]
            if way not in warm:
                measured(content[:WARM], way)
                warm.add(way)
            record = measured(content, way)
            write_record(out, f"{way} {name}", {"length": len(content), **record, **versions()})
            print(way, name, f"{record['bytes']:,} bytes, {record['microseconds']} µs each", flush=True)
    quoted = quote(read_records(out))
    names = [*sorted(DEVELOPED + OTHERS), "developed", "others", "total"]
    print(markdown(["file", *WAYS], [(name, *quoted[name].split(" | ")) for name in names]))


def quote(records: dict[str, Record]) -> dict[str, str]:
    """Return the sizes of every file, of both parts and of all, with a network and without, and the times per byte.

    Args:
        records: the records by name.
    """
    every = DEVELOPED + OTHERS
    if any(f"{way} {name}" not in records for way in WAYS for name in every):
        return {}

    def total(way: str, names: Iterable[str], entry: str = "bytes") -> float:
        return sum(records[f"{way} {name}"][entry] for name in names)

    def microseconds(way: str) -> float:
        spent = [records[f"{way} {name}"]["microseconds"] * records[f"{way} {name}"]["length"] for name in every]
        return sum(spent) / total(way, every, "length")

    parts = {"developed": DEVELOPED, "others": OTHERS, "total": every, **{name: (name,) for name in every}}
    lines = {part: " | ".join(f"{total(way, names):,.0f}" for way in WAYS) for part, names in parts.items()}
    ours = f"{total('auto', every):,.0f} (without its network: {total('counts', every):,.0f})"
    times = {f"microseconds of {way}": f"{microseconds(way):.1f}" for way in WAYS}
    return {**lines, **times, "ours": ours, "microseconds": f"{microseconds('auto'):.0f}"}


BOARD = Board(
    "calgary",
    "Text: the Calgary corpus",
    "bytes of 14 files, lower is better",
    "576,710 (paq8px -8)",
    "calgary",
    "https://corpus.canterbury.ac.nz/descriptions/#calgary",
    run,
    quote,
)
