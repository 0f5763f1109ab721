"""The report: tables, targets, and the raw numbers as CSV, from the records of the sections."""

import math
from functools import partial
from pathlib import Path

from benchmarks.figure import draw, short
from norewind.plotting.tables import comma_separated, markdown
from norewind.sweeps.record import read_records

# The records of one JAX version, by section.
Records = dict[str, dict]


def load(out: Path) -> dict[str, Records]:
    """All records, by JAX version, the latest first."""
    found: dict[str, Records] = {}
    for name, record in read_records(out).items():
        jax, section = name.removeprefix("jax-").split("/")
        found.setdefault(jax, {})[section] = record
    return dict(sorted(found.items(), key=lambda item: _numbers(item[0]), reverse=True))


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def write_report(out: Path) -> None:
    """Write table.md, raw.csv and bench.png."""
    everything = load(out)
    if not everything:
        print("Nothing has been measured yet. Run make bench.")
        return
    parts = ["# Benchmark\n\nMade by `make bench`; docs/speed.md says how to read it."]
    for jax, records in everything.items():
        parts += [f"\n## JAX {jax}\n\n{_heading(records)}"]
        makers = (
            step_table,
            single_table,
            parts_table,
            lstm_table,
            size_table,
            stream_table,
            memory_table,
            start_table,
            *(partial(plain_table, section) for section in PLAIN),
            target_table,
        )
        parts += [table for table in (make(records) for make in makers) if table]
    (out / "table.md").write_text("\n".join(parts) + "\n")
    _write_csv(out / "raw.csv", everything)
    draw(everything, out / "bench.png")
    print("\n".join(parts))


STEP_NAMES = {
    "floor (C)": "the floor: this step fused by hand in C",
    "uoro": "**`uoro`** through `online(...).scan`",
    "bptt, one step": "one-step `bptt`",
    "forward pass alone": "the forward pass alone",
    "uoro, rank 8": "rank-8 `uoro`",
    "uoro, window 16": "UORO with a window of 16",
    "braintrace uoro": "braintrace's UORO",
    "PyTorch, compiled": "UORO in PyTorch, `torch.compile`",
    "PyTorch, eager": "UORO in PyTorch, eager",
}


SINGLE_NAMES = {
    "step": "one call of `learner.step`",
    "predict + learn": "calls of `predict`, then `learn`",
    "step, packed": "one `step` of a packed run",
    "predict + learn, packed": "calls of `predict`, then `learn`, of a packed run",
}


def summary_table(everything: dict[str, Records]) -> str:
    """The first table of docs/speed.md, with the dates of the measurements."""
    measured = {jax: records for jax, records in everything.items() if "step" in records}
    header = [f"JAX {jax}, {records['step']['date']}" for jax, records in measured.items()]
    rows = []
    for section, names in {"step": STEP_NAMES, "single": SINGLE_NAMES}.items():
        times = [best(records, section) for records in measured.values()]
        shown = {case: name for case, name in names.items() if any(case in one for one in times)}
        rows += [[name, *(short(one[case]) if case in one else "" for one in times)] for case, name in shown.items()]
    return _table(["one sample", *header], rows)


def _heading(records: Records) -> str:
    dates = sorted({record["date"] for record in records.values()})
    commits = " and ".join(sorted({record["versions"]["commit"][:12] for record in records.values()}))
    first = records.get("step") or next(iter(records.values()))
    libraries = ", ".join(
        f"{name} {number}" for name, number in first["versions"].items() if number and name != "commit"
    )
    made = f"{' and '.join(dates)}, {first['processor']}, commit {commits}, {libraries}"
    return f"{made}. CPU time on one core, best of several rounds."


def best(records: Records, section: str) -> dict[str, float]:
    """Microseconds by case.

    Args:
        records: the records of one JAX version, by section.
        section: the section.
    """
    return {row["case"]: row["us"] for row in records.get(section, {"rows": []})["rows"]}


def _table(header: list[str], rows: list[list[str]]) -> str:
    return "\n" + markdown(header, rows, numbers=True).rstrip("\n")


def step_table(records: Records) -> str:
    return _against_uoro("GRU-64, one sample", best(records, "step"))


def single_table(records: Records) -> str:
    rows = [[case, short(us)] for case, us in best(records, "single").items()]
    return _table(["GRU-64, one call", "µs"], rows) if rows else ""


# Sections whose table is a list of cases, with the title of the table.
PLAIN = {"reading": "one row read", "rows": "one row", "models": "one row", "text": "one byte"}


def plain_table(section: str, records: Records) -> str:
    cases = [[case, short(us)] for case, us in best(records, section).items()]
    return _table([PLAIN[section], "µs"], cases) if cases else ""


def parts_table(records: Records) -> str:
    return _against_uoro("GRU-64, uoro with a part changed", best(records, "parts"))


def lstm_table(records: Records) -> str:
    return _against_uoro("LSTM-64, one sample", best(records, "lstm"))


def _against_uoro(title: str, times: dict[str, float]) -> str:
    if not times:
        return ""
    rows = [[name, short(us), f"{us / times['uoro']:.2f}"] for name, us in times.items()]
    return _table([title, "µs", "× uoro"], rows)


def size_table(records: Records) -> str:
    """Time and bytes carried by size, and the exponents of growth at the large end."""
    if "sizes" not in records:
        return ""
    rows = records["sizes"]["rows"]
    sizes = sorted({row["hidden"] for row in rows})
    times, carried = [], []
    for method in dict.fromkeys(row["case"] for row in rows):
        by_size = {row["hidden"]: row for row in rows if row["case"] == method}
        cells = [f"{by_size[n]['us']:.1f}" if n in by_size else "" for n in sizes]
        times.append([method, *cells, exponent_text(records, method)])
        carried.append([method, *(_bytes(by_size[n]["carried"]) if n in by_size else "" for n in sizes)])
    return (
        _table(["µs per sample, GRU of", *map(str, sizes), "growth"], times)
        + "\n\nGrowth: the exponent of time against hidden units, from 128 on (RTRL: from 64 to 128).\n"
        + _table(["bytes carried, GRU of", *map(str, sizes)], carried)
    )


def exponent(records: Records, method: str) -> float:
    """The exponent of time against hidden units, from 128 units (for few sizes, the second largest) to the largest.

    Args:
        records: the records of one JAX version, by section.
        method: the method, by name.
    """
    points = sorted((row["hidden"], row["us"]) for row in records["sizes"]["rows"] if row["case"] == method)
    large = [point for point in points if point[0] >= 128] if points[-1][0] > 128 else points[-2:]
    (first, low), (last, high) = large[0], large[-1]
    return math.log(high / low) / math.log(last / first)


def exponent_text(records: Records, method: str) -> str:
    return f"{exponent(records, method):.2f}"


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"


def stream_table(records: Records) -> str:
    if "streams" not in records:
        return ""
    counts = sorted({row["streams"] for row in records["streams"]["rows"]})
    rows = []
    for section, cores in (("streams", "one core"), ("two_cores", "{} cores, wall clock")):
        record = records.get(section, {"rows": [], "cores": 0})
        for case in ("parallel", "independent"):
            by_count = {row["streams"]: row["us"] for row in record["rows"] if row["case"] == case}
            if by_count:
                cells = [f"{1e3 / by_count[count]:.1f}" for count in counts]
                rows.append([f"{case}, {cores.format(record['cores'])}", *cells])
    return _table(["thousand samples per second in total, streams:", *map(str, counts)], rows)


def memory_table(records: Records) -> str:
    if "memory" not in records:
        return ""
    rows = [[f"{row['steps']:,}", f"{row['resident'] / 1e6:.1f}"] for row in records["memory"]["rows"]]
    return _table(["steps", "resident MB"], rows)


def start_table(records: Records) -> str:
    if "start" not in records:
        return ""
    rows = [[row["case"], f"{row['import_seconds']:.2f}", f"{row['seconds']:.2f}"] for row in records["start"]["rows"]]
    return _table(["CPU seconds from `import norewind` to", "import", "total"], rows)


def target_table(records: Records) -> str:
    """The table of the project's targets, with the measured values."""
    step = best(records, "step")
    rows = []

    def ratio(what, over, under, at_most=None, at_least=None):
        if over in step and under in step:
            add(what, step[over] / step[under], at_most, at_least)

    def add(what, value, at_most=None, at_least=None):
        wanted = f"at most {at_most:g}" if at_most is not None else f"at least {at_least:g}"
        holds = value <= at_most if at_most is not None else value >= at_least
        rows.append([what, f"{value:.3g}", wanted, "yes" if holds else "**no**"])

    new = _numbers(next(iter(records.values()))["versions"]["jax"]) >= [0, 12]
    ratio("uoro / floor", "uoro", "floor (C)", at_most=1.5 if new else 2.0)
    ratio("uoro / one-step bptt", "uoro", "bptt, one step", at_most=2.0)
    ratio("braintrace / uoro", "braintrace uoro", "uoro", at_least=3)
    ratio("PyTorch compiled / uoro", "PyTorch, compiled", "uoro", at_least=15)
    ratio("PyTorch eager / uoro", "PyTorch, eager", "uoro", at_least=100)
    ratio("rank 8 / rank 1", "uoro, rank 8", "uoro", at_most=5)
    if "sizes" in records:
        add("growth exponent of uoro, 128 to 512 hidden", exponent(records, "uoro"), at_most=2.1)
    if "memory" in records:
        resident = [row["resident"] for row in records["memory"]["rows"]]
        add("growth of resident memory, 10⁵ to 10⁷ steps, %", 100 * (resident[-1] / resident[0] - 1), at_most=1)
    streaming = best(records, "streaming")
    if streaming:
        over = 100 * (streaming["norewind train"] / streaming["bare scan"] - 1)
        add("`norewind train` over the bare scan, %", over, at_most=15)
    return _table(["target", "measured", "wanted", "holds"], rows) if rows else ""


def _write_csv(path: Path, everything: dict[str, Records]) -> None:
    """Write every number, one per line."""
    rows = []
    for jax, records in everything.items():
        for section, record in sorted(records.items()):
            for row in record["rows"]:
                at = "".join(f" {key}={row[key]}" for key in ("hidden", "streams") if key in row)
                for key, value in row.items():
                    if isinstance(value, int | float) and key not in ("hidden", "streams", "steps"):
                        number = value if isinstance(value, int) else round(value, 4)
                        rows.append([jax, record["date"], section, row["case"] + at, key, number])
    path.write_text(comma_separated(["jax", "date", "section", "case", "quantity", "value"], rows))
