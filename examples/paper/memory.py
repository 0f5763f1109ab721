"""Long memory: repeating letters after a pause, and repeating sequences that grow as they are learned."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.ticker import FixedLocator

from examples.paper.balancing import fit_or_fail
from examples.paper.copying import UNSCORED, Copying, Curriculum
from examples.paper.figures import median_and_range, reference_line
from norewind.cells import with_readout
from norewind.core.losses import cross_entropy
from norewind.core.optimizers import adam
from norewind.learners.online import online
from norewind.plotting import figures
from norewind.plotting.tables import markdown
from norewind.scoring.score import bits_of
from norewind.sweeps.record import Record, group_by
from norewind.sweeps.sweep import finished_records, sweep
from norewind.training import registry
from norewind.training.hooks import Hooks

RATES = (1e-3, 3e-3)
SEEDS = 2
POINTS = 50
# Samples between two updates of the curriculum; fewer for a large model, which has shorter chunks.
PIECE = 1_000
# The methods and cells of both tasks.
MODELS = (("snap1", "lru"), ("snap1", "elstm"), ("uoro", "gru"), ("bptt:16", "gru"))
# Task, method, cell and hidden units.
KINDS = (
    *(("pause", *model, 64) for model in MODELS),
    *(("grow", *model, 128) for model in MODELS),
    ("grow", "kf_rtrl", "rnn", 32),
)
# The samples of a run, the options of the sequences, and the measured quantity.
TASKS = {
    "pause": (1_000_000, {"letters": 4, "length": 2, "pause": (50, 100)}, "bits per letter"),
    "grow": (2_000_000, {"letters": 2, "length": 1}, "length reached"),
}
TITLES = {
    "pause": "two letters of four, again after 50 to 100 blanks",
    "grow": "sequences that grow by a letter below 0.15 bits",
}
# Cells for which SnAp-1 is exact.
EXACT = {"lru", "elstm"}
# The lengths that KF-RTRL and OK reached after two million samples, with 128 units (Benzing et al., 2019).
PUBLISHED = (36, 45)


@dataclass(frozen=True, kw_only=True)
class MemoryRun:
    """The settings of one run.

    Args:
        task: `"pause"` to repeat two of four letters after 50 to 100 blanks, `"grow"` for sequences of growing length.
        method: the method, by name.
        cell: the cell, by name.
        hidden: the number of hidden units.
        samples: the number of samples.
        rate: the learning rate.
        seed: the seed of the sequences, the weights and the noise.
    """

    task: str
    method: str
    cell: str
    hidden: int
    samples: int
    rate: float
    seed: int = 0

    @property
    def kind(self) -> tuple[str, str, str, int]:
        return self.task, self.method, self.cell, self.hidden

    @property
    def name(self) -> str:
        method = self.method.replace(":", "-")
        return f"{self.task}-{method}-{self.cell}-{self.hidden}-{self.samples}-rate{self.rate:g}-seed{self.seed}"

    @property
    def label(self) -> str:
        exact = " (exact)" if self.method == "snap1" and self.cell in EXACT else ""
        return f"{self.method}, {self.cell}-{self.hidden}{exact}"


def first_plan(samples: int | None = None) -> dict[str, MemoryRun]:
    """Plan the first runs: every kind with every rate and the first seed.

    Args:
        samples: the length of each run; by default the length for its task.

    Returns:
        The runs by name.
    """
    runs = [
        MemoryRun(task=task, method=method, cell=cell, hidden=hidden, samples=samples or TASKS[task][0], rate=rate)
        for (task, method, cell, hidden), rate in product(KINDS, RATES)
    ]
    return {run.name: run for run in runs}


def second_plan(found: Mapping[str, Record], samples: int | None = None, seeds: int = SEEDS) -> dict[str, MemoryRun]:
    """Plan the other runs: every kind with the best of its rates and every seed.

    Args:
        found: the records of `first_plan`, by name.
        samples: the length of each run; by default the length for its task.
        seeds: the number of seeds.

    Returns:
        The runs by name.
    """

    def worth(run: MemoryRun) -> float:
        record = found[run.name]
        return -np.inf if record["problem"] else reached(record) * (1 if run.task == "grow" else -1)

    made = [run for name, run in first_plan(samples).items() if name in found]
    best = [max(runs, key=worth) for runs in group_by(lambda run: run.kind, made).values()]
    again = [replace(run, seed=seed) for seed in range(seeds) for run in best]
    return {run.name: run for run in again}


def reached(record: Record) -> float:
    """The result of a run: the final length of the sequences, or the mean loss per letter in the last tenth."""
    if record["memory"]["task"] == "grow":
        return record["lengths"][-1]
    return float(np.mean(record["bits"][-POINTS // 10 :]))


def train_memory(run: MemoryRun, folder: Path) -> Record:
    """Train one run, without checkpoints.

    Args:
        run: the settings of the run.
        folder: ignored; nothing is written.

    Returns:
        The record of the run.
    """

    def loss(output, target):
        return jnp.where(target < 0, 0.0, cross_entropy(output, jnp.maximum(target, 0)))

    def see(first, samples, outputs):
        scored = samples.targets != UNSCORED
        losses = bits_of(outputs[scored])[np.arange(scored.sum()), samples.targets[scored]]
        pieces.append((losses.sum(), losses.size, stream.length, first + len(scored) - 1))
        if run.task == "grow" and losses.size:
            curriculum.add(losses.mean())

    stream = Copying(**TASKS[run.task][1], seed=run.seed)
    curriculum, pieces, began = Curriculum(stream), [], time.perf_counter()
    keys, symbols = jax.random.split(jax.random.key(run.seed)), stream.symbols
    method = registry.parse_method(run.method)
    cell = with_readout(registry.cell(run.cell)(symbols, run.hidden, symbols), symbols, symbols, hidden=64)
    learner = online(method.make(cell.transition, loss, np.int32(0)), adam(run.rate))
    start = learner.init(cell.init(keys[0]), cell.initial_state(), keys[1])
    # A line of metrics also ends a chunk, and therefore a piece.
    window = method.window
    total, every = (count // window * window for count in (run.samples, PIECE))
    clock, hooks = time.process_time(), Hooks(outputs=see)
    _, problem = fit_or_fail(stream, learner, start, hooks, every=every, window=window, samples=total)
    sums, counts, lengths, ends = (np.array(part) for part in zip(*pieces, strict=True))
    groups = [group for group in np.array_split(np.arange(len(pieces)), POINTS) if len(group)]
    return {
        "memory": asdict(run),
        "seconds": round(time.perf_counter() - began, 2),
        "microseconds": round(1e6 * (time.process_time() - clock) / total, 1),
        "problem": problem,
        "time": [int(ends[group[-1]]) for group in groups],
        "bits": [float(f"{sums[group].sum() / max(1, counts[group].sum()):.5g}") for group in groups],
        "lengths": [int(lengths[group[-1]]) for group in groups],
    }


def reproduce_memory(
    out: Path, *, samples: int | None = None, seeds: int = SEEDS, report_only: bool = False, **processes: Any
) -> str:
    """Train the runs that have no record yet, draw figure.png, and write table.md.

    Args:
        out: the folder for records, figure and table.
        samples: the length of each run; by default the length for its task.
        seeds: the number of runs of each method at the best of its rates.
        report_only: train nothing.
        processes: how many runs to train at the same time, and where (`jobs` and `ray` of `sweep`).

    Returns:
        The table.

    Raises:
        SystemExit: if there are no records.
    """

    def get(plan: Mapping[str, MemoryRun]) -> dict[str, Record]:
        if report_only:
            return finished_records(plan, out, "memory")
        return sweep(plan, out, train=train_memory, entry="memory", **processes)

    tried = get(first_plan(samples))
    best = get(second_plan(tried, samples, seeds))
    if not best:
        raise SystemExit(f"There are no records of runs on long memory in {out}.")
    groups = list(group_by(lambda record: MemoryRun(**record["memory"]).kind, best.values()).values())
    draw(groups, out / "figure.png")
    text = table(groups, list((tried | best).values()))
    (out / "table.md").write_text(text, encoding="utf-8")
    return text


def table(groups: Sequence[Sequence[Record]], every: Sequence[Record]) -> str:
    """Format the results of each method over its seeds as a table.

    Args:
        groups: the records of each kind, at the best of its rates.
        every: the records of all runs, for the summary below the table.
    """
    rows = []
    for group in groups:
        run, values = MemoryRun(**group[0]["memory"]), sorted(map(reached, group))
        diverged = sum(record["problem"] is not None for record in group)
        digits = ".0f" if run.task == "grow" else ".3f"
        median, low, high = (format(value, digits) for value in (float(np.median(values)), values[0], values[-1]))
        single = f"{low} to {high}" + (f" ({diverged} of {len(group)} diverged)" if diverged else "")
        cost = f"{min(record['microseconds'] for record in group):.0f}"
        rows.append([TITLES[run.task], run.label, f"{run.rate:g}", median, single, cost])
    header = ["task", "method", "rate", "reached (median)", "single runs", "µs per sample"]
    made = sorted({f"norewind {one['norewind']}, JAX {one['jax']}" for one in every})
    problems = sum(one["problem"] is not None for one in every)
    return f"{markdown(header, rows)}\n{len(every)} runs; {problems} diverged. {'; '.join(made)}.\n"


def draw(groups: Sequence[Sequence[Record]], path: Path) -> None:
    """Draw the course of every method, with one panel for each task.

    Args:
        groups: the records of each kind.
        path: the figure; .png, .pdf or .svg.
    """
    figure, axes = figures.new_figure(1, 2, panel=(5.4, 3.8))
    labels = [MemoryRun(**group[0]["memory"]).label for group in groups]
    # A method has one colour, regardless of its size.
    methods = list(dict.fromkeys(label.rpartition("-")[0] for label in labels))
    for ax, task, entry in zip(axes[0], TASKS, ("bits", "lengths"), strict=True):
        for group, label in zip(groups, labels, strict=True):
            if group[0]["memory"]["task"] == task:
                shortest = min(len(record[entry]) for record in group)
                rows = np.array([record[entry][:shortest] for record in group])
                style = figures.curve_style(methods.index(label.rpartition("-")[0]))
                median_and_range(ax, group[0]["time"][:shortest], rows, label=label, **style)
        ax.set(xlabel="samples", ylabel=TASKS[task][2], title=TITLES[task], xlim=(0, None))
        figures.count_axis(ax)
    reference_line(axes[0, 0], 2.0, "chance")
    figures.log_axis(axes[0, 1])
    axes[0, 1].yaxis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100]))
    axes[0, 1].axhspan(*PUBLISHED, color="0.85", label="KF-RTRL and OK, 128 units, as published, at 2M samples")
    figures.legend(figure, axes.flat, columns=3)
    figures.save(figure, path)
