"""Every number and table that a page quotes, by name, computed from its record.

To add a source, write a function that yields names and texts, given the project's folder, and list it in SOURCES. Names
begin with the folder under results/ that holds the record.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from benchmarks.defaults import clipping_plan, clipping_table, plan
from benchmarks.defaults import table as defaults_table
from benchmarks.fleet_report import named as fleets
from benchmarks.report import best, load, summary_table
from benchmarks.serve import table as serve_table
from examples.paper.clock import table as clock_table
from norewind.plotting.tables import markdown
from norewind.sweeps import sweep
from norewind.sweeps.record import Record, read_records
from norewind.training import scopes
from norewind.training.settings import Settings
from scoreboards.boards import quotes
from tools.fault_disk import POWER_LOST
from tools.faults import ERRORS, REJECTED
from tools.memory import KINDS, parts

Named = Iterator[tuple[str, str]]


def values(root: Path) -> dict[str, str]:
    """All quoted numbers and tables, by name."""
    return {name: text for source in SOURCES for name, text in source(root)}


def commands(root: Path) -> Named:
    """The commands that draw the figures of docs/diagnose.md, for the gallery."""
    page = (root / "docs/diagnose.md").read_text(encoding="utf-8")
    for command, image in re.findall(r"((?:^    .*\n)+)\n!\[.*\]\((.*)\)", page, re.MULTILINE):
        yield f"command of {image}", command


def settings(root: Path) -> Named:
    """Which settings apply to what: from the table that runs are checked against."""
    yield "settings/scopes", scopes.table(field.name for field in fields(Settings))


def bench(root: Path) -> Named:
    """`make bench`: times with the newest JAX, and how much longer the oldest takes."""
    everything = load(root / "results/bench")
    yield "bench/one sample", summary_table(everything)
    new, *_, old = everything.values()
    step, parts, streaming = (best(new, section) for section in ("step", "parts", "streaming"))
    yield "bench/uoro", f"{step['uoro']:.1f}"
    yield "bench/uoro to floor", f"{step['uoro'] / step['floor (C)']:.2f}"
    yield "bench/uoro to bptt", f"{step['uoro'] / step['bptt, one step']:.1f}"
    yield "bench/lstm to gru", f"{best(new, 'lstm')['uoro'] / step['uoro']:.1f}"
    yield "bench/share of adam", fraction(1 - parts["with SGD for Adam"] / parts["uoro"])
    yield "bench/share of norms", fraction(1 - parts["without norms"] / parts["uoro"])
    yield "bench/share of noise", fraction(1 - parts["without noise"] / parts["uoro"])
    yield "bench/optax.adam adds", fraction(parts["with optax.adam"] / parts["uoro"] - 1)
    yield "bench/train adds", fraction(streaming["norewind train"] / streaming["bare scan"] - 1)
    small = [_at(old, "sizes", "uoro", hidden=n) - _at(new, "sizes", "uoro", hidden=n) for n in (16, 32, 64)]
    yield "bench/old jax adds", f"{min(small):.0f} to {max(small):.0f}"
    for section, cores in (("streams", "one core"), ("two_cores", "two cores")):
        yield f"bench/256 streams, {cores}", f"{1e3 / _at(new, section, 'parallel', streams=256):.0f}"
    for age, records in (("new", new), ("old", old)):
        yield f"bench/braintrace of {age} jax", records["step"]["versions"]["braintrace"]


def _at(records: dict, section: str, case: str, **where: int) -> float:
    """Microseconds of a case at a size or a number of streams."""
    rows = records[section]["rows"]
    return next(row["us"] for row in rows if row["case"] == case and where.items() <= row.items())


def real_data(root: Path) -> Named:
    """`python -m examples.real_data`: the tables, and every method's loss on every stream."""
    folder = root / "results/real-data"
    for name in ("table", "verdict", "seeds", "compression"):
        yield f"real-data/{name}", (folder / f"{name}.md").read_text(encoding="utf-8")
    yield "real-data/diverged", (folder / "seeds.md").read_text(encoding="utf-8").splitlines()[-1]
    with (folder / "table.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name = f"real-data/{row['stream']}/{row['method']}"
            yield name, row["whole stream"]
            yield f"{name}/ratio", row["to the best baseline"]
            yield f"{name}/µs", row["µs per sample"]


def defaults(root: Path) -> Named:
    """`python -m benchmarks.defaults`: the settings of `norewind train` and of the paper, after 10⁶ samples."""
    found = sweep.finished_records(plan(), root / "results/defaults")
    yield "defaults/table", defaults_table(found).partition("\n\n")[0]
    yield "defaults/clipping", clipping_table(sweep.finished_records(clipping_plan(), root / "results/defaults"))


def paper(root: Path) -> Named:
    """`python -m examples.paper`: the table on aⁿbⁿ."""
    yield "paper/table", (root / "results/paper/table.md").read_text(encoding="utf-8")


def clock(root: Path) -> Named:
    """`python -m examples.paper clock`."""
    yield "clock/table", clock_table(read_records(root / "results/clock"))


def instruments(root: Path) -> Named:
    """The commands of docs/diagnose.md."""
    for name in ("sizes", "moving", "unbiased-lstm", "unbiased-gru"):
        yield f"instruments/{name}", (root / "results/instruments" / name / "table.md").read_text(encoding="utf-8")
    for name in ("compare", "unbiased-training"):
        yield f"instruments/{name}", (root / "results/instruments" / name / "comparison.md").read_text(encoding="utf-8")


def small_studies(root: Path) -> Named:
    """The table of every small study in examples/."""
    studies = "step-sizes maze continual frontier elstm copying shrunk sketched-rtrl breathing"
    for name in studies.split():
        yield f"{name}/table", (root / "results" / name / "table.md").read_text(encoding="utf-8")


def memory(root: Path) -> Named:
    """`python -m examples.paper memory`."""
    yield "memory/table", (root / "results/memory/table.md").read_text(encoding="utf-8")


def storm(root: Path) -> Named:
    """`make storm`."""
    record = _record(root, "storm", "storm")
    yield "storm/commit", record["commit"][:8]
    yield "storm/kills", f"{record['kills']:,}"
    yield "storm/runs", f"{record['runs']:,}"
    yield "storm/losses", f"{len(record['losses']):,}"
    yield "storm/samples", f"{record['settings']['samples']:,}"
    kinds: dict[str, Counter] = {}
    for place, number in record["on"].items():
        kind, how = place.split(", ")
        kinds.setdefault(kind, Counter())[how] = number
    rows = ((kind, hows.total(), _listed(hows)) for kind, hows in sorted(kinds.items()))
    yield "storm/on", markdown(["kind of run", "kills", "by source, or by the processes killed"], rows)
    yield "storm/fell", _listed(Counter(record["fell"]))


def faults(root: Path) -> Named:
    """`make faults`: one record for each kind of run."""
    records = read_records(root / "results/faults")
    yield "faults/commit", ", ".join(sorted({record["commit"][:8] for record in records.values()}))
    yield "faults/points", f"{sum(record['points'] for record in records.values()):,}"
    yield "faults/problems", str(sum(len(record["problems"]) for record in records.values()))
    yield "faults/tried", _listed(sum((Counter(record["tried"]) for record in records.values()), Counter()))
    header = ["kind of run", "changes disturbed", "points", "crashes", "errors", "said what was wrong", "problems"]
    yield "faults/table", markdown(header, [_faults_row(*item) for item in sorted(records.items())])


def _faults_row(kind: str, record: Record) -> list[str | int]:
    errors = sum(record["tried"][name] for name in ERRORS)
    disturbed, said = record["tried"][POWER_LOST], record["outcomes"].get(REJECTED, 0)
    points = record["points"]
    return [kind, disturbed, points, points - errors, errors, said, len(record["problems"])]


def _listed(counts: Counter) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.most_common())


def fuzz(root: Path) -> Named:
    """`make fuzz`."""
    record = _record(root, "fuzz", "fuzz")
    yield "fuzz/commit", record["commit"][:8]
    yield "fuzz/inputs", f"{record['inputs']:,}"
    yield "fuzz/minutes", f"{record['settings']['minutes']:g}"
    yield "fuzz/by", ", ".join(f"{name} {number:,}" for name, number in record["by"].items())


def memory_use(root: Path) -> Named:
    """`make memory-use`."""
    record = _record(root, "memory-use", "memory")
    yield "memory-use/commit", record["commit"][:8]
    yield "memory-use/bytes", f"{record['settings']['bytes']:.0e}".replace("1e+08", "10⁸")
    rows = ["| stream | highest up to a fifth | highest after it | growth |", "|---|---:|---:|---:|"]
    for kind, (before, after) in ((kind, parts(record[kind]["kB"])) for kind in KINDS):
        rows.append(f"| {kind} | {before / 1e3:.1f} MB | {after / 1e3:.1f} MB | {after / before - 1:+.2%} |")
    yield "memory-use/table", "\n".join(rows) + "\n"


def _record(root: Path, study: str, name: str) -> Record:
    return read_records(root / "results" / study)[name]


def fraction(share: float) -> str:
    """The nearest simple fraction, spelled out.

    >>> fraction(0.52), fraction(0.11), fraction(0.048)
    ('half', 'a ninth', 'a twentieth')
    """
    words = ["half", "a third", "a quarter", "a fifth", "a sixth", "a seventh", "an eighth", "a ninth", "a tenth"]
    named = {1 / n: word for n, word in enumerate(words, 2)}
    named |= {2 / 3: "two thirds", 3 / 4: "three quarters", 1 / 15: "a fifteenth", 1 / 20: "a twentieth"}
    return named[min(named, key=lambda one: abs(one - share))]


def river(root: Path) -> Named:
    """`python -m benchmarks.river`: norewind compared with River."""
    lines = ["| data | score | model | value | rows per CPU second |", "|---|---|---|---:|---:|"]
    for record in read_records(root / "results/river").values():
        for row in [*record["rows"], *record.get("published", [])]:
            scores = row.get("scores", [])
            spread = f" ({min(scores):.3f} to {max(scores):.3f})" if len(set(scores)) > 1 else ""
            speed = row.get("rows per second", "published")
            score = row["score"]
            shown = f"{score:.3f}" if score < 1e4 else f"{score:.0e}"
            cells = (record["data"], record["metric"], row["model"], shown + spread, speed)
            lines.append(f"| {' | '.join(map(str, cells))} |")
    yield "river/table", "\n".join(lines) + "\n"


def scoreboards(root: Path) -> Named:
    """`python -m scoreboards`: what each public benchmark quotes, and the table of all."""
    yield from quotes(root / "results")


def serve(root: Path) -> Named:
    """`python -m benchmarks.serve`: latencies under load."""
    record = _record(root, "serve", "serve")
    yield "serve/table", serve_table(record)
    yield "serve/stolen", " and ".join(str(case["stolen"]) for case in record["cases"])


SOURCES = (
    commands,
    settings,
    bench,
    real_data,
    defaults,
    paper,
    clock,
    instruments,
    small_studies,
    memory,
    river,
    scoreboards,
    serve,
    storm,
    faults,
    fuzz,
    memory_use,
    fleets,
)
