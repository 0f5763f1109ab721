"""Does UORO with windows of 16 diverge, is it as good as the paper's settings, and does clipping help?

    python -m benchmarks.defaults    # 10 seeds of 10⁶ samples; aⁿbⁿ and brackets, GRU and LSTM; both settings
                                     # and UORO without a window on aⁿbⁿ, with and without clipping

Records go to results/defaults/runs, and finished runs are kept. The table goes to results/defaults/table.md.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path

import tyro

from norewind.instruments.curves import final
from norewind.instruments.tables import markdown, mean_and_spread
from norewind.names import TASKS
from norewind.runs.record import Record
from norewind.runs.settings import Settings
from norewind.runs.sweep import records, sweep

OUT = Path("results/defaults")
LAST = 100_000
# The paper's learning rates fall at a speed of their own on each text.
ALPHA = {"anbn": 0.03, "brackets": 0.015}
KINDS = list(product(TASKS, ("gru", "lstm")))


def plan(seeds: int = 10, paper_seeds: int = 10, samples: float = 1e6) -> dict[str, Settings]:
    """All runs by name; a whole set of one seed before the next, and the defaults first."""
    runs = {}
    for name, count in (("defaults", seeds), ("paper", paper_seeds)):
        for seed, (task, cell) in product(range(count), KINDS):
            run = Settings(task, cell=cell, method="uoro:window=16", seed=seed, samples=samples, metrics_every=10_000)
            if name == "paper":
                run = replace(run, method="uoro", alpha=ALPHA[task])
            runs[f"{task}-{cell}-{name}-{samples / 1e6:g}M-seed{seed}"] = run
    return runs


def clipping_plan(seeds: int = 3, samples: float = 2e5) -> dict[str, Settings]:
    """UORO without a window on aⁿbⁿ, with and without clipping."""
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
    """Run what is missing, and print the table."""
    runs = {**plan(seeds, paper_seeds, samples), **clipping_plan()}
    found = records(runs, out) if report_only else sweep(runs, out, jobs=jobs)
    if not found:
        raise SystemExit(f"There are no records of this plan in {out / 'runs'}.")
    text = f"{table(found)}\n{clipping_table(found)}"
    (out / "table.md").write_text(text)
    print(text)


def table(found: dict[str, Record]) -> str:
    """One row per text and cell, and what the numbers are."""
    rows = []
    for task, cell in KINDS:
        row = [{"anbn": "aⁿbⁿ"}.get(task, task), cell.upper()]
        for name in ("defaults", "paper"):
            group = [record for run, record in found.items() if run.startswith(f"{task}-{cell}-{name}-")]
            good = [final(r, LAST / r["samples"]) for r in group if r["problem"] is None]
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


def clipping_table(found: dict[str, Record]) -> str:
    """A column per seed: the loss over the last tenth, or that the run diverged, and when."""
    seeds = sorted({record["settings"]["seed"] for name, record in found.items() if name.startswith("clip-")})
    rows = []
    for clip, words in ((0, "no clipping"), (1, "`--clip 1`")):
        group = [found.get(f"clip-{clip}-seed{seed}") for seed in seeds]
        rows.append([words, *("" if record is None else _ended(record) for record in group)])
    return markdown(["UORO on aⁿbⁿ, bits", *(f"seed {seed}" for seed in seeds)], rows)


def _ended(record: Record) -> str:
    return f"{final(record, 0.1):.3f}" if record["problem"] is None else f"diverged at {record['diverged_at']:,}"


if __name__ == "__main__":
    tyro.cli(main)
