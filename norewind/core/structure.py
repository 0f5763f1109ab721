"""The properties that a model can declare about itself, for methods that need more than a black box."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.interpreters import partial_eval

from norewind.core.checks import ModelError
from norewind.core.estimator import Transition, sample_counter
from norewind.core.replacing import call, calls_of, with_replacement
from norewind.core.trees import Tree, named_leaves
from norewind.core.units import components_of, for_each_leaf, shared_leaf

# The purpose of each declaration that a method may require, for messages.
PURPOSES = {
    "units": "to know which unit each weight feeds",
    "memory": "to know each unit's memory cell",
    "output_units": "output units that are part of the state",
    "layer": "an affine layer that contains all weights",
}

# Which units read which: "own" if none reads another, or a function that returns a boolean matrix (see `declare`).
Reads = Literal["own"] | Callable[[Tree], np.ndarray]
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
        reads: which units read which: "own" if no unit reads another, or a function that returns a boolean matrix.
        mixing: the model with another product between its units.
        layer: the affine layer that contains all weights of the recurrence.
        sizes: the number of inputs and of outputs.
        entries: the unit that each entry of the state belongs to.
    """

    units: Callable[[Tree], Tree] | None = None
    memory: Callable[[Tree], jax.Array] | None = None
    output_units: tuple[int, ...] | None = None
    reads: Reads | None = None
    mixing: Callable[[Product], Transition] | None = None
    layer: Layer | None = None
    sizes: tuple[int, int] | None = None
    entries: Callable[[Tree], Tree] | None = None

    @property
    def elementwise(self) -> bool:
        """Whether no unit reads another."""
        return isinstance(self.reads, str)


@dataclass(frozen=True)
class DeclaredTransition:
    """A transition together with its declarations."""

    transition: Transition
    structure: Structure

    def __call__(self, params: Tree, state: Tree, x: Tree) -> tuple[Tree, Tree]:
        return call(self, self.transition, params, state, x)

    @property
    def samples(self) -> Callable[[Tree], int]:
        return sample_counter(self.transition)


def declare(
    transition: Transition,
    *,
    units: Callable[[Tree], Tree] | None = None,
    memory: Callable[[Tree], jax.Array] | None = None,
    output_units: tuple[int, ...] | None = None,
    reads: Reads | None = None,
    mixing: Callable[[Product], Transition] | None = None,
    layer: Layer | None = None,
    sizes: tuple[int, int] | None = None,
    entries: Callable[[Tree], Tree] | None = None,
    like: Transition | None = None,
) -> Transition:
    """Attach declarations about a model to its transition, for the methods that need them.

    `norewind.testing.check_structure` compares a declaration with the model.

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`.
        units: `units(params)` is the unit that each weight feeds, as in an affine layer, z = W a and s' = f(z, s) unit
            by unit. It is a tree like the parameters, with integer arrays that broadcast to each leaf, and None for the
            leaves (or subtrees) that do not reach the state at all, such as a readout. An array with one more axis than
            its leaf is for weights shared by several units: its leading axis lists all units that each weight feeds.
            Every floating leaf of the state must have one entry per unit, in the same shape, unless `entries` says
            otherwise; units are counted along that shape (in C order).
        memory: `memory(state)` is the leaf of the state that is the memory cell of an LSTM: given the rest of the
            state, entry i of its new value depends on no entry of its old value but entry i.
        output_units: the positions in the state of the units that are the output, in order.
        reads: which units read which. `"own"` is for a model whose units do not read one another: the new entries of a
            unit depend on the old state only through the entries of the same unit, so that a trace of each weight's
            influence on the units that it feeds is the whole influence. For a sparse model, `reads(state)` is a boolean
            matrix that is true in row i and column j if new entries of unit i depend on old entries of unit j. By
            default, every unit may read all others.
        mixing: `mixing(product)` is the same model with `product(W, v)` in place of every W @ v through which its units
            read one another. With a product that lets no derivative pass between units, the model is elementwise. Its
            units are those declared here, unless the model that `mixing` returns declares its own.
        layer: the affine layer z = W a through which all weights reach the state (see `Layer`).
        sizes: the number of inputs and of outputs. If x is a symbol, or the target a label of `cross_entropy`, learners
            reject those out of range.
        entries: `entries(state)` is the unit that each entry of the state belongs to, if a unit has several entries in
            one leaf, such as a row of a matrix: a tree like the state, with integer arrays that broadcast to each
            floating leaf (None for other leaves). Every unit must have the same number of entries.
        like: a transition with declarations that this one wraps: it takes the same parameters and state, and calls
            `like` once. All declarations of `like` that are not given here are kept.

    Returns:
        The same transition, with the declarations.

    Raises:
        ModelError: `like` declares nothing.

    >>> import jax.numpy as jnp, norewind
    >>> def transition(params, state, x):
    ...     state = jnp.tanh(params["w"] @ state + params["b"] * x)
    ...     return state, params["out"] @ state
    >>> rows = jnp.arange(4)
    >>> declared = norewind.declare(transition, units=lambda params: {"w": rows[:, None], "b": rows, "out": None})
    >>> estimator = norewind.estimators.nobacktrack(declared, norewind.losses.squared_error)
    """
    given = Structure(units, memory, output_units, reads, mixing, layer, sizes, entries)
    if like is None:
        return DeclaredTransition(transition, given)
    kept = _structure_of_wrapper(transition, like)
    changed = {name: part for name, part in given._asdict().items() if part is not None}
    return DeclaredTransition(transition, kept._replace(**changed))


def _structure_of_wrapper(wrapped: Transition, inner: Transition) -> Structure:
    """The declarations of a transition that calls another one: those of the inner one, seen from outside."""
    declared = structure_of(inner)
    if not any(part is not None for part in declared):
        raise ModelError("declare: `like` declares nothing. Pass a transition with declarations, e.g. cell.transition.")
    new: dict[str, Any] = {}
    if (mixing := declared.mixing) is not None:

        def mixed(product):
            elementwise = mixing(product)
            return declare(with_replacement(wrapped, inner, elementwise), units=structure_of(elementwise).units)

        new["mixing"] = mixed
    if (layer := declared.layer) is not None:

        def inputs(params, state, x):
            return layer.inputs(*calls_of(wrapped, inner, params, state, x))

        new["layer"] = layer._replace(inputs=inputs)
    return declared._replace(**new)


def structure_of(transition: Transition) -> Structure:
    """Return the declarations of a transition.

    Args:
        transition: any transition.

    Returns:
        Its declarations; all are None for a transition without any.
    """
    return getattr(transition, "structure", Structure())


def wrap_declared(
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
        mixing=mixing and (lambda product: wrap_declared(mixing(product), around, get, put)),
        layer=layer and Layer(put_in(layer.rows), put_in(layer.inputs), lambda params: layer.bias(get(params))),
        sizes=sizes,
    )
    return DeclaredTransition(around(inner), outer)


def with_product(transition: Transition, product: Product) -> Transition:
    """Replace the product between the units of a model.

    Args:
        transition: a transition that declares `mixing`.
        product: a product that lets no derivative pass between units.

    Returns:
        The model with this product, declared as elementwise.
    """
    declared = structure_of(transition)
    assert declared.mixing is not None
    elementwise = declared.mixing(product)
    units = structure_of(elementwise).units or declared.units
    return declare(elementwise, units=units, reads="own", entries=declared.entries)


def reads_of(declared: Structure, state: Tree, size: int) -> np.ndarray:
    """Return which units read which, as a boolean matrix.

    Args:
        declared: the declarations of the model.
        state: a state, of which only the shapes are used.
        size: the number of units.

    Raises:
        ModelError: the declared matrix has another shape.
    """
    if declared.reads is None or isinstance(declared.reads, str):
        return np.eye(size, dtype=bool) if declared.elementwise else np.ones((size, size), bool)
    with jax.ensure_compile_time_eval():
        reads = np.asarray(declared.reads(state), bool)
    if reads.shape != (size, size):
        raise ModelError(f"The declared reads have shape {reads.shape}, but the model has {size} units.")
    return reads


def require_declarations(caller: str, use: str, transition: Transition, *names: str) -> list[Any]:
    """Get the declarations that a method needs.

    Args:
        caller: the name of the method, for the message.
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
            f"{caller} needs {' and '.join(PURPOSES[name] for name in missing)}, and this model does not declare "
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


def checked_units(caller: str, transition: Transition, params: Tree, state: Tree, x: Tree) -> Tree:
    """Return the declared unit of every weight, after checking that no weight that reaches the state lacks one.

    Args:
        caller: the name of the method, for the message.
        transition: one step of the model.
        params: the parameters.
        state: a state, of which only the shapes are used.
        x: the input.

    Returns:
        The units, as `declare` takes them.

    Raises:
        ModelError: the declaration is missing or incomplete.
    """
    (units,) = require_declarations(caller, "a cell where every weight feeds one unit", transition, "units")
    index = units(params)
    if missing := unfed_leaf(index, transition, params, state, x):
        raise ModelError(
            f"{caller}: params{missing} reaches the state, but the model declares no unit that its weights feed "
            "(weights shared by several units have none). Use a model without it, or a method for any model, such as "
            "uoro."
        )
    return index


def checked_single_units(caller: str, transition: Transition, params: Tree, state: Tree, x: Tree) -> Tree:
    """Return the `checked_units`, for methods that need one unit per weight, and one entry per unit and leaf.

    Args:
        caller: the name of the method, for the message.
        transition: one step of the model.
        params: the parameters.
        state: a state, whose leaves are checked.
        x: the input.

    Returns:
        The units, as `declare` takes them.

    Raises:
        ModelError: the declaration is missing or incomplete, or there are several units per weight or entries per unit.
    """
    index = checked_units(caller, transition, params, state, x)
    if structure_of(transition).entries is not None:
        raise ModelError(f"{caller} needs units with one entry in each leaf of the state, but this model has several.")
    if place := shared_leaf(index, params):
        raise ModelError(f"{caller} needs weights that feed one unit each, but params{place} feeds several units.")
    components_of(caller, None, state)
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
    return next((path for path, is_missing in named_leaves("", missing) if is_missing), None)
