"""Does UORO with windows of 16 diverge, is it as good as the paper's settings, and does clipping help?

    python -m benchmarks.defaults    # 10 seeds of 10⁶ samples; aⁿbⁿ and brackets, GRU and LSTM; both settings;
                                     # and UORO without a window on aⁿbⁿ, with and without clipping

Records go to results/defaults/records.jsonl, and runs that have one are not repeated. The table goes to
results/defaults/table.md.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev

import tyro

from norewind.plotting.tables import markdown
from norewind.sweeps.record import Record, final_loss
from norewind.sweeps.sweep import finished_records, sweep
from norewind.training.registry import TASKS
from norewind.training.settings import Settings

OUT = Path("results/defaults")
LAST = 100_000
# The paper's learning rates decay differently on each text.
ALPHA = {"anbn": 0.03, "brackets": 0.015}
KINDS = list(product(TASKS, ("gru", "lstm")))


def plan(seeds: int = 10, paper_seeds: int = 10, samples: float = 1e6) -> dict[str, Settings]:
    """Plan all runs by name: the defaults first, and all runs with one seed before the next seed.

    Args:
        seeds: the number of seeds with windows of 16.
        paper_seeds: the number of seeds with the paper's settings.
        samples: the length of each run.
    """
    runs = {}
    for name, count in (("defaults", seeds), ("paper", paper_seeds)):
        for seed, (task, cell) in product(range(count), KINDS):
            run = Settings(task, cell=cell, method="uoro:window=16", seed=seed, samples=samples, metrics_every=10_000)
            if name == "paper":
                run = replace(run, method="uoro", alpha=ALPHA[task])
            runs[f"{task}-{cell}-{name}-{samples / 1e6:g}M-seed{seed}"] = run
    return runs


def clipping_plan(seeds: int = 3, samples: float = 2e5) -> dict[str, Settings]:
    """Plan runs of UORO without a window on aⁿbⁿ, with and without clipping.

    Args:
        seeds: the number of seeds.
        samples: the length of each run.
    """
    base = Settings("anbn", method="uoro", alpha=ALPHA["anbn"], samples=samples, metrics_every=10_000)
    return {f"clip-{c:g}-seed{seed}": replace(base, clip=c, seed=seed) for seed in range(seeds) for c in (0.0, 1.0)}


def main(
    seeds: int = 10,
    paper_seeds: int = 10,
    samples: float = 1e6,
    jobs: int = 2,
    report_only: bool = False,
    out: Path = OUT,
) -> None:
    """Train the missing runs, and print the table.

    Args:
        seeds: the number of seeds with windows of 16.
        paper_seeds: the number of seeds with the paper's settings.
        samples: the length of each run.
        jobs: the number of runs to train at the same time.
        report_only: train nothing.
        out: the folder of records and table.
    """
    runs = {**plan(seeds, paper_seeds, samples), **clipping_plan()}
    found = finished_records(runs, out) if report_only else sweep(runs, out, jobs=jobs)
    if not found:
        raise SystemExit(f"There are no records of this plan in {out}.")
    text = f"{table(found)}\n{clipping_table(found)}"
    (out / "table.md").write_text(text)
    print(text)


def table(found: dict[str, Record]) -> str:
    """The table with one row per text and cell, and a note on the numbers."""
    rows = []
    for task, cell in KINDS:
        row = [{"anbn": "aⁿbⁿ"}.get(task, task), cell.upper()]
        for name in ("defaults", "paper"):
            group = [record for run, record in found.items() if run.startswith(f"{task}-{cell}-{name}-")]
            good = [final_loss(r, LAST / r["samples"]) for r in group if r["problem"] is None]
            row += [mean_and_spread(good), f"{sum(r['problem'] is not None for r in group)} of {len(group)}"]
        rows.append(row)
    every = [record for name, record in found.items() if not name.startswith("clip-")]
    minutes = sum(record["seconds"] for record in every) / 60
    made = f"JAX {', '.join(sorted({record['jax'] for record in every}))}, commit " + ", ".join(
        sorted({record["commit"][:12] for record in every})
    )
    header = ["text", "cell", "window of 16", "diverged", "paper's settings", "diverged"]
    return (
        f"{markdown(header, rows)}\nMean loss over the last {LAST:,} samples, in bits. "
        f"{every[0]['settings']['samples']:g} samples a run, {minutes:.0f} minutes of runs, {made}.\n"
    )


def mean_and_spread(values: list[float], digits: int = 4) -> str:
    """Format the mean and the standard deviation of values.

    Args:
        values: the values.
        digits: the number of digits after the point.

    >>> mean_and_spread([0.15, 0.16]), mean_and_spread([0.15]), mean_and_spread([])
    ('0.1550 ± 0.0071', '0.1500', '–')
    """
    if not values:
        return "–"
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{spread}"


def clipping_table(found: dict[str, Record]) -> str:
    """The table with one column per seed: the loss over the last tenth, or the sample at which the run diverged."""
    seeds = sorted({record["settings"]["seed"] for name, record in found.items() if name.startswith("clip-")})
    rows = []
    for clip, words in ((0, "no clipping"), (1, "`--clip 1`")):
        group = [found.get(f"clip-{clip}-seed{seed}") for seed in seeds]
        rows.append([words, *("" if record is None else _ended(record) for record in group)])
    return markdown(["UORO on aⁿbⁿ, bits", *(f"seed {seed}" for seed in seeds)], rows)


def _ended(record: Record) -> str:
    return f"{final_loss(record, 0.1):.3f}" if record["problem"] is None else f"diverged at {record['diverged_at']:,}"


if __name__ == "__main__":
    tyro.cli(main)
