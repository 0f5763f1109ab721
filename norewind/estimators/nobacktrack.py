"""NoBackTrack: UORO's predecessor, with a separate normaliser for every entry of the state."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from norewind.core.estimator import Estimate, Estimator, Linearisation, Loss, Transition, linearise, model_of
from norewind.core.noise import Noise, random_signs
from norewind.core.structure import structure_of, unfed_leaf
from norewind.core.trees import Tree, combine, norm, real_leaves, square_root
from norewind.core.units import components_of, positions_of, shared_leaf, sum_per_unit
from norewind.estimators.uoro import EPSILON, UOROCarry, init_carry, paper_normaliser


def nobacktrack(transition: Transition, loss: Loss, *, noise: Noise = random_signs) -> Estimator:
    """NoBackTrack: a rank-one estimate s̃ ⊗ θ̃ of the influence ∂s/∂θ, balanced row by row.

    At every step, with J = ∂s'/∂s, I_i the row of ∂s'/∂θ for entry i of the state, and
    ν a vector of random signs,

        g̃ = (∂ℓ/∂s · s̃) θ̃ + ∂ℓ/∂θ
        ρ0 = √(‖θ̃‖ / (‖J s̃‖ + ε)) + ε        ρ_i = √‖I_i‖ + ε
        s̃ ← ρ0 J s̃ + Σ_i ν_i ρ_i e_i          θ̃ ← θ̃/ρ0 + Σ_i ν_i I_i/ρ_i

    starting from zeros. UORO has one ρ1 in place of all the ρ_i: where rows differ in
    size, NoBackTrack's variance is lower. Where they do not (as in `cells.rnn`, whose
    state is the pre-activation, so that all rows are equal) the two are the same method.

    Unbiased for frozen parameters, like UORO. Bytes carried: one state and one set of
    parameters. Time: one evaluation of the model, one forward derivative, and reverse
    derivatives: 2 + k for a model that declares a unit for every weight (`norewind.declare` with
    `units`, or `cells.rnn`, `cells.elman`, `cells.reservoir` and `cells.lstm` without embedding),
    where k is the number of floating leaves of the state. For any other model it is 2 + n, where
    n is the size of the state: the row norms ‖I_i‖ are computed one after the other, in no more
    memory. The result is the same. Needs only a differentiable model (see `norewind.core.Model`).

    Reference: Ollivier, Tallec & Charpiat, Training recurrent networks online without
    backtracking (2015).

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`.
        loss: the loss of one step, `loss(output, target)`, a scalar.
        noise: the source of ν, called as `noise(key, like) -> (signs, next_key)`.

    Returns:
        The estimator.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.rnn(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.estimators.nobacktrack(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> state, carry, estimate = estimator.step(params, state, carry, jnp.array(0), jnp.array(2))
    >>> jax.tree.structure(estimate.grad) == jax.tree.structure(params)
    True
    """
    model = model_of(transition, loss)
    declared = structure_of(transition)

    def norms(point, params, state, x):
        index = declared.units and declared.units(params)
        if index is None or shared_leaf(index, params) or unfed_leaf(index, transition, params, state, x):
            return _norms_by_pullbacks(point, real_leaves(state))
        positions = positions_of(
            declared.entries, components_of("nobacktrack", declared.entries, state), real_leaves(state)
        )
        return _norms_by_units(point, real_leaves(state), index, positions)

    def step(params, state, carry, x, target):
        point = linearise(model, params, state, x, target)
        pushed, loss_tangent = point.jvp(carry.s_tilde)  # J s̃ and ∂ℓ/∂s · s̃
        _, direct = point.loss_grads()  # ∂ℓ/∂θ
        grad = combine(loss_tangent, carry.theta_tilde, jnp.ones_like(loss_tangent), direct)

        signs, key = noise(carry.key, pushed)
        rho = jax.tree.map(lambda rows: square_root(rows) + EPSILON, norms(point, params, state, x))
        _, signs_back = point.pull_back(jax.tree.map(jnp.divide, signs, rho))  # Σ_i ν_i I_i/ρ_i
        rho0 = paper_normaliser(norm(carry.theta_tilde), norm(pushed))
        one = jnp.ones_like(rho0)
        carry = UOROCarry(
            s_tilde=combine(rho0, pushed, one, jax.tree.map(jnp.multiply, signs, rho)),
            theta_tilde=combine(1 / rho0, carry.theta_tilde, one, signs_back),
            key=key,
        )
        return point.state, carry, Estimate(point.loss, grad, point.output)

    return Estimator.build(init_carry, step, model)


def _norms_by_pullbacks(point: Linearisation, leaves: Tree) -> Tree:
    """‖I_i‖ for every entry of the state, by one reverse derivative for each entry."""
    flat, unravel = ravel_pytree(leaves)

    def one_row(i):
        return norm(point.pull_back(unravel(jnp.zeros_like(flat).at[i].set(1)))[1])

    return unravel(jax.lax.map(one_row, jnp.arange(flat.size)).astype(flat.dtype))


def _norms_by_units(point: Linearisation, leaves: Tree, index: Tree, positions: np.ndarray) -> Tree:
    """‖I_i‖ for every entry of the state, by one reverse derivative for each component of the units.

    Every weight feeds one unit only, so the rows of ∂s'/∂θ do not overlap: the
    derivative of the sum over all units contains every row, each in its own place.
    """
    flat, unravel = ravel_pytree(leaves)
    rows = jnp.zeros_like(flat)
    for own in positions:
        mask = np.zeros(flat.size)
        mask[own] = 1
        _, stacked_rows = point.pull_back(unravel(jnp.asarray(mask, flat.dtype)))
        squares = jax.tree.map(lambda row: jnp.real(row * jnp.conj(row)), stacked_rows)
        rows = rows.at[own].set(square_root(sum_per_unit(index, squares, len(own))).astype(flat.dtype))
    return unravel(rows)
