"""Checks of models and data that users pass, made while tracing, before anything is compiled.

Every message names the path in the tree and says what to do.
"""

import reprlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from norewind.core.trees import Tree, named_leaves
from norewind.errors import NorewindError

INPUT, TARGET = "input", "target"
ADVICE = {INPUT: "Make the cell with more inputs.", TARGET: "Give the model more outputs."}


class ModelError(NorewindError, ValueError):
    """Raised when a model, its parameters or its data break the contract of an estimator."""


def check_params_and_state(params: Tree, state: Tree) -> None:
    """Check that the parameters are floating, and that parameters and state consist of arrays and numbers.

    Args:
        params: the parameters; every leaf must be a floating array or number.
        state: the state; every leaf must be an array or a number, of any dtype but float16.

    Raises:
        ModelError: a leaf has the wrong type or dtype.
    """
    for path, leaf in named_leaves("params", params):
        if not _is_array_or_number(leaf):
            raise ModelError(
                f"{path} is a {type(leaf).__name__}, not an array. Keep only trainable arrays in the parameters, and "
                "everything else in the transition, e.g. with equinox.partition(module, equinox.is_inexact_array)."
            )
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            raise ModelError(
                f"{path} has dtype {jnp.result_type(leaf)}, but parameters are trained by gradients and must be "
                "floating. Convert it (.astype(float)), or move it into the state, which may hold any dtype."
            )
    for path, leaf in named_leaves("state", state):
        if not _is_array_or_number(leaf):
            raise ModelError(f"{path} is a {type(leaf).__name__}, not an array. Convert it with jax.numpy.asarray.")
    for path, leaf in [*named_leaves("params", params), *named_leaves("state", state)]:
        if jnp.result_type(leaf) == jnp.float16:
            raise ModelError(
                f"{path} has dtype float16, in which small values that methods and optimizers need underflow to zero. "
                "Use bfloat16, which takes no more memory, or float32."
            )


def check_arrays(name: str, tree: Tree) -> None:
    """Check that samples consist of arrays and numbers.

    Args:
        name: the name of the tree in messages, such as `"x"`.
        tree: the input or the target.

    Raises:
        ModelError: a leaf is something else.
    """
    for path, leaf in named_leaves(name, tree):
        if not _is_array_or_number(leaf):
            raise ModelError(
                f"{path} is {reprlib.repr(leaf)}, not a number or an array. "
                "Symbols and categories are integers, starting at 0."
            )


def check_model(transition: Any, loss: Any) -> None:
    """Check that a transition and a loss are functions.

    Args:
        transition: called as `transition(params, state, x)`.
        loss: called as `loss(output, target)`.

    Raises:
        ModelError: one of them cannot be called.
    """
    if not callable(transition):
        is_cell = hasattr(transition, "transition")
        remedy = "Pass cell.transition" if is_cell else "It is called as transition(params, state, x)"
        raise ModelError(f"the transition is {_kind(transition)}, not a function. {remedy}.")
    if not callable(loss):
        remedy = "It is called as loss(output, target), like norewind.losses.cross_entropy"
        raise ModelError(f"the loss is {_kind(loss)}, not a function. {remedy}.")


def check_run(caller: str, value: Any, kind: type | tuple[type, ...]) -> None:
    """Check that a learner was given a run.

    Args:
        caller: the name of the function that was called, for the message.
        value: the object to check.
        kind: the types that count as a run.

    Raises:
        ModelError: `value` is something else.
    """
    if not isinstance(value, kind):
        hint = " (pass on the first entry of what step or scan returned)" if isinstance(value, tuple) else ""
        hint = " (call its unpack())" if hasattr(value, "unpack") else hint
        raise ModelError(
            f"{caller} takes a run, as returned by learner.init(params, state, key), not {_kind(value)}{hint}."
        )


def check_transition_result(result: Any, state: Tree) -> tuple[Tree, Tree]:
    """Check that a transition returned a pair whose state has the structure, shapes and dtypes of the old state.

    Args:
        result: the value that the transition returned.
        state: the state before the step.

    Returns:
        The new state and the output.

    Raises:
        ModelError: the result is not a pair, or the state has changed its form.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        raise ModelError(f"the transition returned {_kind(result)}, but it must return a pair: (new_state, output).")
    new_state, output = result
    before, after = jax.tree.structure(state), jax.tree.structure(new_state)
    if before != after:
        raise ModelError(
            f"the transition changes the structure of the state{_first_difference(state, new_state)}: it got "
            f"{before} and returned {after}. Return a new state with the same structure."
        )
    for (path, old), new in zip(named_leaves("state", state), jax.tree.leaves(new_state), strict=True):
        if jnp.shape(old) != jnp.shape(new):
            raise ModelError(
                f"the transition changes the shape of {path} from {jnp.shape(old)} to {jnp.shape(new)}. Give the "
                "initial state the shape that the transition returns, and check for missing or extra axes."
            )
        if jnp.result_type(old) != jnp.result_type(new):
            raise ModelError(
                f"the transition changes the dtype of {path} from {jnp.result_type(old)} to "
                f"{jnp.result_type(new)}. Start from a state of that dtype, or cast in the transition (.astype)."
            )
    return new_state, output


def check_loss_result(value: Any) -> jax.Array:
    """Check that a loss returned one real floating number.

    Args:
        value: the value that the loss returned.

    Returns:
        The loss as a scalar array.

    Raises:
        ModelError: it is something else.
    """
    if not hasattr(value, "dtype") and not isinstance(value, float):
        raise ModelError(f"the loss returned {_kind(value)}, but it must return one floating number: a scalar array.")
    if jnp.shape(value) != ():
        raise ModelError(f"the loss has shape {jnp.shape(value)}, not (). Reduce it, e.g. with jax.numpy.sum.")
    if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        raise ModelError(f"the loss has dtype {jnp.result_type(value)}, not a real float. Cast it (.astype(float)).")
    return jnp.asarray(value)


def common_length(
    caller: str,
    *,
    entries: str = "sample",
    remedy: str = "Every input needs one target: cut both to the same leading length.",
    **trees: Tree,
) -> int:
    """Return the length of the leading axis that all leaves of all trees share.

    Args:
        caller: the name of the function that was called, for the message.
        entries: the name of one entry along the axis: a sample or a stream.
        remedy: the advice at the end of the message.
        **trees: the trees, by their names in messages.

    Returns:
        The common length.

    Raises:
        ModelError: a leaf is a scalar, the lengths differ, or there is no leaf.
    """
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(trees)]
    if shapes and all(shapes) and all(shape[0] == shapes[0][0] for shape in shapes):
        return shapes[0][0]
    # Naming the leaves takes longer than learning from a row, so it is done only for a message.
    first: tuple[str, int] | None = None
    for name, tree in trees.items():
        for path, leaf in named_leaves(name, tree):
            if jnp.ndim(leaf) == 0:
                raise ModelError(
                    f"{caller}: {path} is a scalar, but needs one entry per {entries}. Stack them with jax.numpy.stack."
                )
            length = jnp.shape(leaf)[0]
            if first is None:
                first = path, length
            elif length != first[1]:
                raise ModelError(f"{caller}: {first[0]} has length {first[1]} but {path} has length {length}. {remedy}")
    raise ModelError(f"{caller}: there is no array to take the length from. Pass at least one array of samples.")


def check_estimator(caller: str, value: Any) -> None:
    """Check that an object has the functions of an estimator.

    Args:
        caller: the name of the function that was called, for the message.
        value: the object to check.

    Raises:
        ModelError: it has no `init` or `step`.
    """
    if not hasattr(value, "init") or not hasattr(value, "step"):
        raise ModelError(f"{caller} takes an estimator, such as norewind.uoro(transition, loss), not {_kind(value)}.")


def check_in_range(kind: str, symbols: Any, size: int, caller: str = "", advice: str | None = None) -> None:
    """Reject symbols outside 0 to size − 1. Traced values are unknown, and pass.

    Args:
        kind: `INPUT` or `TARGET`.
        symbols: one integer or an array of them.
        size: the number of symbols that the model knows.
        caller: the name of the function that was called, for the message.
        advice: what to do about it, for the message; by default, advice about a cell.

    Raises:
        ModelError: a symbol is out of range.
    """
    if isinstance(symbols, Tracer):
        return
    values = np.asarray(symbols)
    low, high = (values.min(), values.max()) if values.size else (0, 0)
    if low < 0 or high >= size:
        wrong = low if low < 0 else high
        start = f"{caller}: " if caller else ""
        remedy = ADVICE[kind] if advice is None else advice
        raise ModelError(f"{start}{kind} {wrong} is out of range: this model takes 0 to {size - 1}. {remedy}")


def check_count(caller: str, count: Any, length: int) -> None:
    """Check the number of steps of a chunk that are to be used. A traced one is unknown, and passes.

    Args:
        caller: the name of the function that was called, for the message.
        count: the number of steps; None for all.
        length: the number of steps in the chunk.

    Raises:
        ValueError: there are not that many.
    """
    if isinstance(count, int | np.integer) and not 0 <= count <= length:
        raise ValueError(f"{caller}: count is {count}, but the length of the chunk is {length}.")


def check_at_least_one(name: str, number: Any) -> None:
    """Check that a number is a whole number above 0.

    Args:
        name: the name of the number in the message.
        number: the number to check.

    Raises:
        ModelError: it is something else.
    """
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise ModelError(f"{name} must be a whole number, not {number!r}.")
    if number < 1:
        raise ModelError(f"{name} must be at least 1, not {number}.")


def _is_array_or_number(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") or isinstance(leaf, bool | int | float | complex)


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple | list) else "")


def _first_difference(before: Tree, after: Tree) -> str:
    """Return the first path that is in one of two trees only."""
    old, new = ([path for path, _ in named_leaves("state", tree)] for tree in (before, after))
    missing = [f" (it does not return {path})" for path in old if path not in new]
    added = [f" ({path} is new)" for path in new if path not in old]
    return [*missing, *added, ""][0]
