"""Anchored UORO: SnAp-1's traces exactly, and UORO for the remaining influence."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from norewind.core.estimator import Estimate, Estimator, Loss, Transition, linearise, linearise_state, model_of
from norewind.core.noise import Noise, as_key, random_signs
from norewind.core.trees import Tree, combine, real_leaves, zeros_like
from norewind.estimators.traces import Traces, along_traces, init_traces, next_traces, unit_by_unit, units_of
from norewind.estimators.uoro import NORMALISERS, merge


class AnchoredCarry(NamedTuple):
    """The traces D, and s̃ and θ̃ as in UORO, with D + E[s̃ ⊗ θ̃] = ∂s/∂θ.

    Attributes:
        traces: D, the traces of SnAp-1.
        s_tilde: s̃, shaped like the floating leaves of the state.
        theta_tilde: θ̃, shaped like the parameters.
        key: the PRNG key of the next step's noise.
    """

    traces: Traces
    s_tilde: Tree
    theta_tilde: Tree
    key: jax.Array


def anchored(transition: Transition, loss: Loss, *, noise: Noise = random_signs) -> Estimator:
    """Anchored UORO: the part D of the influence ∂s/∂θ that SnAp-1 keeps, plus UORO's s̃ ⊗ θ̃ for the rest.

    At every step, with J = ∂s'/∂s, I = ∂s'/∂θ, ν a vector of random signs, and D' the
    traces of SnAp-1 after the step,

        g̃ = ∂ℓ/∂s · D + (∂ℓ/∂s · s̃) θ̃ + ∂ℓ/∂θ
        r = νᵀ(J D + I − D')
        ρ0 = √(‖θ̃‖ / (‖J s̃‖ + ε)) + ε        ρ1 = √(‖r‖ / (‖ν‖ + ε)) + ε
        s̃ ← ρ0 J s̃ + ρ1 ν                    θ̃ ← θ̃/ρ0 + r/ρ1

    starting from zeros. J D + I − D' is the influence of a weight on units other than its
    own. The noise has to carry only that part, so the variance is much smaller than UORO's.
    For an elementwise recurrence there is no such part, and the gradient is exact.

    Unbiased for frozen parameters, like UORO. Time: one evaluation of the model, one forward and
    2 + k reverse derivatives, where k is the number of entries of a unit. Bytes carried: one state
    and k + 1 sets of parameters. Needs the same declarations as `snap1`, except that the model may
    have weights shared by several units (an embedding): they have no trace, and UORO carries them.

    Reference: ours; Tallec & Ollivier (2017) with Menick et al. (2020) as control variate.

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`.
        loss: the loss of one step, `loss(output, target)`, a scalar.
        noise: the source of ν, called as `noise(key, like) -> (signs, next_key)`.

    Returns:
        The estimator.

    Raises:
        ModelError: the model does not declare its units and how they mix.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.lstm(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.estimators.anchored(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> [trace["embedding"] is None for trace in carry.traces]
    [True, True]
    """
    alone = unit_by_unit("anchored", transition)
    model = model_of(transition, loss)

    def init(params, state, key):
        traces = init_traces("anchored", alone, params, state)
        return AnchoredCarry(traces, zeros_like(real_leaves(state)), zeros_like(params), as_key(key))

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
        return point.state, AnchoredCarry(traces, *new, key), Estimate(point.loss, grad, point.output)

    return Estimator.build(init, step, model)
