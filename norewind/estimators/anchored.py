"""Anchored UORO: SnAp-1's traces exactly, and UORO for what they leave over."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from norewind.estimator import (
    Estimate,
    Estimator,
    Loss,
    Transition,
    checked,
    linearise,
    linearise_state,
    model_of,
    zeros_like,
)
from norewind.estimators.uoro import NORMALISERS, merge
from norewind.noise import Noise, as_key, random_signs
from norewind.traces import Traces, along_traces, next_traces, unit_by_unit, units_of, zero_traces
from norewind.trees import Tree, combine, real_leaves


class Carry(NamedTuple):
    """The traces D, and s̃ and θ̃ as in UORO, with D + E[s̃ ⊗ θ̃] = ∂s/∂θ."""

    traces: Traces
    s_tilde: Tree
    theta_tilde: Tree
    key: jax.Array


def anchored(transition: Transition, loss: Loss, *, noise: Noise = random_signs) -> Estimator:
    """Anchored UORO: of the influence ∂s/∂θ, the part D that SnAp-1 keeps, and UORO's s̃ ⊗ θ̃ for the rest.

    At every step, with J = ∂s'/∂s, I = ∂s'/∂θ, ν a vector of random signs, and D' the
    traces of SnAp-1 after the step,

        g̃ = ∂ℓ/∂s · D + (∂ℓ/∂s · s̃) θ̃ + ∂ℓ/∂θ
        r = νᵀ(J D + I − D')
        ρ0 = √(‖θ̃‖ / (‖J s̃‖ + ε)) + ε        ρ1 = √(‖r‖ / (‖ν‖ + ε)) + ε
        s̃ ← ρ0 J s̃ + ρ1 ν                    θ̃ ← θ̃/ρ0 + r/ρ1

    starting from zeros. J D + I − D' is what passes from a weight to other units than its
    own, so the noise has only that to carry: UORO's variance without most of its size.
    For an elementwise recurrence nothing is left over, and the gradient is exact.

    Unbiased for frozen parameters, like UORO. Time: one evaluation of the model, one forward and
    2 + k reverse derivatives with k the entries of a unit. Bytes carried: one state and k + 1
    sets of parameters. Needs what `snap1` needs, but weights that several units share
    (an embedding) may be among the others: they have no trace, and UORO carries them.

    `noise(key, like) -> (signs, next_key)` replaces the source of ν.

    `transition` and `loss` are the model: see `norewind.Model`.

    Reference: ours; Tallec & Ollivier (2017) with Menick et al. (2020) as control variate.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.lstm(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.anchored(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> [trace["embedding"] is None for trace in carry.traces]
    [True, True]
    """
    alone = unit_by_unit("anchored", transition)
    model = model_of(transition, loss)

    def init(params, state, key):
        traces = zero_traces("anchored", alone, params, state)
        return Carry(traces, zeros_like(real_leaves(state)), zeros_like(params), as_key(key))

    def step(params, state, carry, x, target):
        point = linearise(model, params, state, x, target)
        units = units_of(alone, params)

        def along(row, traces):
            return along_traces(units, row, traces, params)

        pushed, loss_tangent = point.jvp(carry.s_tilde)  # J s̃ and ∂ℓ/∂s · s̃
        state_grad, direct = point.loss_grads()
        grad = combine(loss_tangent, carry.theta_tilde, jnp.ones_like(loss_tangent), direct)
        grad = jax.tree.map(jnp.add, grad, along(state_grad, carry.traces))

        own = point if alone is transition else linearise_state(alone, params, state, x)
        traces = next_traces(own, units, carry.traces, params)
        signs, key = noise(carry.key, pushed)
        signs_back, immediate = point.pull_back(signs)  # νᵀJ and νᵀI
        before, after = along(signs_back, carry.traces), along(signs, traces)
        left_over = jax.tree.map(lambda i, b, a: i + b - a, immediate, before, after)
        new = merge(NORMALISERS["paper"], (pushed, carry.theta_tilde), (signs, left_over))
        return point.state, Carry(traces, *new, key), Estimate(point.loss, grad, point.output)

    return checked(Estimator(init, step, model))
