"""Compiled learning loops over a chunk of samples or windows."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from norewind.core.estimator import Estimate
from norewind.core.run import Run, Update
from norewind.core.trees import Tree, all_finite, norm, strong, where
from norewind.engines.compilation import compiled_loop

# The input, the target, and a newer input to answer (or None).
Sample = tuple[Tree, Tree, Tree]


def unchecked_step(update: Update, run: Run, sample: Sample) -> tuple[tuple[Run], jax.Array, Tree]:
    """Advance a run by one sample, without checking for numbers that are not finite.

    Args:
        update: the estimator with the optimizer.
        run: the run before the sample.
        sample: the input, the target, and a newer input to answer (or None).

    Returns:
        `(run,)`, the loss and the output.
    """
    run, estimate, output = _advance(update, run, sample)
    return (run,), estimate.loss, output


def flagging_step(update: Update, run: Run, sample: Sample) -> tuple[tuple[Run], jax.Array, Tree]:
    """Do an `unchecked_step`, but return a loss of NaN if the gradient is not finite, which clipping could hide."""
    run, estimate, output = _advance(update, run, sample)
    return (run,), jnp.where(jnp.isfinite(norm(estimate.grad)), estimate.loss, jnp.nan), output


def gradients_persist(opt_state: Tree) -> bool:
    """Return whether a gradient that is not finite still shows in the optimizer's state after later steps.

    Adam's moments hold every gradient. So if the optimizer begins with Adam, no `flagging_step` is needed, which takes
    half as long again as an `unchecked_step` of a small network.

    Args:
        opt_state: the state of an optax optimizer.
    """
    while type(opt_state) is tuple and opt_state:
        opt_state = opt_state[0]
    return isinstance(opt_state, optax.ScaleByAdamState)


def skipping_step(update: Update, run: Run, sample: Sample) -> tuple[tuple[Run], jax.Array, Tree]:
    """Do an `unchecked_step`, but leave the run unchanged if a number is not finite."""
    x, target, newest = sample
    run, estimate, _ = update.advance_if_finite(run, x, target)
    new, output = _answer(update, run, newest, estimate.output)
    kept = new if newest is None else where(_ahead_is_finite(run, new), new, run)
    return (kept,), estimate.loss, output


def stopping_step(
    update: Update, run: Run, finite_so_far: jax.Array, sample: Sample
) -> tuple[tuple[Run, jax.Array], jax.Array, Tree]:
    """Advance a run by one sample while everything is finite, and leave it unchanged from then on.

    Args:
        update: the estimator with the optimizer.
        run: the run before the sample.
        finite_so_far: whether everything has been finite so far.
        sample: as for `unchecked_step`.

    Returns:
        `(run, finite_so_far)`, the loss and the output.
    """
    x, target, newest = sample
    new, estimate, finite = update.advance_if_finite(run, x, target)
    new, output = _answer(update, new, newest, estimate.output)
    finite_so_far = finite_so_far & finite & _ahead_is_finite(run, new)
    return (where(finite_so_far, new, run), finite_so_far), estimate.loss, output


def _advance(update: Update, run: Run, sample: Sample) -> tuple[Run, Estimate, Tree]:
    """Learn from a sample, and answer its newest input."""
    x, target, newest = sample
    run, estimate = update.advance(run, x, target)
    run, output = _answer(update, run, newest, estimate.output)
    return run, estimate, output


def _answer(update: Update, run: Run, newest: Tree, output: Tree) -> tuple[Run, Tree]:
    """Answer the newest input, if there is one; otherwise keep `output` as the answer."""
    if newest is None:
        return run, output
    ahead, output = update.transition(run.params, run.ahead, newest)
    return run._replace(ahead=strong(ahead)), output


def loop_of(update: Update, one_step: Callable) -> Callable:
    """Compile a loop of one of the steps above over the leading axis of its inputs, including resets.

    Args:
        update: the estimator with the optimizer.
        one_step: `unchecked_step`, `flagging_step`, `skipping_step` or `stopping_step`.

    Returns:
        A function of `(loop, inputs, count, outputs)`. It returns the loop's final carry, and the losses and the
        outputs (None without `outputs`).
    """

    def chunk(loop, inputs, count, outputs):
        def body(loop, inputs):
            x, target, when, newest = inputs
            run, *rest = loop
            if when is not None:
                run = update.reset(run, when)
            loop, loss, output = one_step(update, run, *rest, (x, target, newest))
            return loop, (loss, output if outputs else None)

        return jax.lax.scan(body, loop, inputs) if count is None else scan_some(body, loop, inputs, count)

    return compiled_loop(chunk, static_argnames="outputs")


def scan_some(body, carry, inputs, count):
    """Do `jax.lax.scan` over the first `count` entries, where `count` need not be known when compiling.

    Args:
        body: the function of the loop, as for `jax.lax.scan`.
        carry: the initial carry.
        inputs: inputs along a leading axis.
        count: the number of entries to use.

    Returns:
        The final carry, and the outputs, which are zeros beyond `count`.
    """

    def entry(i):
        return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(jnp.asarray(leaf), i, keepdims=False), inputs)

    def write(i, carry_and_outputs):
        carry, outputs = carry_and_outputs
        carry, output = body(carry, entry(i))
        outputs = jax.tree.map(lambda all, one: jax.lax.dynamic_update_index_in_dim(all, one, i, 0), outputs, output)
        return carry, outputs

    # Traced once, for its shapes and for the loop.
    body = jax.jit(body, inline=True)
    length = jax.tree.leaves(inputs)[0].shape[0]
    shapes = jax.eval_shape(body, carry, jax.eval_shape(entry, 0))[1]
    empty = jax.tree.map(lambda one: jnp.zeros((length, *one.shape), one.dtype), shapes)
    return jax.lax.fori_loop(0, count, write, (carry, empty))


@jax.jit
def chunk_is_finite(before: Run, after: Run, losses: Tree) -> jax.Array:
    """Return whether all numbers of a chunk were finite.

    One check after the chunk is enough, because a number that is not finite persists in the
    run; checking every gradient would be one more pass over the parameters in every
    step. A state that was not finite from the start may be so on purpose.

    Args:
        before: the run before the chunk.
        after: the run after it.
        losses: its losses, and other arrays to check.
    """
    state_is_finite = all_finite(after.state) | ~all_finite((before.state, before.initial_state))
    return all_finite((losses, after.params, after.carry)) & state_is_finite & _ahead_is_finite(before, after)


def _ahead_is_finite(before: Run, after: Run) -> jax.Array:
    if after.ahead is None:
        return jnp.array(True)
    return all_finite(after.ahead) | ~all_finite((before.ahead, before.initial_state))
