"""Checks of what users pass, made while tracing, before anything is compiled.

Every message names the place in the tree and says what to do.
"""

import reprlib
from typing import Any

import jax
import jax.numpy as jnp

from norewind.trees import Tree, named_leaves


class ModelError(TypeError, ValueError):
    """A model, its parameters or its data break the contract of an estimator."""


def parameters_and_state(params: Tree, state: Tree) -> None:
    """Every leaf of the parameters must be a floating array or number, every leaf of the state an array or number."""
    for place, leaf in named_leaves("params", params):
        if not _is_array_or_number(leaf):
            raise ModelError(
                f"{place} is a {type(leaf).__name__}, not an array. Keep only what is trained in the parameters, and "
                "everything else in the transition, e.g. with equinox.partition(module, equinox.is_inexact_array)."
            )
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            raise ModelError(
                f"{place} has dtype {jnp.result_type(leaf)}, but parameters are trained by gradients and must be "
                "floating. Convert it (.astype(float)), or move it into the state, which may hold any dtype."
            )
    for place, leaf in named_leaves("state", state):
        if not _is_array_or_number(leaf):
            raise ModelError(f"{place} is a {type(leaf).__name__}, not an array. Convert it with jax.numpy.asarray.")
    for place, leaf in [*named_leaves("params", params), *named_leaves("state", state)]:
        if jnp.result_type(leaf) == jnp.float16:
            raise ModelError(
                f"{place} has dtype float16, in which small numbers that methods and optimizers need are zero. Use "
                "bfloat16, which is as small, or float32."
            )


def arrays(what: str, tree: Tree) -> None:
    """What is learned from must be arrays and numbers."""
    for place, leaf in named_leaves(what, tree):
        if not _is_array_or_number(leaf):
            raise ModelError(
                f"{place} is {reprlib.repr(leaf)}, not a number or an array. "
                "Symbols and categories are integers, from 0 on."
            )


def model(transition: Any, loss: Any) -> None:
    """A transition and a loss must be functions."""
    if not callable(transition):
        is_cell = hasattr(transition, "transition")
        remedy = "Pass cell.transition" if is_cell else "It is called as transition(params, state, x)"
        raise ModelError(f"the transition is {_kind(transition)}, not a function. {remedy}.")
    if not callable(loss):
        remedy = "It is called as loss(output, target), like norewind.losses.cross_entropy"
        raise ModelError(f"the loss is {_kind(loss)}, not a function. {remedy}.")


def not_swapped(params: Tree, state: Tree, transition: Any) -> None:
    """Refuse parameters and state in the wrong order. (In our cells, only parameters are matrices.)"""
    single = getattr(transition, "transition", transition)
    single = getattr(single, "transition", single)
    if not getattr(single, "__module__", "").startswith("norewind.cells."):
        return
    if _has_matrix(state) and not _has_matrix(params):
        raise ModelError("init: the parameters and the state are swapped. Call init(params, state, key).")


def run(what: str, value: Any, kind: type | tuple[type, ...]) -> None:
    if not isinstance(value, kind):
        hint = " (step and scan return a pair: pass on its first entry)" if isinstance(value, tuple) else ""
        hint = " (call its unpack())" if hasattr(value, "unpack") else hint
        raise ModelError(
            f"{what} takes a run, as learner.init(params, state, key) returns it, not {_kind(value)}{hint}."
        )


def transition_result(result: Any, state: Tree) -> tuple[Tree, Tree]:
    """A transition must return (new_state, output), with the structure, shapes and dtypes of the state unchanged."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise ModelError(f"the transition returned {_kind(result)}, but it must return a pair: (new_state, output).")
    new_state, output = result
    before, after = jax.tree.structure(state), jax.tree.structure(new_state)
    if before != after:
        raise ModelError(
            f"the transition changes the structure of the state{_first_difference(state, new_state)}: it got "
            f"{before} and returned {after}. Return a new state with the same structure."
        )
    for (place, old), new in zip(named_leaves("state", state), jax.tree.leaves(new_state), strict=True):
        if jnp.shape(old) != jnp.shape(new):
            raise ModelError(
                f"the transition changes the shape of {place} from {jnp.shape(old)} to {jnp.shape(new)}. Give the "
                "initial state the shape that the transition returns, and check for missing or extra axes."
            )
        if jnp.result_type(old) != jnp.result_type(new):
            raise ModelError(
                f"the transition changes the dtype of {place} from {jnp.result_type(old)} to "
                f"{jnp.result_type(new)}. Start from a state of that dtype, or cast in the transition (.astype)."
            )
    return new_state, output


def loss_result(value: Any) -> jax.Array:
    if not hasattr(value, "dtype") and not isinstance(value, float):
        raise ModelError(f"the loss returned {_kind(value)}, but it must return one floating number: a scalar array.")
    if jnp.shape(value) != ():
        raise ModelError(f"the loss has shape {jnp.shape(value)}, not (). Reduce it, e.g. with jax.numpy.sum.")
    if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        raise ModelError(f"the loss has dtype {jnp.result_type(value)}, not a real float. Cast it (.astype(float)).")
    return jnp.asarray(value)


def common_length(
    what: str,
    *,
    entries: str = "sample",
    remedy: str = "Every input needs one target: cut both to the same leading length.",
    **trees: Tree,
) -> int:
    """The length of the leading axis that all leaves of all the trees share, with one entry per sample or stream."""
    first: tuple[str, int] | None = None
    for name, tree in trees.items():
        for place, leaf in named_leaves(name, tree):
            if jnp.ndim(leaf) == 0:
                raise ModelError(
                    f"{what}: {place} is a scalar, but needs one entry per {entries}: stack them with jax.numpy.stack."
                )
            length = jnp.shape(leaf)[0]
            if first is None:
                first = place, length
            elif length != first[1]:
                raise ModelError(f"{what}: {first[0]} has length {first[1]} but {place} has length {length}. {remedy}")
    if first is None:
        raise ModelError(f"{what}: there is no array to take the length from. Pass at least one array of samples.")
    return first[1]


def estimator(what: str, value: Any) -> None:
    if not hasattr(value, "init") or not hasattr(value, "step"):
        raise ModelError(f"{what} takes an estimator, such as norewind.uoro(transition, loss), not {_kind(value)}.")


def at_least_one(what: str, number: Any) -> None:
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise ModelError(f"{what} must be a whole number, not {number!r}.")
    if number < 1:
        raise ModelError(f"{what} must be at least 1, not {number}.")


def _is_array_or_number(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") or isinstance(leaf, bool | int | float | complex)


def _has_matrix(tree: Tree) -> bool:
    return any(jnp.ndim(leaf) > 1 for leaf in jax.tree.leaves(tree))


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple | list) else "")


def _first_difference(before: Tree, after: Tree) -> str:
    """The first path that only one of two trees has."""
    old, new = ([place for place, _ in named_leaves("state", tree)] for tree in (before, after))
    missing = [f" (it does not return {place})" for place in old if place not in new]
    added = [f" ({place} is new)" for place in new if place not in old]
    return [*missing, *added, ""][0]
