"""Counts of symbols in hashed contexts, mixed bit by bit, as PAQ does."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from norewind.checks import ModelError, common_length
from norewind.chunks import scan_some
from norewind.compilation import compiled_loop
from norewind.learners.counting import contexts, symbol, tree
from norewind.learners.counting.plan import Plan
from norewind.learners.counting.symbol import CountsRun


class Counts(NamedTuple):
    """What `counts` returns: functions from run to run, compiled once per shape."""

    init: Callable[..., CountsRun]
    scan: Callable[..., tuple[CountsRun, Any]]
    forward: Callable[..., tuple[CountsRun, jax.Array]]
    plan: Plan


def counts(
    symbols: int = 256, *, members: int = 0, megabytes: float = 256, classes: Sequence[int] | np.ndarray | None = None
) -> Counts:
    """Learn a stream of symbols in one pass, in memory that is chosen beforehand.

    A symbol is predicted bit by bit. For each bit, every context (the last 0 to 6 and 8
    symbols, some of them skipped; in a text also the words and the line) has a hashed
    count, and the longest repeat found has an opinion. They are mixed in the logistic
    domain by weights that are learned online, and the result is corrected by an adaptive
    map. `members` other learners can be mixed in: their log-probabilities become those
    of bits.

    - `init() -> run` starts a run; nothing is random.
    - `scan(run, xs, targets) -> (run, losses)` learns from a chunk; the losses are in
      nats. `members=` holds, for each sample, log-probabilities (K, symbols) that depend on
      nothing after x. With `count=k` it learns from the first k samples only, with the
      same program. With `outputs=True` it returns `(run, (losses, log_probabilities))`,
      which takes many times longer. **The run that goes in is used up**: its tables are
      updated in place.
    - `forward(run, xs, count=None) -> (run, log_probabilities)` says how likely every
      symbol is to follow each x. The run that comes out has seen them, but has learned
      nothing. It shares its tables with the one that went in: once one of the two learns,
      both are used up.

    `megabytes` (of a million bytes) is how large a run may be. Every symbol fills up to two
    kilobytes of the tables, less if the stream repeats itself; when they are full, what was
    seen least gives way. A sixteenth keeps the symbols themselves, to find repeats.

    `classes` makes a text of symbols other than bytes: for each symbol 0, or 1 for the
    end of a line, or the same number from 2 for every form of a letter. See
    `norewind.learners.counting.contexts.classes_of`.

    >>> import jax.numpy as jnp
    >>> from norewind.learners.counts import counts
    >>> learner = counts(megabytes=16)
    >>> text = jnp.array(list(b"the cat sat on the mat, " * 20))
    >>> run, losses = learner.scan(learner.init(), text[:-1], text[1:])
    >>> bool(losses[:20].mean() > 3), bool(losses[-100:].mean() < 0.1)
    (True, True)
    """
    if symbols < 2:
        raise ModelError(f"counts: symbols is {symbols}, but it takes at least 2 to have something to predict.")
    if classes is None and symbols == 256:
        classes = contexts.byte_classes()
    if classes is not None and np.shape(classes) != (symbols,):
        raise ModelError(f"counts: classes has shape {np.shape(classes)}, but there are {symbols} symbols.")
    plan = symbol.planned(symbols, members, megabytes, None if classes is None else np.asarray(classes, np.int32))

    def learn(run, xs, targets, members, count, outputs):
        def one(run, inputs):
            x, target, logits, member = inputs
            run, moment = symbol.moved(plan, run, x)
            whole = symbol.log_probabilities(plan, run, moment, member) if outputs else None
            # The barrier puts every read before the first write, or XLA would copy what is written.
            run, whole = jax.lax.optimization_barrier((run, whole)) if outputs else (run, whole)
            run, loss = symbol.learned(plan, run, moment, target, logits)
            return run, (loss, whole) if outputs else loss

        logits = tree.path_logits(members, targets[:, None], plan.depth)
        return scan_some(one, run, (xs, targets, logits, members if outputs else None), count)

    def look(run, xs, members, count):
        def one(seen, inputs):
            x, member = inputs
            now, moment = symbol.moved(plan, run._replace(past=seen[0], matches=seen[1]), x)
            return (now.past, now.matches), symbol.log_probabilities(plan, run, moment, member)

        return scan_some(one, (run.past, run.matches), (xs, members), count)

    compiled_learn = compiled_loop(learn, static_argnames="outputs", donate_argnums=0)
    compiled_look = compiled_loop(look)

    def scan(run, xs, targets, *, members=None, count=None, outputs=False):
        xs, targets = _symbols("xs", xs, symbols), _symbols("targets", targets, symbols)
        length = common_length("scan", xs=xs, targets=targets)
        members = _members(members, (length, plan.members, symbols))
        return compiled_learn(run, xs, targets, members, _count("scan", count, length), outputs=outputs)

    def forward(run, xs, count=None, *, members=None):
        xs = _symbols("xs", xs, symbols)
        members = _members(members, (len(xs), plan.members, symbols))
        (past, matches), whole = compiled_look(run, xs, members, _count("forward", count, len(xs)))
        return run._replace(past=past, matches=matches), whole

    return Counts(lambda: symbol.fresh(plan), scan, forward, plan)


def _count(what: str, count, length: int):
    if isinstance(count, int) and not 0 <= count <= length:
        raise ValueError(f"{what}: count is {count}, but the chunk holds {length} samples.")
    return length if count is None else count


def _symbols(name: str, values, symbols: int) -> jax.Array:
    """Symbols as the tables need them: anything else would be read from outside of an array."""
    if not isinstance(values, Tracer):
        values = np.asarray(values)
        if not np.issubdtype(values.dtype, np.integer) or (
            values.size and not 0 <= values.min() <= values.max() < symbols
        ):
            raise ModelError(f"{name}: symbols must be whole numbers from 0 to {symbols - 1}. Look at the stream.")
    return jnp.asarray(values, jnp.int32)


def _members(members, shape: tuple[int, ...]) -> jax.Array:
    if members is None:
        members = jnp.zeros((*shape[:-2], 0, shape[-1]), jnp.float32)
    if jnp.shape(members) != shape:
        raise ModelError(
            f"members has shape {jnp.shape(members)}, but these counts were made for {shape}: (samples, members, "
            "symbols). Say how many there are: counts(members=...)."
        )
    return jnp.asarray(members, jnp.float32)
