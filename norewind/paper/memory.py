"""Long memory: letters to be repeated after a pause, and sequences that grow as they are learned."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.ticker import FixedLocator

from norewind import names
from norewind.cells import with_readout
from norewind.instruments.curves import grouped_by
from norewind.instruments.figures import count_axis, legend, level, look, median_and_range, new_figure, plain_log, save
from norewind.instruments.tables import markdown
from norewind.learner import online
from norewind.losses import cross_entropy
from norewind.optimizers import adam
from norewind.paper.balancing import fit_or_fail
from norewind.runs.fit import Hooks
from norewind.runs.progress import Progress
from norewind.runs.record import Record, record_path, records_of, versions, write_record
from norewind.runs.scores import bits_of
from norewind.runs.workers import Workers
from norewind.tasks.copying import UNSCORED, Copying, Curriculum

RATES = (1e-3, 3e-3)
SEEDS = 2
POINTS = 50
# Samples between two looks of the curriculum; fewer for a large model, whose chunks are shorter.
PIECE = 1_000
# Task, method, cell and hidden units.
KINDS = (
    ("pause", "snap1", "lru", 64),
    ("pause", "snap1", "elstm", 64),
    ("pause", "uoro", "gru", 64),
    ("pause", "bptt:16", "gru", 64),
    ("grow", "snap1", "lru", 128),
    ("grow", "snap1", "elstm", 128),
    ("grow", "uoro", "gru", 128),
    ("grow", "bptt:16", "gru", 128),
    ("grow", "kf_rtrl", "rnn", 32),
)
# The samples of a run, the sequences, and what is measured.
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
class Remembering:
    """One run: `"pause"` repeats two of four letters after 50 to 100 blanks, `"grow"` sequences of growing length."""

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


def tries(samples: int | None = None) -> list[Remembering]:
    """Every kind with every rate and the first seed."""
    return [
        Remembering(task=task, method=method, cell=cell, hidden=hidden, samples=samples or TASKS[task][0], rate=rate)
        for (task, method, cell, hidden), rate in product(KINDS, RATES)
    ]


def repeats(found: Mapping[str, Record], samples: int | None = None, seeds: int = SEEDS) -> list[Remembering]:
    """Every kind with the best of its rates and the other seeds."""

    def worth(run: Remembering) -> float:
        record = found[run.name]
        return -np.inf if record["problem"] else reached(record) * (1 if run.task == "grow" else -1)

    made = [run for run in tries(samples) if run.name in found]
    best = [max(runs, key=worth) for runs in grouped_by(lambda run: run.kind, made).values()]
    return [replace(run, seed=seed) for seed in range(1, seeds) for run in best]


def reached(record: Record) -> float:
    """The length of the sequences at the end, or the mean loss per letter in the last tenth of a run."""
    if record["memory"]["task"] == "grow":
        return record["lengths"][-1]
    return float(np.mean(record["bits"][-POINTS // 10 :]))


def run_memory(
    plan: Sequence[Remembering], out: Path, jobs: int | None = None, ray: str | None = None
) -> dict[str, Record]:
    """Train every run that has no record yet, several at the same time, and return the records of all.

    `jobs` and `ray` are those of `sweep`. Runs have no checkpoints: one whose process is killed begins again.
    """
    finished = records_of(plan, out, "memory")
    waiting = [run for run in plan if run.name not in finished]
    if waiting:
        with Progress(max(2, len(waiting))) as progress:
            tasks = {run.name: (run, out, out / "folders" / run.name) for run in waiting}
            Workers(_work, progress, jobs, ray).run(tasks)
    return records_of(plan, out, "memory")


def _work(name: str, run: Remembering, out: Path, folder: Path) -> str:
    """Train one run in its own process, write its record, and say how it ended."""
    record = train(run)
    write_record(record_path(out, name), record)
    value = reached(record)
    return record["problem"] or (f"length {value}" if run.task == "grow" else f"{value:.3f} bits per letter")


def train(run: Remembering) -> Record:
    """One run, from its settings to its record."""

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
    keys, symbols, method = jax.random.split(jax.random.key(run.seed)), stream.symbols, names.parse_method(run.method)
    cell = with_readout(names.cell(run.cell)(symbols, run.hidden, symbols), symbols, symbols, hidden=64)
    learner = online(method.make(cell.transition, loss, np.int32(0)), adam(run.rate))
    start = learner.init(cell.init(keys[0]), cell.initial_state(), keys[1])
    # A line of metrics also ends a chunk, and so a piece.
    total, every = (count // method.window * method.window for count in (run.samples, PIECE))
    clock = time.process_time()
    _, problem = fit_or_fail(stream, learner, start, method.window, total, every, Hooks(predictions=see))
    sums, counts, lengths, ends = (np.array(part) for part in zip(*pieces, strict=True))
    groups = [group for group in np.array_split(np.arange(len(pieces)), POINTS) if len(group)]
    return {
        "memory": asdict(run),
        **versions(),
        "seconds": round(time.perf_counter() - began, 2),
        "microseconds": round(1e6 * (time.process_time() - clock) / total, 1),
        "problem": problem,
        "time": [int(ends[group[-1]]) for group in groups],
        "bits": [float(f"{sums[group].sum() / max(1, counts[group].sum()):.5g}") for group in groups],
        "lengths": [int(lengths[group[-1]]) for group in groups],
    }


def reproduce_memory(
    out: Path,
    *,
    samples: int | None = None,
    seeds: int = SEEDS,
    jobs: int | None = None,
    ray: str | None = None,
    report_only: bool = False,
) -> str:
    """Make the runs that have no record yet, draw figure.png, and write and return table.md."""

    def get(plan: Sequence[Remembering]) -> dict[str, Record]:
        return records_of(plan, out, "memory") if report_only else run_memory(plan, out, jobs, ray)

    first = get(tries(samples))
    again = repeats(first, samples, seeds)
    found = {**first, **get(again)}
    best = {(run.kind, run.rate) for run in repeats(first, samples, 2)}  # also if there is no other seed
    chosen = [run for run in [*tries(samples), *again] if run.name in found and (run.kind, run.rate) in best]
    if not chosen:
        raise SystemExit(f"There are no records of runs on long memory in {out}.")
    groups = [[found[run.name] for run in runs] for runs in grouped_by(lambda run: run.kind, chosen).values()]
    draw(groups, out / "figure.png")
    text = table(groups, list(found.values()))
    (out / "table.md").write_text(text, encoding="utf-8")
    return text


def table(groups: Sequence[Sequence[Record]], every: Sequence[Record]) -> str:
    """What each method reached, over its seeds."""
    rows = []
    for group in groups:
        run, values = Remembering(**group[0]["memory"]), sorted(map(reached, group))
        diverged = sum(record["problem"] is not None for record in group)
        digits = ".0f" if run.task == "grow" else ".3f"
        median, low, high = (format(value, digits) for value in (float(np.median(values)), values[0], values[-1]))
        single = f"{low} to {high}" + (f" ({diverged} of {len(group)} diverged)" if diverged else "")
        cost = f"{min(record['microseconds'] for record in group):.0f}"
        rows.append([TITLES[run.task], run.label, f"{run.rate:g}", median, single, cost])
    header = ["task", "method", "rate", "reached (median)", "single runs", "µs a sample"]
    made = sorted({f"norewind {one['norewind']}, JAX {one['jax']}" for one in every})
    problems = sum(one["problem"] is not None for one in every)
    return f"{markdown(header, rows)}\n{len(every)} runs; {problems} diverged. {'; '.join(made)}.\n"


def draw(groups: Sequence[Sequence[Record]], path: Path) -> None:
    """The course of every method, with one panel for each task."""
    figure, axes = new_figure(1, 2, panel=(5.4, 3.8))
    labels = [Remembering(**group[0]["memory"]).label for group in groups]
    # A method has one color, whatever its size.
    methods = list(dict.fromkeys(label.rpartition("-")[0] for label in labels))
    for ax, task, entry in zip(axes[0], TASKS, ("bits", "lengths"), strict=True):
        for group, label in zip(groups, labels, strict=True):
            if group[0]["memory"]["task"] == task:
                shortest = min(len(record[entry]) for record in group)
                rows = np.array([record[entry][:shortest] for record in group])
                style = look(methods.index(label.rpartition("-")[0]))
                median_and_range(ax, group[0]["time"][:shortest], rows, label=label, **style)
        ax.set(xlabel="samples", ylabel=TASKS[task][2], title=TITLES[task], xlim=(0, None))
        count_axis(ax)
    level(axes[0, 0], 2.0, "chance")
    plain_log(axes[0, 1])
    axes[0, 1].yaxis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100]))
    axes[0, 1].axhspan(*PUBLISHED, color="0.85", label="KF-RTRL and OK, 128 units, as published, at 2M samples")
    legend(figure, axes.flat, columns=3)
    save(figure, path)
