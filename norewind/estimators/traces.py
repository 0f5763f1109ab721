"""Traces: methods that keep, for each weight, its influence on its own unit: SnAp-1, RFLO and the LSTM of 1997."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from norewind.core import estimator, structure
from norewind.core.checks import ModelError
from norewind.core.estimator import Estimate, Estimator, Influence, Linearisation, Loss, Model, Transition
from norewind.core.products import cut_product, own_product
from norewind.core.trees import Tree, real_leaves
from norewind.core.units import (
    Units,
    by_component,
    colours_of,
    components_of,
    init_trace,
    per_weight,
    positions_of,
    select_colour,
)

# One trace for every component of the state (each number that a unit keeps): a tree like the parameters, with None for
# leaves that feed no unit. Weights that feed several units have one trace for each, along a leading axis.
Traces = tuple[Tree, ...]


def snap1(transition: Transition, loss: Loss) -> Estimator:
    """SnAp-1: RTRL in which the influence of every weight on units other than its own is set to zero.

    At every step, with J = ∂s'/∂s, I = ∂s'/∂θ, and a mask that is one where a weight
    meets the entries of the state of the unit that it feeds,

        g = ∂ℓ/∂s · G + ∂ℓ/∂θ
        G ← mask ⊙ (J G + I)

    starting from zero. Within a step (or a window of steps) the gradient is that of the
    whole model; only the influence carried to the next one is masked. A unit may have
    several entries, such as h and c of an LSTM: a weight then has a trace for each.

    Exact for elementwise recurrences (`declare(reads="own")`), where the mask removes
    only zeros. Biased for others: the influence that passes from unit to unit between
    steps is dropped. In `cells.gru` with the reset gate before the product, a unit's gate
    reaches other units within the step, and that is also dropped.

    Time: one evaluation of the model, and 1 + k reverse derivatives, where k is the number of
    entries of a unit; O(1) per weight. Bytes carried: k sets of parameters (without the
    readout). Needs a model that declares which unit each weight feeds, and that is elementwise
    or declares how its units mix (`norewind.declare` with `units`, and `reads="own"` or `mixing`).

    Reference: Menick et al., A Practical Sparse Approximation for Real Time Recurrent
    Learning (2020).

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`, or a window of steps.
        loss: the loss of one step or window, `loss(output, target)`, a scalar.

    Returns:
        The estimator.

    Raises:
        ModelError: the model does not declare its units and how they mix.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.lstm(inputs=3, hidden=4, outputs=3, embedding=False)
    >>> estimator = norewind.estimators.snap1(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> [trace["recurrent"].shape for trace in carry]
    [(16, 4), (16, 4)]
    """
    model = estimator.model_of(transition, loss)
    return traces_estimator("snap1", model, without_cross_terms("snap1", transition), model)


def rflo(transition: Transition, loss: Loss) -> Estimator:
    """RFLO: a trace per weight that follows the leak of its own unit and ignores the recurrent weights.

    For leaky units h' = (1 − α) h + α φ(W a), with δ = ∂ℓ/∂h',

        B ← (1 − α) B + α φ' aᵀ               g = diag(δ) B

    starting from zero. In general, it is the gradient of each loss with the state treated as
    a constant wherever a recurrent weight multiplies it. The leak is the factor by which the
    model itself keeps a unit's state (1 − z in a GRU, the forget gate of an LSTM's cell, where
    this is close to `lstm97`). A model without one, such as `cells.elman`, carries nothing.

    Biased: everything that passes through recurrent weights is dropped, including the
    influence of a unit on itself, which `snap1` keeps. The error is propagated back through the
    readout's own weights, where the paper also considers fixed random ones.

    Time: one evaluation of the model, and 1 + k reverse derivatives, where k is the number of
    entries of a unit; O(1) per weight. Bytes carried: k sets of parameters (without the
    readout). Needs a model that declares which unit each weight feeds and how its units mix
    (`norewind.declare` with `units` and `mixing`). For an elementwise model, which has no
    recurrent matrix, it is exact.

    Reference: Murray, Local online learning in recurrent networks with random feedback
    (2019).

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`.
        loss: the loss of one step, `loss(output, target)`, a scalar.

    Returns:
        The estimator.

    Raises:
        ModelError: the model does not declare its units and how they mix.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.reservoir(inputs=3, hidden=20, outputs=3, leak=0.1)
    >>> estimator = norewind.estimators.rflo(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> state, carry, estimate = estimator.step(params, state, carry, jnp.array(0), jnp.array(2))
    >>> jax.tree.structure(estimate.grad) == jax.tree.structure(params)
    True
    """
    elementwise = without_cross_terms("rflo", transition, cut_product)
    model, gradient_model = estimator.model_of(transition, loss), estimator.model_of(elementwise, loss)
    return traces_estimator("rflo", model, elementwise, gradient_model)


def lstm97(transition: Transition, loss: Loss) -> Estimator:
    """The gradient of the 1997 LSTM: cut at the recurrent input of every gate, exact along the memory cell.

    Every weight w, which feeds one unit i, has one trace E_w of its influence on the
    memory cell c_i. With every other part of the old state held constant,

        g_w = ∂ℓ/∂c_i · E_w + ∂ℓ/∂w
        E_w ← (∂c'_i/∂c_i) E_w + ∂c'_i/∂w

    starting from zero. It is the gradient of each loss through the old memory cell, but
    not through the rest of the old state (h). It is also known as e-prop.

    Biased: the influence that passes from unit to unit through h is dropped. Time: one
    evaluation of the model and two reverse derivatives, O(1) per weight. Bytes carried: one
    set of parameters (without the readout). Needs a model that declares which unit each
    weight feeds and which leaf of its state is the memory cell (`norewind.declare` with
    `units` and `memory`), such as `cells.lstm(..., embedding=False)`: all units share an
    embedding, which would need one trace per unit and weight.

    Reference: Hochreiter & Schmidhuber, Long Short-Term Memory (1997), appendix A.1.

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`.
        loss: the loss of one step, `loss(output, target)`, a scalar.

    Returns:
        The estimator.

    Raises:
        ModelError: the model does not declare `units` and `memory`.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.lstm(inputs=3, hidden=4, outputs=3, embedding=False)
    >>> estimator = norewind.estimators.lstm97(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> carry["recurrent"].shape == params["recurrent"].shape, carry["readout"]
    (True, {'bias': None, 'weight': None})
    """
    use = "cells.lstm(..., embedding=False)"
    declared, memory_of = structure.require_declarations("lstm97", use, transition, "units", "memory")
    model = estimator.model_of(transition, loss)

    def init(params, state):
        return init_trace(declared(params), params)

    def product(params, row, trace):
        return along_traces(Units(declared(params)), memory_of(row), (trace,), params)

    def advance(params, state, trace, x, point):
        # Each entry of the new memory cell depends on its own entry of the old one and on its own
        # weights, so the derivative of their sum contains all the derivatives, each in its place.
        leaves = real_leaves(point.state)
        ones = jax.grad(lambda leaves: jnp.sum(memory_of(leaves)))(leaves)  # in the memory, and zeros elsewhere
        row, immediate = point.pull_back(ones)
        return next_trace(immediate, product(params, row, trace), trace)

    def step(params, state, carry, x, target):
        structure.checked_single_units("lstm97", transition, params, state, x)
        point = estimator.linearise(model, params, state, x, target)
        # The cut: of ∂ℓ/∂s, only the part of the memory cell is used.
        grad = influence.gradient(params, point, carry)
        return point.state, advance(params, state, carry, x, point), Estimate(point.loss, grad, point.output)

    influence = Influence(init, advance, product)
    return Estimator.build(lambda params, state, key: init(params, state), step, model, influence=influence)


def without_cross_terms(caller: str, transition: Transition, product: structure.Product = own_product) -> Transition:
    """The same model with its derivatives between units removed, so that each unit depends only on itself.

    Args:
        caller: the name of the method, for the message.
        transition: one step of the model.
        product: replaces every W @ v through which units read one another; it has the same values.

    Returns:
        A transition with the same values; the given one if its units do not read one another anyway.

    Raises:
        ModelError: the model does not declare enough about its units.
    """
    declared = structure.structure_of(transition)
    if declared.elementwise and declared.units is not None:
        return transition
    if declared.mixing is None:
        raise ModelError(
            f"{caller} needs to know how each unit depends on itself alone, and this model declares neither "
            "elementwise (with units) nor mixing. Use a cell that does, such as cells.rnn, cells.gru or "
            "cells.lstm(..., embedding=False), or declare it for your own model with "
            "norewind.declare(transition, units=..., mixing=...)."
        )
    elementwise = structure.with_product(transition, product)
    if structure.structure_of(elementwise).units is None:
        raise ModelError(f"{caller}: the model declares mixing, but not which unit each weight feeds (units).")
    return elementwise


def units_of(elementwise: Transition, params: Tree) -> Units:
    """The units of a model, as declared by a transition from `without_cross_terms`.

    Args:
        elementwise: the transition from `without_cross_terms`.
        params: the parameters.

    Returns:
        The units that each weight feeds, and those that the entries of the state belong to.
    """
    declared = structure.structure_of(elementwise)
    assert declared.units is not None
    with jax.ensure_compile_time_eval():
        return Units(declared.units(params), declared.entries)


def init_traces(caller: str, elementwise: Transition, params: Tree, state: Tree) -> Traces:
    """The traces before the first step: nothing has influenced the state yet.

    Args:
        caller: the name of the method, for the message.
        elementwise: the transition from `without_cross_terms`.
        params: the parameters.
        state: the state before the first step.

    Returns:
        For every component of the state, a tree of zeros like the parameters.

    Raises:
        ModelError: the units do not have the same number of entries.
    """
    units = units_of(elementwise, params)
    components = components_of(caller, units.entries, state)
    return (init_trace(units.weights, params),) * components


def _along_each(units: Units, row: Tree, traces: Traces, params: Tree) -> Tree:
    """Σ_j row_{j,u} G_{j,w} for every weight w and every unit u that it feeds."""
    total = jax.tree.map(lambda leaf: jnp.zeros((), jnp.result_type(leaf)), params)
    positions = positions_of(units.entries, len(traces), row)
    for values, trace in zip(by_component(positions, row), traces, strict=True):
        factors = per_weight(units.weights, values, params)
        total = jax.tree.map(lambda t, f, g: t if g is None else t + f * g, total, factors, trace)
    return total


def along_traces(units: Units, row: Tree, traces: Traces, params: Tree) -> Tree:
    """The product of a row vector with the traces: Σ_j row_{j,u(w)} G_{j,w} for every weight w, which feeds unit u(w).

    Args:
        units: the units of the model.
        row: the row vector, shaped like the real leaves of the state, or like those that have traces.
        traces: the traces G.
        params: the parameters.

    Returns:
        A tree like the parameters. For a weight that feeds several units, it is the sum over them.
    """
    each = _along_each(units, row, traces, params)
    return jax.tree.map(lambda e, leaf: jnp.sum(e, axis=0) if e.ndim > np.ndim(leaf) else e, each, params)


def next_trace(immediate: Tree, carried: Tree, trace: Tree) -> Tree:
    """One trace after a step, G ← J G + I, for the leaves that have a trace.

    Args:
        immediate: I, the derivative of the component by the parameters.
        carried: J G, from `along_traces`.
        trace: G before the step.

    Returns:
        The trace after the step.
    """
    return jax.tree.map(lambda i, c, g: None if g is None else c + i, immediate, carried, trace)


def next_traces(own_point: Linearisation, units: Units, traces: Traces, params: Tree) -> Traces:
    """Advance the traces by one step, G ← J G + I, for a model whose units do not read one another.

    Every unit has its own weights and its own entries of the state: the derivative of
    the sum over all units contains the rows of all of them, each in its place. If weights
    feed several units, this holds for the units of one colour.

    Args:
        own_point: the linearisation of the transition from `without_cross_terms`.
        units: the units of the model.
        traces: the traces G before the step.
        params: the parameters.

    Returns:
        The traces after the step.
    """
    flat, unravel = ravel_pytree(real_leaves(own_point.state))
    positions = positions_of(units.entries, len(traces), real_leaves(own_point.state))
    colours = colours_of(units.weights, params, np.eye(positions.shape[1], dtype=bool))

    def add(total, colour_and_mask):
        colour, mask = colour_and_mask
        row, immediate = own_point.pull_back(unravel(mask))
        fed = select_colour(units.weights, immediate, colours, colour)
        return jax.tree.map(jnp.add, total, (row, fed)) if total else (row, fed), None

    new = []
    for own, trace in zip(positions, traces, strict=True):
        masks = np.zeros((colours.max(initial=0) + 1, flat.size))
        masks[colours, own] = 1
        steps = np.arange(len(masks)), jnp.asarray(masks, flat.dtype)
        first, *_ = add(None, jax.tree.map(lambda leaf: leaf[0], steps))
        rest = jax.tree.map(lambda leaf: leaf[1:], steps)
        row, immediate = jax.lax.scan(add, first, rest)[0] if len(masks) > 1 else first
        new.append(next_trace(immediate, _along_each(units, row, traces, params), trace))
    return tuple(new)


def traces_estimator(caller: str, model: Model, elementwise: Transition, gradient_model: Model) -> Estimator:
    """Build an estimator that carries traces and nothing else.

    Args:
        caller: the name of the method, for messages.
        model: the model whose gradients are estimated.
        elementwise: the transition from `without_cross_terms`.
        gradient_model: a model with the same values, whose derivatives give the gradient within a step.

    Returns:
        The estimator.
    """

    def init(params, state):
        return init_traces(caller, elementwise, params, state)

    def product(params, row, traces):
        return along_traces(units_of(elementwise, params), row, traces, params)

    def advance_from(linearised, params, state, traces, x, point):
        own_point = point if linearised is elementwise else estimator.linearise_state(elementwise, params, state, x)
        return next_traces(own_point, units_of(elementwise, params), traces, params)

    def step(params, state, carry, x, target):
        structure.checked_units(caller, elementwise, params, state, x)
        point = estimator.linearise(gradient_model, params, state, x, target)
        grad = influence.gradient(params, point, carry)
        carry = advance_from(gradient_model.transition, params, state, carry, x, point)
        return point.state, carry, Estimate(point.loss, grad, point.output)

    influence = Influence(init, partial(advance_from, model.transition), product)
    return Estimator.build(lambda params, state, key: init(params, state), step, model, influence=influence)
