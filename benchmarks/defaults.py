"""Do the defaults of `norewind train` diverge, and are they as good as the paper's settings?

    python benchmarks/defaults.py    # 10 seeds of 10⁶ characters; aⁿbⁿ and brackets, GRU and LSTM; both settings

Every run is a process of its own, `norewind train ...`, in results/defaults/runs. Finished ones are kept, interrupted
ones resumed. The table goes to results/defaults/table.md, the numbers of every run beside it.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, stdev

import tyro

from norewind.experiments.records import versions
from norewind.training.logs import read_log

OUT = Path("results/defaults")
LAST = 100_000
# The paper's learning rates fall at a speed of their own on each text.
PAPER = {"anbn": ["--method", "uoro", "--alpha", "0.03"], "brackets": ["--method", "uoro", "--alpha", "0.015"]}


@dataclass(frozen=True)
class Case:
    """One run: the command line's defaults, or the paper's settings."""

    task: str
    cell: str
    settings: str
    seed: int
    samples: int

    @property
    def folder(self) -> Path:
        return OUT / "runs" / f"{self.task}-{self.cell}-{self.settings}-{self.samples}-{self.seed}"

    def command(self) -> list[str]:
        if (self.folder / "settings.toml").exists():
            return ["resume", str(self.folder), "--quiet"]
        own = PAPER[self.task] if self.settings == "paper" else []
        options = ["--samples", self.samples, "--seed", self.seed, "--cell", self.cell, "--out", self.folder, "--quiet"]
        return ["train", self.task, *map(str, options), *own]

    def run(self) -> dict:
        """Train, and return what came of it; the exit code 3 says that it diverged."""
        done = subprocess.run([sys.executable, "-m", "norewind", *self.command()], stderr=subprocess.PIPE, text=True)
        if done.returncode not in (0, 3):
            raise SystemExit(done.stderr)
        lines = read_log(self.folder / "metrics.jsonl")
        last = [line for line in lines if line["samples"] > self.samples - LAST]
        return {
            "task": self.task,
            "cell": self.cell,
            "settings": self.settings,
            "seed": self.seed,
            "samples": lines[-1]["samples"],
            "diverged": done.returncode == 3,
            "loss": round(mean(line["loss"] for line in last), 5) if last else None,
            "worst_carry": max(line["carry"] for line in lines),
            "seconds": lines[-1]["seconds"],
        }


def main(seeds: int = 10, paper_seeds: int = 10, samples: float = 1e6, jobs: int = 2) -> None:
    """Run what is missing, and print the table."""
    kinds = list(product(("anbn", "brackets"), ("gru", "lstm")))
    # A whole set of one seed before the next, and the defaults first: whoever interrupts has a fair comparison.
    cases = [
        Case(task, cell, settings, seed, int(samples))
        for settings, count in (("defaults", seeds), ("paper", paper_seeds))
        for seed, (task, cell) in product(range(count), kinds)
    ]
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
    results = []
    with ThreadPoolExecutor(jobs) as pool:
        for result in pool.map(Case.run, cases):
            results.append(result)
            print(json.dumps(result), flush=True)
    table = "\n".join(rows(results))
    minutes = sum(result["seconds"] for result in results) / 60
    made = f"{samples:g} characters a run, {minutes:.0f} minutes of runs; {versions()}"
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "table.md").write_text(f"{table}\n\nMean loss over the last {LAST:,} characters, in bits. {made}.\n")
    (OUT / "runs.json").write_text("[\n" + ",\n".join(map(json.dumps, results)) + "\n]\n")
    print(table)


def rows(results: list[dict]):
    """One row per text and cell."""
    yield "| text | cell | defaults | diverged | paper's settings | diverged |"
    yield "|---|---|---|---|---|---|"
    for task, cell in product(("anbn", "brackets"), ("gru", "lstm")):
        row = [task, cell]
        for settings in ("defaults", "paper"):
            group = [r for r in results if (r["task"], r["cell"], r["settings"]) == (task, cell, settings)]
            good = [r["loss"] for r in group if not r["diverged"]]
            spread = f" ± {stdev(good):.4f}" if len(good) > 1 else ""
            row += [
                f"{mean(good):.4f}{spread}" if good else "–",
                f"{sum(r['diverged'] for r in group)} of {len(group)}",
            ]
        yield "| " + " | ".join(row) + " |"


if __name__ == "__main__":
    tyro.cli(main)
