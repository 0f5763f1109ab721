"""What the records of `benchmarks.fleet` say, as the table and the sums of docs/scale.md."""

import json
from collections.abc import Iterator
from pathlib import Path

SINGLE = "single"


def records(folder: Path) -> list[dict]:
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("gru*.json"))]
    return sorted(found, key=lambda record: (record["hidden"], record["way"] != SINGLE, record["way"], record["keys"]))


def table(found: list[dict]) -> str:
    """Rows a second on one core, bytes a key, seconds a checkpoint."""
    lines = [
        "| model | keys | rows a second | of one stream | bytes a key | checkpoint of all, CPU s | of 1 in 100 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    single = {record["hidden"]: record["rows_per_second"] for record in found if record["way"] == SINGLE}
    for record in found:
        way = "one stream" if record["way"] == SINGLE else record["way"]
        share = record["rows_per_second"] / single[record["hidden"]] if record["hidden"] in single else None
        cells = [
            f"GRU-{record['hidden']}, {way}",
            f"{record['keys']:,}",
            f"{record['rows_per_second']:,.0f}",
            "" if share is None else f"{share:.0%}",
            "" if record["bytes_per_key"] is None else f"{record['bytes_per_key']:,}",
            *(
                f"{record[name]:.3f}" if name in record else ""
                for name in ("checkpoint_all_cpu", "checkpoint_hundredth_cpu")
            ),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def on_paper(found: list[dict]) -> str:
    """What 10⁶ and 10⁸ keys would take, from the largest measured fleets of GRU-16, at one row a key and minute."""
    lines = [
        "| GRU-16, a row a key and minute | keys | memory, all resident | disk | cores | network | checkpoint of all |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for way in ("private", "shared"):
        known = [record for record in found if (record["hidden"], record["way"]) == (16, way)]
        if not known:
            continue
        last = known[-1]
        for keys in (10**6, 10**8):
            rows = keys / 60
            cells = [
                way,
                f"10{'⁶' if keys == 10**6 else '⁸'}",
                size(keys * last["bytes_per_key"]),
                size(2 * keys * last["bytes_per_key"]),
                f"{rows / last['rows_per_second']:.1f}",
                f"{size(40 * rows)}/s",
                duration(keys * last.get("checkpoint_all", 0) / last["keys"]),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} PB"


def duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def named(root: Path) -> Iterator[tuple[str, str]]:
    found = records(root / "results/fleet")
    yield "fleet/table", table(found)
    yield "fleet/on paper", on_paper(found)
