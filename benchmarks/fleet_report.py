"""The tables of docs/scale.md, from the records of `benchmarks.fleet`."""

from collections.abc import Iterator
from pathlib import Path

from norewind.sweeps.record import Record, read_records

SINGLE = "single"
ORDER = {SINGLE: 0, "private": 1, "shared": 2}
FILES = {
    "private": "GRU-16, private, one core",
    "private-resident": "GRU-16, private, `--resident 100000`, one core",
    "private-shards": "GRU-16, private, `--shards 2`, two cores",
    "shared": "GRU-16, `--share`, one core",
    "auto": "`auto`: least squares, one core",
}


def size_words(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} PB"


def of_arrays(every: dict[str, Record]) -> list[Record]:
    """The records of rows from arrays, in the order of the table."""
    found = [{"method": "uoro"} | record for name, record in every.items() if name.startswith("gru")]

    def place(record: Record) -> tuple:
        return record["method"] != "uoro", record["method"], record["hidden"], ORDER[record["way"]], record["keys"]

    return sorted(found, key=place)


def table(found: list[Record]) -> str:
    """The table of rows per second on one core, bytes per key, and seconds per checkpoint."""
    lines = [
        "| model | keys | rows per second | of one stream | bytes per key | checkpoint of all, CPU s | of 1 in 100 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    streams = [record for record in found if record["way"] == SINGLE]
    single = {(record["hidden"], record["method"]): record["rows_per_second"] for record in streams}
    for record in found:
        way = "one stream" if record["way"] == SINGLE else record["way"]
        alone = single.get((record["hidden"], record["method"]))
        times = [record.get(name) for name in ("checkpoint_all_cpu", "checkpoint_hundredth_cpu")]
        cells = [
            f"GRU-{record['hidden']}, {way}" + ("" if record["method"] == "uoro" else f", `{record['method']}`"),
            f"{record['keys']:,}",
            f"{record['rows_per_second']:,.0f}",
            "" if alone is None else f"{record['rows_per_second'] / alone:.0%}",
            "" if record["bytes_per_key"] is None else f"{record['bytes_per_key']:,}",
            *("" if seconds is None else f"{seconds:.3f}" for seconds in times),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def from_files(every: dict[str, Record]) -> str:
    """The table of rows per second from a file with the command line, on one core and on two."""
    lines = [
        "| `norewind train FILE --key` | keys | rows per second | of CPU time | start, s |",
        "|---|---:|---:|---:|---:|",
    ]
    found = [record for name, record in every.items() if name.startswith("file-")]
    for record in sorted(found, key=lambda record: (record["keys"], [*FILES].index(record["way"]))):
        numbers = record["rows_per_second"], record["rows_per_cpu_second"]
        cells = [FILES[record["way"]], f"{record['keys']:,}", *(f"{number:,.0f}" for number in numbers)]
        lines.append("| " + " | ".join([*cells, f"{record['start_seconds']:.1f}"]) + " |")
    return "\n".join(lines) + "\n"


def on_paper(found: list[Record], every: dict[str, Record]) -> str:
    """The table of resources for 10⁶ and 10⁸ keys at one row per key and minute, extrapolated from fleets of GRU-16.

    The number of cores is computed from arrays with 16 rows of each key, and from the file with the same number of
    keys, if it was measured.

    Args:
        found: the records of rows from arrays, in the order of the table.
        every: all records, by name.
    """
    lines = [
        "| GRU-16, one row per key and minute | keys | memory, all resident | disk | cores, 16 rows at a time "
        "| cores, from a file | network | checkpoint of all |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for way in ("private", "shared"):
        known = [r for r in found if (r["hidden"], r["way"], r["method"]) == (16, way, "uoro")]
        if not known:
            continue
        last = known[-1]
        speeds = last["rows_per_second"], every.get(f"file-{last['keys']}-{way}", {}).get("rows_per_second")
        for keys in (10**6, 10**8):
            rows = keys / 60
            cells = [
                way,
                f"10{'⁶' if keys == 10**6 else '⁸'}",
                size_words(keys * last["bytes_per_key"]),
                size_words(2 * keys * last["bytes_per_key"]),
                *("" if speed is None else f"{rows / speed:.1f}" for speed in speeds),
                f"{size_words(40 * rows)}/s",
                duration(keys * last.get("checkpoint_all", 0) / last["keys"]),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def named(root: Path) -> Iterator[tuple[str, str]]:
    every = read_records(root / "results/fleet")
    found = of_arrays(every)
    yield "fleet/table", table(found)
    yield "fleet/on paper", on_paper(found, every)
    yield "fleet/files", from_files(every)
