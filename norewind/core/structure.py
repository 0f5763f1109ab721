"""The properties that a model can declare about itself, for methods that need more than a black box."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from norewind.core.checks import ModelError
from norewind.core.estimator import Transition, samples_of
from norewind.core.trees import Tree, named_leaves, real_leaves

# The purpose of each declaration that a method may require, for messages.
PURPOSES = {
    "units": "to know which unit each weight feeds",
    "memory": "to know each unit's memory cell",
    "output_units": "output units that are part of the state",
    "layer": "an affine layer that contains all weights",
}

# `product(W, v)`: the product of a matrix with a vector, or a replacement for it.
Product = Callable[[jax.Array, jax.Array], jax.Array]


class Layer(NamedTuple):
    """An affine layer z = W a that contains all weights of the recurrence. See `declare`.

    Attributes:
        rows: `rows(params)` is the entry of z that each weight feeds, in the form of `units` (see `declare`).
        inputs: `inputs(params, state, x)` is the factor that each weight is multiplied by. It is a tree like the
            parameters with arrays that broadcast to each leaf (None where `rows` has None), the same for every row.
        bias: `bias(params)` is the leaf that is added to z.
    """

    rows: Callable[[Tree], Tree]
    inputs: Callable[[Tree, Tree, Tree], Tree]
    bias: Callable[[Tree], jax.Array]


class Structure(NamedTuple):
    """The declarations of a model, each optional. See `declare`.

    Attributes:
        units: the unit that each weight feeds.
        memory: the leaf of the state that is the memory cell.
        output_units: the positions of the output units in the state.
        elementwise: True if no unit reads another.
        mixing: the model with another product between its units.
        layer: the affine layer that contains all weights of the recurrence.
        sizes: the number of inputs and of outputs.
    """

    units: Callable[[Tree], Tree] | None = None
    memory: Callable[[Tree], jax.Array] | None = None
    output_units: tuple[int, ...] | None = None
    elementwise: bool | None = None
    mixing: Callable[[Product], Transition] | None = None
    layer: Layer | None = None
    sizes: tuple[int, int] | None = None


@dataclass(frozen=True)
class DeclaredTransition:
    """A transition together with its declarations."""

    transition: Transition
    structure: Structure

    def __call__(self, params: Tree, state: Tree, x: Tree) -> tuple[Tree, Tree]:
        return self.transition(params, state, x)

    @property
    def samples(self) -> Callable[[Tree], int]:
        return samples_of(self.transition)


def declare(
    transition: Transition,
    *,
    units: Callable[[Tree], Tree] | None = None,
    memory: Callable[[Tree], jax.Array] | None = None,
    output_units: tuple[int, ...] | None = None,
    elementwise: bool | None = None,
    mixing: Callable[[Product], Transition] | None = None,
    layer: Layer | None = None,
    sizes: tuple[int, int] | None = None,
) -> Transition:
    """Attach declarations about a model to its transition, for the methods that need them.

    `norewind.testing.check_structure` compares a declaration with the model.

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`.
        units: `units(params)` is the unit that each weight feeds, for a model where every weight feeds one unit only,
            as in an affine layer, z = W a and s' = f(z, s) unit by unit. It is a tree like the parameters, with integer
            arrays that broadcast to each leaf, and None for the leaves (or subtrees) that do not reach the state at
            all, such as a readout. Every floating leaf of the state must be a vector with one entry per unit.
        memory: `memory(state)` is the leaf of the state that is the memory cell of an LSTM: given the rest of the
            state, entry i of its new value depends on no entry of its old value but entry i.
        output_units: the positions in the state of the units that are the output, in order.
        elementwise: True for a model whose units do not read one another: every floating leaf of the state is a vector
            with one entry per unit, and entry i of its new value depends on the old state through the entries i of its
            leaves only. A trace of each weight's influence on its own unit is then the whole influence.
        mixing: `mixing(product)` is the same model with `product(W, v)` in place of every W @ v through which its units
            read one another. With a product that lets no derivative pass between units, the model is elementwise. Its
            units are those declared here, unless the model that `mixing` returns declares its own.
        layer: the affine layer z = W a through which all weights reach the state (see `Layer`).
        sizes: the number of inputs and of outputs. If x is a symbol, or the target a label of `cross_entropy`, learners
            reject those out of range.

    Returns:
        The same transition, with the declarations.

    >>> import jax.numpy as jnp, norewind
    >>> def transition(params, state, x):
    ...     state = jnp.tanh(params["w"] @ state + params["b"] * x)
    ...     return state, params["out"] @ state
    >>> rows = jnp.arange(4)
    >>> declared = norewind.declare(transition, units=lambda params: {"w": rows[:, None], "b": rows, "out": None})
    >>> estimator = norewind.estimators.nobacktrack(declared, norewind.losses.squared_error)
    """
    return DeclaredTransition(transition, Structure(units, memory, output_units, elementwise, mixing, layer, sizes))


def structure_of(transition: Transition) -> Structure:
    """Return the declarations of a transition.

    Args:
        transition: any transition.

    Returns:
        Its declarations; all are None for a transition without any.
    """
    return getattr(transition, "structure", Structure())


def declared_around(
    inner: Transition, around: Callable, get: Callable, put: Callable, sizes: tuple[int, int] | None = None
) -> Transition:
    """Wrap a transition, and pass on its declarations, except for the output units (the output is a different one).

    Args:
        inner: the transition to wrap.
        around: makes the outer transition from the inner one.
        get: `get(params)` returns the inner parameters.
        put: `put(tree)` turns a tree like the inner parameters into one like the outer parameters, with None for the
            rest, which must not reach the state.
        sizes: the number of inputs and of outputs of the outer transition.

    Returns:
        `around(inner)`, with the declarations of `inner`.
    """
    declared = structure_of(inner)

    def put_in(function):
        return function and (lambda params, *rest: put(function(get(params), *rest)))

    mixing, layer = declared.mixing, declared.layer
    outer = declared._replace(
        units=put_in(declared.units),
        output_units=None,
        mixing=mixing and (lambda product: declared_around(mixing(product), around, get, put)),
        layer=layer and Layer(put_in(layer.rows), put_in(layer.inputs), lambda params: layer.bias(get(params))),
        sizes=sizes,
    )
    return DeclaredTransition(around(inner), outer)


def mixed_by(transition: Transition, product: Product) -> Transition:
    """Replace the product between the units of a model.

    Args:
        transition: a transition that declares `mixing`.
        product: a product that lets no derivative pass between units.

    Returns:
        The model with this product, declared as elementwise.
    """
    declared = structure_of(transition)
    assert declared.mixing is not None
    alone = declared.mixing(product)
    return declare(alone, units=structure_of(alone).units or declared.units, elementwise=True)


def required(who: str, use: str, transition: Transition, *names: str) -> list[Any]:
    """Get the declarations that a method needs.

    Args:
        who: the name of the method, for the message.
        use: a cell that has the declarations, for the message.
        transition: the transition of the model.
        *names: the names of the declarations.

    Returns:
        The declarations, in the same order.

    Raises:
        ModelError: some of them are missing.
    """
    structure = structure_of(transition)
    missing = [name for name in names if getattr(structure, name) is None]
    if missing:
        keywords = ", ".join(f"{name}=..." for name in missing)
        raise ModelError(
            f"{who} needs {' and '.join(PURPOSES[name] for name in missing)}, and this model does not declare "
            f"{' and '.join(missing)}. Use {use}, or norewind.declare(transition, {keywords}) for your own model."
        )
    return [getattr(structure, name) for name in names]


def reaches_state(transition: Transition, params: Tree, state: Tree, x: Tree) -> Tree:
    """Find out for every leaf of the parameters whether the new state can depend on it at all.

    The answer is derived from the program of the transition, not from numbers: False is a proof.

    Args:
        transition: one step of the model.
        params: the parameters.
        state: a state, of which only the shapes are used.
        x: the input.

    Returns:
        A tree of booleans, like the parameters.
    """
    program = jax.make_jaxpr(lambda params, state, x: transition(params, state, x)[0])(params, state, x).jaxpr
    _, used = partial_eval.dce_jaxpr(program, [True] * len(program.outvars))
    leaves, structure = jax.tree.flatten(params)
    return jax.tree.unflatten(structure, used[: len(leaves)])


def covered_units(who: str, transition: Transition, params: Tree, state: Tree, x: Tree) -> Tree:
    """Return the declared unit of every weight, after checking that no weight that reaches the state lacks one.

    Args:
        who: the name of the method, for the message.
        transition: one step of the model.
        params: the parameters.
        state: a state, of which only the shapes are used.
        x: the input.

    Returns:
        The units, as `declare` takes them.

    Raises:
        ModelError: the declaration is missing or incomplete.
    """
    (units,) = required(who, "a cell where every weight feeds one unit", transition, "units")
    index = units(params)
    if missing := unfed_leaf(index, transition, params, state, x):
        raise ModelError(
            f"{who}: params{missing} reaches the state, but the model declares no unit that its weights feed "
            "(weights shared by several units have none). Use a model without it, or a method for any model, such as "
            "uoro."
        )
    return index


def declared_units(who: str, transition: Transition, params: Tree, state: Tree, x: Tree) -> Tree:
    """Return the `covered_units`, for methods that also need one number per unit in every floating leaf of the state.

    Args:
        who: the name of the method, for the message.
        transition: one step of the model.
        params: the parameters.
        state: a state, whose leaves are checked.
        x: the input.

    Returns:
        The units, as `declare` takes them.

    Raises:
        ModelError: the declaration is missing or incomplete, or a floating leaf of the state is not a vector.
    """
    index = covered_units(who, transition, params, state, x)
    for place, leaf in named_leaves("state", real_leaves(state)):
        if jnp.ndim(leaf) != 1:
            raise ModelError(
                f"{who}: {place} has shape {jnp.shape(leaf)}, but a model that declares units keeps one number per "
                "unit in every floating leaf of its state. Make it a vector."
            )
    return index


def unfed_leaf(index: Tree, transition: Transition, params: Tree, state: Tree, x: Tree) -> str | None:
    """Return the path of the first leaf of the parameters that reaches the state but has no declared unit.

    Args:
        index: the declared units.
        transition: one step of the model.
        params: the parameters.
        state: a state, of which only the shapes are used.
        x: the input.

    Returns:
        The path, or None if there is no such leaf.
    """
    unfed = for_each_leaf(lambda units, leaf: units is None, index, params)
    missing = jax.tree.map(lambda a, b: a and b, unfed, reaches_state(transition, params, state, x))
    return next((place for place, is_missing in named_leaves("", missing) if is_missing), None)


def for_each_leaf(function: Callable, index: Tree, params: Tree) -> Tree:
    """Call a function for every leaf of the parameters, together with its declared units.

    Args:
        function: called as `function(units, leaf)`; `units` may be None.
        index: the declared units, where one None may stand for a whole subtree.
        params: the parameters.

    Returns:
        The results, as a tree like the parameters.
    """

    def subtree(units, below):
        return jax.tree.map(lambda leaf: function(units, leaf), below)

    return jax.tree.map(subtree, index, params, is_leaf=lambda units: units is None)


def per_weight(index: Tree, values: jax.Array, params: Tree) -> Tree:
    """Return for every weight the value of the unit that it feeds; 0 if it feeds none.

    Args:
        index: the declared units.
        values: one value per unit.
        params: the parameters.

    Returns:
        A tree like the parameters, whose arrays broadcast to each leaf.
    """

    def one_leaf(units, leaf):
        # JAX 0.10 keeps a 64-bit constant as it was when first seen, even after x64 is turned on or off: use 32 bits.
        value = jnp.zeros(()) if units is None else values[jnp.asarray(units, jnp.int32)]
        return value.astype(jnp.result_type(leaf))

    return for_each_leaf(one_leaf, index, params)


def sum_per_unit(index: Tree, weights: Tree, size: int) -> jax.Array:
    """Return for every unit the sum over the weights that feed it.

    Args:
        index: the declared units.
        weights: the numbers to add up, as a tree like the parameters.
        size: the number of units.

    Returns:
        A vector with one sum per unit.
    """

    def one_leaf(units, leaf):
        if units is None:
            return jnp.zeros(size, leaf.dtype)
        units = jnp.asarray(units)
        units = units.reshape((1,) * (leaf.ndim - units.ndim) + units.shape)
        # Sum first along the axes where all weights feed the same unit, which is most of the work.
        shared = tuple(axis for axis in range(leaf.ndim) if units.shape[axis] == 1)
        sums = jnp.sum(leaf, axis=shared, keepdims=True)
        return jax.ops.segment_sum(sums.reshape(-1), jnp.broadcast_to(units, sums.shape).reshape(-1), size)

    return reduce(jnp.add, jax.tree.leaves(for_each_leaf(one_leaf, index, weights)))
