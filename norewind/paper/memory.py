"""Long memory: letters to be repeated after a pause, and sequences that grow as they are learned."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from norewind import names
from norewind.runs.progress import Progress
from norewind.runs.record import Record, record_path, records_of, versions, write_record
from norewind.runs.workers import Workers

RATES = (1e-3, 3e-3)
SEEDS = 2
POINTS = 50
PIECE = 1_000
"""Samples between two looks of the curriculum; fewer for a large model, whose chunks are shorter."""


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
"""Task, method, cell and hidden units."""
LENGTHS = {"pause": 1_000_000, "grow": 2_000_000}


def tries(samples: int | None = None) -> list[Remembering]:
    """Every kind with every rate and the first seed."""
    return [
        Remembering(task=task, method=method, cell=cell, hidden=hidden, samples=samples or LENGTHS[task], rate=rate)
        for task, method, cell, hidden in KINDS
        for rate in RATES
    ]


def repeats(found: Mapping[str, Record], samples: int | None = None, seeds: int = SEEDS) -> list[Remembering]:
    """Every kind with the best of its rates and the other seeds."""
    best: dict[Any, Remembering] = {}
    for run in tries(samples):
        other = best.get(run.kind)
        if run.name in found and (other is None or _worth(found[run.name]) > _worth(found[other.name])):
            best[run.kind] = run
    return [replace(run, seed=seed) for seed in range(1, seeds) for run in best.values()]


def _worth(record: Record) -> float:
    """What a run reached, the more the better: the length of its sequences, or how far it is below chance."""
    if record["problem"]:
        return -np.inf
    return record["lengths"][-1] if record["memory"]["task"] == "grow" else -late_bits(record)


def late_bits(record: Record) -> float:
    """The mean loss per letter in the last tenth of a run."""
    return float(np.mean(record["bits"][-POINTS // 10 :]))


def memory_records(plan: Sequence[Remembering], out: Path) -> dict[str, Record]:
    return records_of(plan, out, "memory")


def run_memory(
    plan: Sequence[Remembering], out: Path, jobs: int | None = None, ray: str | None = None
) -> dict[str, Record]:
    """Train every run that has no record yet, several at the same time, and return the records of all.

    `jobs` and `ray` are those of `sweep`. Runs have no checkpoints: one whose process is killed begins again.
    """
    finished = memory_records(plan, out)
    waiting = [run for run in plan if run.name not in finished]
    if waiting:
        with Progress(max(2, len(waiting))) as progress:
            tasks = {run.name: (run, out, out / "folders" / run.name) for run in waiting}
            Workers(_work, progress, jobs, ray).run(tasks)
    return memory_records(plan, out)


def _work(name: str, run: Remembering, out: Path, folder: Path) -> str:
    """Train one run in its own process, write its record, and say how it ended."""
    record = train(run)
    write_record(record_path(out, name), record)
    if record["problem"]:
        return record["problem"]
    return f"length {record['lengths'][-1]}" if run.task == "grow" else f"{late_bits(record):.3f} bits per letter"


def train(run: Remembering) -> Record:
    """One run, from its settings to its record."""
    import jax

    from norewind.run import NonFiniteError
    from norewind.runs.fit import Hooks, Intervals, fit
    from norewind.runs.scores import bits_of
    from norewind.tasks.copying import UNSCORED, Copying, Curriculum

    grows = run.task == "grow"
    stream = (
        Copying(letters=2, length=1, seed=run.seed)
        if grows
        else Copying(letters=4, length=2, pause=(50, 100), seed=run.seed)
    )
    curriculum, pieces, began, problem = Curriculum(stream), [], time.perf_counter(), None
    learner, start, window = _learner(run, stream.symbols, jax.random.key(run.seed))

    def look(first, samples, outputs):
        scored = samples.targets != UNSCORED
        losses = bits_of(outputs[scored])[np.arange(scored.sum()), samples.targets[scored]]
        pieces.append((losses.sum(), losses.size, stream.length, first + len(scored) - 1))
        if grows and losses.size:
            curriculum.add(losses.mean())

    # A line of metrics also ends a chunk, and so a piece.
    every, clock = Intervals(metrics_every=PIECE // window * window, checkpoint_every=None), time.process_time()
    total = run.samples // window * window
    try:
        hooks = Hooks(predictions=look)
        fit(stream, learner, start, window=window, samples=total, intervals=every, watch=False, hooks=hooks)
    except NonFiniteError as error:
        problem = f"not finite after {int(error.run.samples):,} samples"
    sums, counts, lengths, ends = (np.array(part) for part in zip(*pieces, strict=True))
    groups = np.array_split(np.arange(len(pieces)), POINTS)
    return {
        "memory": asdict(run),
        **versions(),
        "seconds": round(time.perf_counter() - began, 2),
        "microseconds": round(1e6 * (time.process_time() - clock) / total, 1),
        "problem": problem,
        "time": [int(ends[group[-1]]) for group in groups if len(group)],
        "bits": [float(f"{sums[g].sum() / max(1, counts[g].sum()):.5g}") for g in groups if len(g)],
        "lengths": [int(lengths[g][-1]) for g in groups if len(g)],
    }


def _learner(run: Remembering, symbols: int, key):
    import jax
    import jax.numpy as jnp

    from norewind.cells import with_readout
    from norewind.learner import online
    from norewind.losses import cross_entropy
    from norewind.optimizers import adam

    def loss(output, target):
        return jnp.where(target < 0, 0.0, cross_entropy(output, jnp.maximum(target, 0)))

    keys = jax.random.split(key)
    cell = with_readout(names.cell(run.cell)(symbols, run.hidden, symbols), symbols, symbols, hidden=64)
    method = names.parse_method(run.method)
    learner = online(method.make(cell.transition, loss, np.int32(0)), adam(run.rate))
    return learner, learner.init(cell.init(keys[0]), cell.initial_state(), keys[1]), method.window
