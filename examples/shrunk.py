"""Is `shrunk` as good as the better of a biased method and UORO? Where bias ruins learning, and where noise does.

python -m examples.shrunk --out results/shrunk    # influence balancing; finished runs are kept

The table also takes the records of `examples.sketched_rtrl` and of the comparison in docs/diagnose.md.
"""

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from examples.sketched_rtrl.series import SERIES, TITLES
from norewind.plotting.tables import markdown
from norewind.sweeps.record import Record, read_records, versions, write_record

RATE, SEEDS = 1e-3, 5
# Influence balancing has one parameter and declares no units: the biased method is truncation after one step.
BALANCING = ("bptt", "uoro", "shrunk:of=bptt", "shrunk:of=bptt,carries=8")
COLUMNS = ("biased alone", "`unbiased`", "`shrunk`, 2 carries", "`shrunk`, 8 carries", "UORO")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.shrunk", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/shrunk"))
    parser.add_argument("--samples", type=int, default=200_000)
    arguments = parser.parse_args()
    from examples.paper.balancing import InfluenceRun, train_influence

    for seed, method in product(range(SEEDS), BALANCING):
        run = InfluenceRun(method=method, rate=RATE, seed=seed, samples=arguments.samples)
        if run.name not in read_records(arguments.out) and (seed == 0 or method != "bptt"):
            write_record(arguments.out, run.name, train_influence(run, arguments.out) | versions())
    (arguments.out / "table.md").write_text(table(arguments.out.parent), encoding="utf-8")
    print((arguments.out / "table.md").read_text())


def table(results: Path) -> str:
    """Return a Markdown table: how every method ends on every stream.

    Args:
        results: the folder of all records.
    """
    anbn = read_records(results / "instruments/unbiased-training")
    records = read_records(results / "sketched-rtrl").values()
    rows = [_balancing(read_records(results / "shrunk")), _anbn(anbn)]
    rows += [_series(TITLES[series], [r for r in records if r["table"]["series"] == series]) for series in SERIES]
    return markdown(["stream", *COLUMNS], rows) + "\n"


def _balancing(records: dict[str, Record]) -> list[str]:
    def thetas(method):
        return [record["theta"] for record in records.values() if record["influence"]["method"] == method]

    uoro = _middle(thetas("uoro"))
    ends = [_middle(thetas("bptt")), uoro, *(_middle(thetas(f"shrunk:of=bptt{k}")) for k in ("", ",carries=8")), uoro]
    return ["influence balancing: θ at the end (best: −0.1667)", *ends]


def _anbn(records: dict[str, Record]) -> list[str]:
    def losses(method):
        found = [record for record in records.values() if record["settings"]["method"] == method]
        return [float(np.mean(record["curve"][-len(record["curve"]) // 10 :])) for record in found]

    methods = ("snap1", "unbiased:of=snap1", "shrunk:of=snap1", "shrunk:of=snap1,carries=8", "uoro")
    return ["aⁿbⁿ: bits per character", *(_middle(losses(method)) for method in methods)]


def _series(title: str, records: list[Record]) -> list[str]:
    def errors(method):
        return [record["nmse"] for record in records if record["table"]["method"] == method]

    methods = ("snap1", "unbiased:of=snap1", "shrunk:of=snap1", "shrunk:of=snap1,carries=8", "uoro")
    return [f"{title}: NMSE", *(_middle(errors(method)) for method in methods)]


def _middle(values: Sequence[float | None]) -> str:
    """The median over seeds, and their number; a run that diverged counts as the worst."""
    if not values:
        return ""
    median = float(np.median([np.inf if value is None else value for value in values]))
    return f"{median:.4g} ({len(values)})" if np.isfinite(median) else f"diverged ({len(values)})"


if __name__ == "__main__":
    main()
