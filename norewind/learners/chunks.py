"""Compiled learning loops over a chunk of samples or windows."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from norewind.core.run import Nonfinite, Run, Update, newest_state_is_finite
from norewind.core.trees import Tree, all_finite
from norewind.engines.compilation import compiled_loop


def gradients_persist(opt_state: Tree) -> bool:
    """Return whether a gradient that is not finite still shows in the optimizer's state after later steps.

    Adam's moments hold every gradient. So if the optimizer begins with Adam, no step needs to be marked, which takes
    half as long again for a small network.

    Args:
        opt_state: the state of an optax optimizer.
    """
    while type(opt_state) is tuple and opt_state:
        opt_state = opt_state[0]
    return isinstance(opt_state, optax.ScaleByAdamState)


def loop_of(update: Update, nonfinite: Nonfinite) -> Callable:
    """Compile a loop of `Update.step` over the leading axis of its inputs, including resets.

    Args:
        update: the estimator with the optimizer.
        nonfinite: see `Update.step`.

    Returns:
        A function of `(run, inputs, count, outputs)`. It returns the final run, the losses, the outputs (None without
        `outputs`), and which steps were finite (None if that is not checked).
    """

    def chunk(run, inputs, count, outputs):
        def body(run, inputs):
            x, target, when, newest = inputs
            if when is not None:
                run = update.reset(run, when)
            run, estimate, finite = update.step(run, x, target, newest, nonfinite=nonfinite)
            return run, (estimate.loss, estimate.output if outputs else None, finite)

        run, results = jax.lax.scan(body, run, inputs) if count is None else scan_some(body, run, inputs, count)
        return run, *results

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
    return all_finite((losses, after.params, after.carry)) & state_is_finite & newest_state_is_finite(before, after)
