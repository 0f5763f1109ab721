"""Compiled learning loops over a chunk of samples or windows, and the checks before and after them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from norewind.core import checks, losses
from norewind.core.combinators import StreamsLoss, WindowLoss
from norewind.core.estimator import Loss, Model
from norewind.core.run import Nonfinite, Run, Update, latest_state_is_finite
from norewind.core.structure import structure_of
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
            x, target, when, latest = inputs
            if when is not None:
                run = update.reset(run, when)
            run, estimate, finite = update.step(run, x, target, latest, nonfinite=nonfinite)
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
def chunk_is_finite(before: Run, after: Run, results: Tree) -> jax.Array:
    """Return whether all numbers of a chunk were finite.

    One check after the chunk is enough, because a number that is not finite persists in the
    run; checking every gradient would be one more pass over the parameters in every
    step. A state that was not finite from the start may be so on purpose.

    Args:
        before: the run before the chunk.
        after: the run after it.
        results: its losses, and other arrays to check.
    """
    state_is_finite = all_finite(after.state) | ~all_finite((before.state, before.initial_state))
    return all_finite((results, after.params, after.carry)) & state_is_finite & latest_state_is_finite(before, after)


class SymbolCheck:
    """A check of symbols and labels against the sizes that a model's cell declares, and against its loss.

    It is made before the compiled loop runs: compiled code cannot raise, and an index beyond the end of an array would
    read the nearest entry.

    Args:
        model: the model that reads them.
    """

    def __init__(self, model: Model):
        sizes = structure_of(model.transition).sizes
        self._inputs, outputs = sizes or (None, None)
        self._targets = outputs if _one_sample_loss(model.loss) is losses.cross_entropy else None

    def check(self, caller: str, xs: Tree, targets: Tree = None, count: int | None = None) -> tuple[int | None, ...]:
        """Reject symbols and labels out of range.

        Args:
            caller: the name of the function that was called, for the message.
            xs: one input or an array of inputs.
            targets: one target or an array of targets.
            count: check only the first `count` entries of an array; None for all.

        Returns:
            The number of input symbols and of labels that the model knows; None for anything that is not an integer or
            an array of integers.

        Raises:
            ModelError: a symbol or a label is out of range.
        """
        sizes = []
        for kind, size, part in ((checks.INPUT, self._inputs, xs), (checks.TARGET, self._targets, targets)):
            size = size if _are_symbols(part) else None
            # A single symbol is checked without NumPy's functions, which take longer than the call itself.
            if size is not None and not (np.ndim(part) == 0 and 0 <= int(part) < size):
                checks.check_in_range(kind, np.asarray(part)[:count] if np.ndim(part) else part, size, caller)
            sizes.append(size)
        return tuple(sizes)


def _are_symbols(part: Tree) -> bool:
    if isinstance(part, Tracer):
        return False
    return type(part) is int or (hasattr(part, "dtype") and jnp.issubdtype(part.dtype, jnp.integer))


def _one_sample_loss(loss: Loss) -> Loss:
    """Return the loss of one sample inside the loss of a window or of many streams."""
    while isinstance(loss, StreamsLoss | WindowLoss):
        loss = loss.loss
    return loss
