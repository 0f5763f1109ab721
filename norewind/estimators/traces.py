"""Traces: methods that keep, for each weight, its influence on its own unit: SnAp-1, RFLO and the LSTM of 1997."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from norewind.core import estimator, structure
from norewind.core.checks import ModelError
from norewind.core.estimator import Estimate, Estimator, Linearisation, Loss, Model, Transition
from norewind.core.trees import Tree, as_arrays, floating, named_leaves, real_leaves

# One trace for every component of the state (each number that a unit keeps): a tree like the parameters, with None for
# leaves that feed no unit.
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

    Exact for elementwise recurrences (`declare(elementwise=True)`), where the mask removes
    only zeros. Biased for others: the influence that passes from unit to unit between
    steps is dropped. In `cells.gru` with the reset gate before the product, a unit's gate
    reaches other units within the step, and that is dropped, too.

    Time: one evaluation of the model, and 1 + k reverse derivatives, where k is the number of
    entries of a unit; O(1) per weight. Bytes carried: k sets of parameters (without the
    readout). Needs a model that declares which unit each weight feeds, and that is elementwise
    or declares how its units mix (`norewind.declare` with `units` and `elementwise` or `mixing`).

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
    return traces_estimator("snap1", model, unit_by_unit("snap1", transition), model)


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
    alone = unit_by_unit("rflo", transition, cut_product)
    return traces_estimator("rflo", estimator.model_of(transition, loss), alone, estimator.model_of(alone, loss))


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
    declared, memory_of = structure.required("lstm97", use, transition, "units", "memory")
    model = estimator.model_of(transition, loss)

    def init(params, state, key):
        return init_trace(declared(params), params)

    def step(params, state, carry, x, target):
        units = structure.declared_units("lstm97", transition, params, state, x)
        point = estimator.linearise(model, params, state, x, target)
        # The cut: of ∂ℓ/∂s, only the part of the memory cell is used.
        state_grad, direct = point.loss_grads()
        grad = jax.tree.map(jnp.add, direct, along_traces(units, memory_of(state_grad), (carry,), params))
        # Each entry of the new memory cell depends on its own entry of the old one and on its own
        # weights, so the derivative of their sum contains all the derivatives, each in its place.
        ones = jax.grad(lambda state: jnp.sum(memory_of(state)))(state_grad)  # in the memory, and zeros elsewhere
        memory_rows, immediate = point.pull_back(ones)
        carried = along_traces(units, memory_of(memory_rows), (carry,), params)
        return point.state, next_trace(immediate, carried, carry), Estimate(point.loss, grad, point.output)

    return Estimator.build(init, step, model)


@jax.custom_vjp
def own_product(weight: jax.Array, vector: jax.Array) -> jax.Array:
    """W v, differentiated as if every unit read only its own entry of v.

    Args:
        weight: the matrix W; unit i has the rows i, n + i, 2n + i, ...
        vector: the vector v with n entries, one per unit.

    Returns:
        The product.
    """
    return weight @ vector


def _own_backward(kept, cotangent):
    weight, vector = kept
    n = vector.size
    own = jnp.diagonal(weight.reshape(-1, n, n), axis1=1, axis2=2) * cotangent.reshape(-1, n)
    return jnp.outer(cotangent, vector), jnp.sum(own, axis=0)


own_product.defvjp(lambda weight, vector: (weight @ vector, (weight, vector)), _own_backward)


def cut_product(weight: jax.Array, vector: jax.Array) -> jax.Array:
    """W v, with v treated as a constant in derivatives.

    Args:
        weight: the matrix W.
        vector: the vector v.

    Returns:
        The product.
    """
    return weight @ jax.lax.stop_gradient(vector)


def unit_by_unit(who: str, transition: Transition, product: structure.Product = own_product) -> Transition:
    """The same model with its derivatives between units removed, so that each unit depends only on itself.

    Args:
        who: the name of the method, for the message.
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
            f"{who} needs to know how each unit depends on itself alone, and this model declares neither elementwise "
            "(with units) nor mixing. Use a cell that does, such as cells.rnn, cells.gru or "
            "cells.lstm(..., embedding=False), or declare it for your own model with "
            "norewind.declare(transition, units=..., mixing=...)."
        )
    alone = structure.mixed_by(transition, product)
    if structure.structure_of(alone).units is None:
        raise ModelError(f"{who}: the model declares mixing, but not which unit each weight feeds (units).")
    return alone


def units_of(alone: Transition, params: Tree) -> Tree:
    """The unit that each weight feeds, as declared by a transition from `unit_by_unit`.

    Args:
        alone: the transition from `unit_by_unit`.
        params: the parameters.

    Returns:
        The units, as `declare` takes them.
    """
    units = structure.structure_of(alone).units
    assert units is not None
    return units(params)


def init_traces(who: str, alone: Transition, params: Tree, state: Tree) -> Traces:
    """The traces before the first step: nothing has influenced the state yet.

    Args:
        who: the name of the method, for the message.
        alone: the transition from `unit_by_unit`.
        params: the parameters.
        state: the state before the first step.

    Returns:
        For every component of the state, a tree of zeros like the parameters.

    Raises:
        ModelError: a floating leaf of the state does not have one entry per unit.
    """
    leaves = named_leaves("state", floating(as_arrays(state)))
    for place, leaf in leaves:
        if jnp.ndim(leaf) != 1 or jnp.shape(leaf) != jnp.shape(leaves[0][1]):
            raise ModelError(
                f"{who}: {place} has shape {jnp.shape(leaf)}, but every floating leaf of the state must be a vector "
                "with one entry per unit, all of one length. Split or flatten it."
            )
    components = sum(2 if jnp.iscomplexobj(leaf) else 1 for _, leaf in leaves)
    return (init_trace(units_of(alone, params), params),) * components


def init_trace(units: Tree, params: Tree) -> Tree:
    """A trace of zeros: a tree like the parameters, with None for leaves that feed no unit.

    Args:
        units: the unit that each weight feeds.
        params: the parameters.

    Returns:
        The trace.
    """
    return structure.for_each_leaf(lambda unit, leaf: None if unit is None else jnp.zeros_like(leaf), units, params)


def along_traces(units: Tree, row: Tree, traces: Traces, params: Tree) -> Tree:
    """The product of a row vector with the traces: Σ_j row_{j,u(w)} G_{j,w} for every weight w, which feeds unit u(w).

    Args:
        units: the unit that each weight feeds.
        row: the row vector, shaped like the real leaves of the state, or like those that have traces.
        traces: the traces G.
        params: the parameters.

    Returns:
        A tree like the parameters.
    """
    total = jax.tree.map(lambda leaf: jnp.zeros((), jnp.result_type(leaf)), params)
    for values, trace in zip(ravel_pytree(row)[0].reshape(len(traces), -1), traces, strict=True):
        factors = structure.per_weight(units, values, params)
        total = jax.tree.map(lambda t, f, g: t if g is None else t + f * g, total, factors, trace)
    return total


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


def next_traces(alone: Linearisation, units: Tree, traces: Traces, params: Tree) -> Traces:
    """Advance the traces by one step, G ← J G + I, for a model whose units do not read one another.

    Every unit has its own weights and its own entries of the state: the derivative of
    the sum over all units contains the rows of all of them, each in its place.

    Args:
        alone: the linearisation of the transition from `unit_by_unit`.
        units: the unit that each weight feeds.
        traces: the traces G before the step.
        params: the parameters.

    Returns:
        The traces after the step.
    """
    flat, unravel = ravel_pytree(real_leaves(alone.state))
    new = []
    for number, trace in enumerate(traces):
        ones = np.zeros((len(traces), flat.size // len(traces)))
        ones[number] = 1
        row, immediate = alone.pull_back(unravel(jnp.asarray(ones.ravel(), flat.dtype)))
        new.append(next_trace(immediate, along_traces(units, row, traces, params), trace))
    return tuple(new)


def traces_estimator(who: str, model: Model, alone: Transition, through: Model) -> Estimator:
    """Build an estimator that carries traces and nothing else.

    Args:
        who: the name of the method, for messages.
        model: the model.
        alone: the transition from `unit_by_unit`.
        through: a model with the same values, whose derivatives give the gradient within a step.

    Returns:
        The estimator.
    """

    def init(params, state, key):
        return init_traces(who, alone, params, state)

    def step(params, state, carry, x, target):
        units = structure.covered_units(who, alone, params, state, x)
        point = estimator.linearise(through, params, state, x, target)
        state_grad, direct = point.loss_grads()
        grad = jax.tree.map(jnp.add, direct, along_traces(units, state_grad, carry, params))
        own = point if alone is through.transition else estimator.linearise_state(alone, params, state, x)
        return point.state, next_traces(own, units, carry, params), Estimate(point.loss, grad, point.output)

    return Estimator.build(init, step, model)
