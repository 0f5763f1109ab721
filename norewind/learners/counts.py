"""Counts of symbols in hashed contexts, mixed bit by bit, as PAQ does."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from norewind.checks import ModelError, common_length
from norewind.compilation import compiled_loop
from norewind.learner import scan_some
from norewind.learners import contexts, symbol, tree
from norewind.learners.plan import planned
from norewind.learners.symbol import CountsRun


class Counts(NamedTuple):
    """What `counts` returns: functions from run to run, compiled once per shape."""

    init: Callable[..., CountsRun]
    scan: Callable[..., tuple[CountsRun, jax.Array]]
    distribution: Callable[..., jax.Array]


def counts(
    symbols: int = 256, *, members: int = 0, tables: int = 1 << 28, history: int = 1 << 22, text: bool = True
) -> Counts:
    """Learn a stream of symbols in one pass, in memory that is chosen beforehand.

    A symbol is predicted bit by bit. For each bit, every context (the last 0 to 6 and 8
    symbols, some of them skipped; in a text also the words and the line) has a hashed
    count, and the longest repeat found has an opinion. They are mixed in the logistic
    domain by weights that are learned online, and the result is corrected by an adaptive
    map. `members` other learners can be mixed in: their log-probabilities become those
    of bits.

    - `init(key=None, classes=None) -> run` starts a run; nothing is random. `classes` says
      what each symbol is: 0, or 1 for the end of a line, or the same number from 2 for
      every form of a letter. Bytes need no classes.
    - `scan(run, xs, targets, members=None) -> (run, losses)` learns from a chunk; the
      losses are in nats. `members` holds, for each sample, log-probabilities (K, symbols)
      that depend on nothing after x. With `count=k` it learns from the first k samples
      only, with the same program; with `outputs=True` it returns `(run, (losses,
      log_probabilities))`, which costs many times more. **The run that goes in is used
      up**: its tables are updated in place.
    - `distribution(run, x, members=None)` is the log-probability of every symbol to
      follow x. The run stays as it is.

    `tables` is in bytes: rows of 64 for each context and half of a symbol, so a tenth of
    a kilobyte for each symbol of a short text and each of up to 15 contexts. `history`
    is the number of symbols among which repeats are found, a power of two.

    >>> import jax.numpy as jnp
    >>> from norewind.learners.counts import counts
    >>> learner = counts(tables=1 << 20, history=1 << 10)
    >>> text = jnp.array(list(b"the cat sat on the mat, " * 20))
    >>> run, losses = learner.scan(learner.init(), text[:-1], text[1:])
    >>> bool(losses[:20].mean() > 3), bool(losses[-100:].mean() < 0.1)
    (True, True)
    """
    if symbols < 2:
        raise ModelError(f"counts: symbols is {symbols}, but it takes at least 2 to have something to predict.")
    if history < 64 or history & (history - 1):
        raise ModelError(f"counts: history is {history}, but it must be a power of two from 64.")
    plan = planned(symbols, members, tables, text)

    def init(key=None, classes=None):
        del key
        if classes is None:
            classes = contexts.byte_classes() if text and symbols == 256 else np.zeros(symbols, np.int32)
        if np.shape(classes) != (symbols,):
            raise ModelError(f"init: classes has shape {np.shape(classes)}, but there are {symbols} symbols.")
        return symbol.fresh(plan, history, np.asarray(classes))

    def loop(run, xs, targets, members, count, outputs):
        def one(run, inputs):
            x, target, logits, member = inputs
            run, moment = symbol.moved(plan, run, x)
            whole = symbol.log_probabilities(plan, run, moment, member) if outputs else None
            run, loss = symbol.learned(plan, run, moment, target, logits)
            return run, (loss, whole) if outputs else loss

        logits = tree.path_logits(members, targets[:, None], plan.depth)
        return scan_some(one, run, (xs, targets, logits, members if outputs else None), count)

    compiled = compiled_loop(loop, static_argnames="outputs", donate_argnums=0)

    def scan(run, xs, targets, members=None, *, count=None, outputs=False):
        xs, targets = _symbols("xs", xs, symbols), _symbols("targets", targets, symbols)
        length = common_length("scan", xs=xs, targets=targets)
        members = _members(members, (length, plan.members, symbols))
        if isinstance(count, int) and not 0 <= count <= length:
            raise ValueError(f"scan: count is {count}, but the chunk holds {length} samples.")
        return compiled(run, xs, targets, members, length if count is None else count, outputs=outputs)

    @jax.jit
    def compiled_distribution(run, x, members):
        run, moment = symbol.moved(plan, run, x)
        return symbol.log_probabilities(plan, run, moment, members)

    def distribution(run, x, members=None):
        return compiled_distribution(run, _symbols("x", x, symbols), _members(members, (plan.members, symbols)))

    return Counts(init, scan, distribution)


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
