"""The truncated gradient of the original LSTM."""

import equinox as eqx
import jax
import jax.numpy as jnp

from norewind import checks
from norewind.estimator import Estimate, Estimator, Loss, Transition, linearise, model_of, zeros_like
from norewind.structure import UNITS, declared_units, for_each_leaf, required, spread
from norewind.trees import real_leaves


def lstm97(transition: Transition, loss: Loss) -> Estimator:
    """The 1997 LSTM's gradient: cut at every gate's recurrent input, exact along the cell.

    Every weight w, which feeds one unit i, has one trace of its influence on the cell
    c_i. With everything recurrent but c taken as given,

        g_w = ∂ℓ/∂c_i · E_w + ∂ℓ/∂w
        E_w ← (∂c'_i/∂c_i) E_w + ∂c'_i/∂w

    starting from zero. It is the gradient of each loss with the rest of the previous
    state (h) stopped and the previous cell kept, also known as e-prop.

    Biased: what passes from unit to unit through h is dropped. Time: one run of the
    model and two reverse derivatives, O(1) per weight. Memory: one set of parameters
    (without the readout). Needs a model that declares which unit each weight feeds and
    which leaf of its state is the memory (`norewind.declare` with `units` and `memory`),
    such as `cells.lstm(..., embedding=False)`: an embedding is shared by all units and
    would need a trace per unit and weight.

    Reference: Hochreiter & Schmidhuber, Long Short-Term Memory (1997), appendix A.1.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.lstm(inputs=3, hidden=4, outputs=3, embedding=False)
    >>> estimator = norewind.lstm97(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> carry["recurrent"].shape == params["recurrent"].shape, carry["readout"]
    (True, {'bias': None, 'weight': None})
    """
    units_of, memory_of = required(
        "lstm97",
        "cells.lstm(..., embedding=False)",
        transition,
        units=UNITS,
        memory="to know each unit's memory cell",
    )

    model = model_of(transition, loss)

    def init(params, state, key):
        checks.parameters(params)
        checks.state_leaves(state)
        return for_each_leaf(
            lambda unit, leaf: None if unit is None else jnp.zeros_like(leaf), units_of(params), params
        )

    def step(params, state, carry, x, target):
        units = declared_units("lstm97", transition, params, state, x)
        run = linearise(model, params, state, x, target)
        nothing = zeros_like(real_leaves(state))
        # Of ∂ℓ/∂s only the memory's part is used: with h as given, that is the whole cut.
        state_grad, direct = run.vjp(nothing, jnp.ones_like(run.loss))

        def along_traces(values):
            """One number per unit times the traces of its weights."""
            factors = spread(units, values, params)
            return jax.tree.map(
                lambda factor, trace: 0 if trace is None else factor * trace, factors, carry, is_leaf=_is_none
            )

        grad = jax.tree.map(jnp.add, direct, along_traces(memory_of(state_grad)))
        # Each entry of the new memory has its own entry of the old one and its own
        # weights: the derivative of their sum holds all of them, each in its place.
        ones = eqx.tree_at(memory_of, nothing, replace_fn=jnp.ones_like)
        memory_rows, immediate = run.vjp(ones, jnp.zeros_like(run.loss))
        carry = jax.tree.map(
            lambda trace, old, new: None if trace is None else old + new,
            carry,
            along_traces(memory_of(memory_rows)),
            immediate,
            is_leaf=_is_none,
        )
        return run.state, carry, Estimate(run.loss, grad, run.output)

    return Estimator(init, step, model)


def _is_none(node) -> bool:
    return node is None
