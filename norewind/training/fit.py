"""The loop: from a stream through a learner, with metrics, checkpoints and a way to stop."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from norewind import checks
from norewind.learner import Learner, Run
from norewind.streams.stream import Samples, StreamError
from norewind.training.early import Early
from norewind.training.keeper import Keeper
from norewind.training.logs import Log
from norewind.training.scores import PlainScore
from norewind.training.tally import Tally
from norewind.training.watch import Watch
from norewind.training.windows import StreamLike, as_steps, count_of
from norewind.trees import is_differentiable, norm

CHUNK = 4_000
"""Samples in one call of the compiled loop at most. A call costs as much as forty samples of a GRU of 64 units."""
WORK = CHUNK * 50_000
"""Samples times the numbers in a run: a large model gets shorter chunks, so that it stops as soon as a small one."""
SHORTEST_CHUNK = 100


class Fitted(NamedTuple):
    """How a call of `fit` ended: the run, the samples it has seen, and whether the stream was at its end."""

    run: Run
    samples: int
    ended: bool


def fit(
    stream: StreamLike,
    learner: Learner,
    run: Run,
    *,
    memory: int = 1,
    samples: int | None = None,
    folder: Path | str | None = None,
    metrics_every: int = 10_000,
    checkpoint_every: int | None = 100_000,
    checkpoint_seconds: float | None = None,
    keep: int = 3,
    on_metrics: Callable[[dict[str, Any]], None] = lambda line: None,
    on_checkpoint: Callable[[Path], None] = lambda path: None,
    on_chunk: Callable[[int, float], None] = lambda samples, loss: None,
    on_predictions: Callable[[int, Samples, np.ndarray], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    patience: float | None = None,
    score: Any = None,
    watch: bool = True,
    logs: Sequence[Log] = (),
    about: dict[str, Any] | None = None,
) -> Fitted:
    """Train on a stream until it ends, or up to so many samples in all; in a folder, so that nothing is ever lost.

    The stream is an iterable of (x, target) pairs, one of `norewind.streams`, or a
    function that opens one at a position (None for the start). `memory` is the window of
    the learner's estimator: so many samples make one step.

    Every `metrics_every` samples, `on_metrics` gets a line of metrics: `samples`, the mean
    `loss` since the last line and the `mean` from the start, the norm of the `carry`, and
    `seconds`. With a folder, lines are appended to metrics.jsonl there, and every
    `checkpoint_every` samples (or `checkpoint_seconds`), and at the end, a checkpoint is
    written, of which the `keep` newest stay; `on_checkpoint` gets its path. Called again
    with the same folder, `fit` goes on from the newest one exactly: as if it had never
    been interrupted, bit for bit. An iterable must then give the same pairs again from
    the start.

    A run that diverges raises `NonFiniteError` or `Diverged` and leaves the last good
    checkpoint in place; `watch=False` only looks for numbers that are not finite.

    >>> import jax, norewind, optax
    >>> cell = norewind.cells.gru(inputs=3, hidden=8, outputs=3)
    >>> estimator = norewind.uoro(cell.transition, norewind.losses.cross_entropy)
    >>> learner = norewind.online(estimator, optax.adam(1e-2))
    >>> run = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    >>> pairs = ((i % 3, (i + 1) % 3) for i in range(4_000))
    >>> losses = []
    >>> fitted = fit(pairs, learner, run, metrics_every=1_000, on_metrics=lambda line: losses.append(line["loss"]))
    >>> fitted.samples, len(losses), losses[-1] < losses[0]
    (4000, 4, True)
    """
    counts = {"memory": memory, "metrics_every": metrics_every, "checkpoint_every": checkpoint_every, "keep": keep}
    for what, number in counts.items():
        if number is not None:
            checks.at_least_one(f"fit: {what}", number)
    score = score or PlainScore()
    chunk = chunk_steps(run, memory)
    with Keeper(None if folder is None else Path(folder), keep, on_checkpoint) as keeper:
        run, extra = keeper.restore(run, logs)
        steps = as_steps(stream, memory, extra.get("position"))
        tally, watcher = Tally(extra.get("tally")), Watch(extra.get("watch"))
        early = Early(learner, steps, extra.get("answered", 0))
        earlier, began = extra.get("seconds", 0.0), time.perf_counter()
        saved_at, saved_when = json.dumps(extra.get("position")), began

        def seconds():
            return round(earlier + time.perf_counter() - began, 3)

        def save():
            nonlocal saved_at, saved_when
            position = steps.position()
            saved_at, saved_when = json.dumps(position), time.perf_counter()
            entries = {
                **(about or {}),
                "seconds": seconds(),
                "position": position,
                "answered": early.answered,
                "tally": tally.entries(),
                "score": score.entries(),
                "watch": watcher.entries(),
            }
            keeper.save(tally.samples, run, entries)

        def report():
            line = {**tally.take(), **score.take(), "carry": _size(run.carry), "seconds": seconds()}
            if steps.stream.counts:
                line["skipped"] = dict(steps.stream.counts)
            keeper.write(line)
            on_metrics(line)
            return line

        def answer_early():
            """With patience comes a promise: whatever has come is answered when it is over."""
            if on_predictions is not None and patience is not None:
                place = tally.samples + early.answered + 1
                if new := early.answer(run):
                    on_predictions(place, *new)

        def steps_until(every: int | None) -> int:
            """How many steps it is to the next multiple of so many samples, at least one."""
            return chunk if every is None else -(-(every - tally.samples % every) // memory)

        ended = False
        while not should_stop():
            left = chunk if samples is None else (samples - tally.samples) // memory
            if left < 1:
                break
            wanted = min(chunk, left, steps_until(metrics_every), steps_until(checkpoint_every))
            try:
                taken = steps.take(wanted, patience)
            except StreamError:
                # All before the bad input was learned from: that is worth keeping.
                if tally.samples and json.dumps(steps.position()) != saved_at:
                    save()
                raise
            if taken is None:
                ended = True
                break
            before, count = tally.samples, count_of(taken)
            if count == 0:
                answer_early()
                continue
            run, seen = learner.scan(
                run, *steps.windows(taken, chunk), count=count // memory, outputs=on_predictions is not None
            )
            losses = seen if on_predictions is None else seen[0]
            losses = np.asarray(losses, np.float64)[: count // memory] * score.scale
            tally.add(losses, count, score.add(taken))
            if on_predictions is not None:
                place = before + early.answered + 1
                on_predictions(place, *early.rest(taken, steps.flat(seen[1], count)))
            on_chunk(tally.samples, float(losses.sum()) / count)

            def passed(every: int | None, before: int = before) -> bool:
                return every is not None and tally.samples // every > before // every

            if passed(metrics_every):
                line = report()
                if watch:
                    watcher.see(line)
            late = checkpoint_seconds is not None and time.perf_counter() - saved_when > checkpoint_seconds
            # What looks like the beginning of a divergence must not push the good checkpoints out.
            if (passed(checkpoint_every) or late) and (watcher.healthy or not watch):
                save()
            answer_early()
        # Samples that wait for their window count too: a stream that continues does not send them again.
        if json.dumps(steps.position()) != saved_at or not keeper.has_checkpoint:
            save()
        keeper.wait()
        # After the checkpoint: a run that goes on later takes this line back and fills the interval.
        if not should_stop() and tally.interval[0]:
            report()
        return Fitted(run, tally.samples, ended)


def chunk_steps(run: Run, memory: int) -> int:
    """Steps in one call of the compiled loop: enough to hide what a call costs, few enough to stop soon."""
    numbers = sum(leaf.size for leaf in jax.tree.leaves(run))
    return max(1, min(CHUNK, max(SHORTEST_CHUNK, WORK // numbers)) // memory)


@jax.jit
def _norm(tree):
    return norm(eqx.filter(tree, is_differentiable))


def _size(carry: Any) -> float | None:
    value = float(_norm(carry))
    return float(f"{value:.6g}") if np.isfinite(value) else None
