"""KF-RTRL on growing sequences at its published size: 128 units and 16 streams that share their parameters.

The paper trains a Recurrent Highway Network. Its cell has gates, which a plain tanh network (`rnn`) has not: `gru` is
the closest cell here.
"""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from examples.paper.copying import UNSCORED, Copying, Curriculum
from norewind.cells import gru, rnn, with_readout
from norewind.core.combinators import parallel
from norewind.core.losses import cross_entropy
from norewind.core.optimizers import adam
from norewind.core.run import Diverged
from norewind.estimators import kf_rtrl
from norewind.learners.online import online
from norewind.plotting.tables import markdown
from norewind.scoring.score import bits_of
from norewind.storage import checkpoint
from norewind.sweeps.record import Record, read_records, versions, write_record

# Samples of every stream between two updates of the curriculum.
PIECE = 500
# Seconds between two checkpoints.
CHECKPOINT_SECONDS = 60
# The numbers of the curve at the end of every piece.
CURVE = ("samples", "bits", "length")


class CopyingRun(NamedTuple):
    """The settings of one run.

    Attributes:
        hidden: the number of hidden units.
        streams: the number of streams.
        samples: the number of samples of each stream.
        rate: the learning rate.
        seed: the seed of the sequences, the weights and the noise.
        cell: "rnn" or "gru".
    """

    hidden: int = 128
    streams: int = 16
    samples: int = 2_000_000
    rate: float = 1e-3
    seed: int = 0
    cell: str = "rnn"

    @property
    def name(self) -> str:
        return f"kf_rtrl-{self.cell}-{self.hidden}x{self.streams}-{self.samples}-rate{self.rate:g}-seed{self.seed}"


def reproduce_copying(out: Path, runs: Iterable[CopyingRun]) -> str:
    """Train the runs that have no record yet, one after the other, and write table.md.

    Repeat the command to continue an interrupted run from its last checkpoint.

    Args:
        out: the folder for records, checkpoints and the table.
        runs: the runs.

    Returns:
        The table.
    """
    for run in runs:
        if run.name not in read_records(out):
            write_record(out, run.name, train_copying(run, out / "folders" / run.name) | versions())
    text = table(list(read_records(out).values()))
    (out / "table.md").write_text(text, encoding="utf-8")
    return text


def train_copying(settings: CopyingRun, folder: Path, stop: int | None = None) -> Record:
    """Train one run, from its last checkpoint if there is one.

    Args:
        settings: the settings of the run.
        folder: the folder of its checkpoints, which are removed at the end.
        stop: end after this number of samples of each stream, with a checkpoint, as if the run were interrupted.

    Returns:
        The record of the run.
    """

    def loss(output, target):
        return jnp.where(target < 0, 0.0, cross_entropy(output, jnp.maximum(target, 0)))

    streams = [Copying(letters=2, length=1, seed=settings.seed * settings.streams + i) for i in range(settings.streams)]
    symbols = streams[0].symbols
    recurrent = {"rnn": rnn, "gru": gru}[settings.cell](symbols, settings.hidden, symbols)
    cell = with_readout(recurrent, symbols, symbols, hidden=64)
    learner = online(parallel(kf_rtrl(cell.transition, loss), settings.streams), adam(settings.rate))
    keys = jax.random.split(jax.random.key(settings.seed))
    state = jnp.stack([cell.initial_state()] * settings.streams)
    run = learner.init(cell.init(keys[0]), state, keys[1])
    curriculum, curve, seconds = Curriculum(streams[0]), [], 0.0
    if saved := checkpoint.checkpoints(folder):
        run, extra = checkpoint.load(saved[-1], like=run)
        for stream, position in zip(streams, extra["streams"], strict=True):
            stream.restore(position)
        curriculum.smoothed, curve, seconds = extra["smoothed"], extra["curve"], extra["seconds"]

    def save() -> None:
        positions = [stream.position() for stream in streams]
        spent = seconds + time.process_time() - began
        extra = {"streams": positions, "smoothed": curriculum.smoothed, "curve": curve, "seconds": spent}
        checkpoint.save(folder, int(run.samples), run, extra=extra)

    began, last, problem = time.process_time(), time.monotonic(), None
    end = settings.samples if stop is None else stop
    for done in range(len(curve) * PIECE + PIECE, end + 1, PIECE):
        xs, targets = (np.stack(parts, axis=1) for parts in zip(*(s.take(PIECE)[:2] for s in streams), strict=True))
        try:
            run, _, outputs = learner.scan(run, xs, targets, outputs=True, carry_limit=1e6)
        except Diverged as error:
            problem = f"{error} (piece that ends at {done:,})"
            break
        scored = targets != UNSCORED
        bits = float(bits_of(np.asarray(outputs)[scored])[np.arange(scored.sum()), targets[scored]].mean())
        curriculum.add(bits)
        for stream in streams:
            stream.length = streams[0].length
        curve.append([done, bits, int(streams[0].length)])
        if time.monotonic() - last > CHECKPOINT_SECONDS:
            save()
            last = time.monotonic()
    if stop is not None:
        save()
    else:
        for path in checkpoint.checkpoints(folder):
            path.unlink()
    facts = {"copying": settings._asdict(), "problem": problem, "seconds": seconds + time.process_time() - began}
    return facts | {name: list(values) for name, values in zip(CURVE, zip(*curve, strict=True), strict=True)}


def table(records: list[dict[str, Any]]) -> str:
    """Return a Markdown table: one line per run.

    Args:
        records: the records of the runs.
    """
    rows = []
    for record in records:
        run, lengths = CopyingRun(**record["copying"]), record["length"]
        done, reached = record["samples"][-1], record["samples"][lengths.index(lengths[-1])]
        cost = f"{1e6 * record['seconds'] / (done * run.streams):.1f}"
        end = record["problem"] or f"{record['bits'][-1]:.2f}"
        size = f"{run.cell}, {run.hidden} × {run.streams}"
        rows.append([size, f"{run.rate:g}", run.seed, f"{done:,}", lengths[-1], f"{reached:,}", end, cost])
    header = ["cell, units × streams", "rate", "seed", "samples of each", "length reached", "after", "bits at the end"]
    return markdown([*header, "CPU µs per sample"], rows) + "\n"
