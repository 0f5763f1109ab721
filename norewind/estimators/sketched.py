"""SK-RTRL: SnAp-1's traces, a sketch of low rank for the remaining influence, and a bound on the error of both."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from norewind.core import checks
from norewind.core.combinators import influence_over_window, one_step_of
from norewind.core.estimator import Estimator, Influence, Linearisation, Loss, Transition, model_of
from norewind.core.structure import checked_single_units, require_declarations
from norewind.core.trees import Tree, norm, real_leaves, weighted_sum
from norewind.core.units import Units, components_of, init_trace, sum_per_unit
from norewind.estimators.traces import Traces, along_traces, next_trace

# Squarings of JᵀJ for the bound on its largest eigenvalue, which is then at most n^(1/64) too large.
SQUARINGS = 5


class SketchedCarry(NamedTuple):
    """The approximation S + L Rᵀ of the influence ∂s/∂θ.

    Attributes:
        traces: S, the traces of SnAp-1.
        left: L, with orthonormal columns (state × terms).
        right: R, like the parameters with a leading axis of terms; None for leaves that feed no unit.
        log_error: the natural logarithm of the bound e. (The bound itself could overflow.)
    """

    traces: Traces
    left: jax.Array
    right: Tree
    log_error: jax.Array


def sketched(transition: Transition, loss: Loss, *, terms: int = 8) -> Estimator:
    """SK-RTRL: SnAp-1's traces S exactly, plus a sketch L Rᵀ of rank r for the rest of the influence ∂s/∂θ.

    At every step, with J = ∂s'/∂s and I = ∂s'/∂θ,

        g = ∂ℓ/∂s · (S + L Rᵀ) + ∂ℓ/∂θ
        S' = mask ⊙ (J S + I)               T = J L Rᵀ + (J S + I − S')
        L' = the leading r left singular vectors of T        R'ᵀ = L'ᵀ T
        e ← ‖J‖ e + ‖T − L' R'ᵀ‖

    starting from zeros. T collects what leaves the mask, where S has one row per entry of the
    state. So the singular vectors are found from the n × n matrix T Tᵀ, without ever forming T,
    and the truncation is the best possible one of rank r. (The paper truncates twice.)
    e is a bound on the error, ‖∂s/∂θ − S − L Rᵀ‖ ≤ e in the Frobenius norm, for frozen
    parameters. It is reported as `error_bound` in the metrics and by `diagnose`. The error itself
    is usually far below it, because the bound assumes that J stretches every error as much as it can.

    Biased, unless r is the size of the state: then it is exact. Time: n reverse derivatives for a
    state of n, an eigendecomposition (n³), and r products of a row with S (n²·r + P·r). Bytes carried:
    k + r sets of parameters (without the readout), where k is the number of entries of a unit. Needs a
    model in which every weight feeds one unit (`norewind.declare` with `units`), such as `cells.rnn`,
    `cells.elman`, `cells.gru(..., reset="after")` and `cells.lstm(..., embedding=False)`. Over a window,
    S, L and R are updated at every step.

    The step can be differentiated (meta-gradients) where the singular values of T differ; the bound e counts as a
    constant.

    Reference: SK-RTRL, github.com/sonaradarcn/sketched-rtrl (2026); Menick et al. (2020) for SnAp-1.

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`, or a window of steps.
        loss: the loss of one step or window, `loss(output, target)`, a scalar.
        terms: r, the rank of the sketch.

    Returns:
        The estimator.

    Raises:
        ModelError: the model does not declare its units, or `terms` is not a whole number above 0.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.elman(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.estimators.sketched(cell.transition, norewind.losses.cross_entropy, terms=2)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> carry.left.shape, carry.right["recurrent"].shape
    ((4, 2), (2, 4, 4))
    """
    checks.check_at_least_one("sketched: terms", terms)
    single = one_step_of(transition)
    (units_in,) = require_declarations("sketched", "a cell where every weight feeds one unit", single, "units")

    def init(params, state):
        components = components_of("sketched", None, state)
        flat = ravel_pytree(real_leaves(state))[0]
        trace = init_trace(units_in(params), params)
        rank = min(terms, flat.size)
        return SketchedCarry(
            traces=(trace,) * components,
            left=jnp.eye(flat.size, rank, dtype=flat.dtype),
            right=jax.tree.map(lambda leaf: jnp.zeros((rank, *leaf.shape), leaf.dtype), trace),
            log_error=jnp.log(jnp.finfo(flat.dtype).tiny),
        )

    def advance(params, state, sketch, x, point):
        checked_single_units("sketched", single, params, state, x)
        return next_sketch(point, Units(units_in(params)), sketch, params)

    def product(params, row, sketch):
        weights = ravel_pytree(row)[0] @ sketch.left
        traced = along_traces(Units(units_in(params)), row, sketch.traces, params)
        return jax.tree.map(lambda t, r: t if r is None else t + weighted_sum(weights, r), traced, sketch.right)

    def report(carry):
        return {"error_bound": error_bound(carry)}

    influence = Influence(init, influence_over_window(transition, advance), product)
    return Estimator.of_influence(influence, model_of(transition, loss), report=report)


def error_bound(carry: SketchedCarry) -> jax.Array:
    """Return the bound e on the error of a sketch, ‖∂s/∂θ − S − L Rᵀ‖ ≤ e; the largest finite number if it is larger.

    Args:
        carry: the carry of `sketched`.
    """
    largest = np.log(jnp.finfo(carry.log_error.dtype).max) - 1
    return jnp.exp(jnp.minimum(carry.log_error, largest))


def next_sketch(point: Linearisation, units: Units, sketch: SketchedCarry, params: Tree) -> SketchedCarry:
    """Advance traces and sketch by one step of the model.

    Args:
        point: the linearisation of a single step.
        units: the units of the model.
        sketch: the sketch before the step.
        params: the parameters.

    Returns:
        The sketch after the step.
    """
    traces, left, right, log_error = sketch
    flat, unravel = ravel_pytree(real_leaves(point.state))
    size, rank = left.shape
    count = size // len(traces)
    jacobian = jax.vmap(lambda row: ravel_pytree(point.pull_back(unravel(row))[0])[0])(jnp.eye(size, dtype=flat.dtype))
    unit = np.arange(size) % count
    cross = jnp.where(unit[:, None] == unit, 0, jacobian)  # what passes from unit to unit

    new_traces = _next_traces(point, units, traces, params, jacobian)

    # T Tᵀ for T = (J L) Rᵀ + Ĵ S.
    pushed = jacobian @ left
    mixed = jax.vmap(lambda one: _along_weights(units.weights, traces, one, count), out_axes=1)(right)  # S R
    inner = jax.vmap(lambda one: jnp.stack([_dot(one, _entry(right, i)) for i in range(rank)]))(right)  # RᵀR
    half = cross @ mixed @ pushed.T
    # S Sᵀ, unit by unit.
    own = jnp.stack([_along_weights(units.weights, traces, trace, count) for trace in traces], axis=1)
    own = own.reshape(len(traces), count, len(traces))
    spread = jnp.einsum("icu,cud->idu", cross.reshape(size, -1, count), own).reshape(size, size)
    square = pushed @ inner @ pushed.T + half + half.T + spread @ cross.T
    values, vectors = _eigenvectors((square + square.T) / 2)

    new_left = vectors[:, size - rank :].astype(left.dtype)
    from_right = new_left.T @ pushed
    from_traces = jax.vmap(lambda row: along_traces(units, row, traces, params))(new_left.T @ cross)

    def combined(leaf, old, traced):
        return None if old is None else (traced + jnp.tensordot(from_right, old, 1)).astype(old.dtype)

    new_right = jax.tree.map(combined, params, right, from_traces)

    new_error = _next_error(log_error, jacobian, values[: size - rank], square, new_traces)
    return SketchedCarry(new_traces, new_left, new_right, new_error.astype(log_error.dtype))


def _next_error(
    log_error: jax.Array, jacobian: jax.Array, dropped: jax.Array, square: jax.Array, traces: Traces
) -> jax.Array:
    """log e after a step. It is a report, which has no derivative: its square roots would be infinitely steep at 0."""
    log_error, jacobian, dropped, square, traces = jax.lax.stop_gradient((log_error, jacobian, dropped, square, traces))
    # Add bounds on rounding and underflow. In a difference of squares, the error is the root of theirs.
    number = jnp.finfo(square.dtype)
    tiny = len(square) * number.eps
    total = jnp.maximum(jnp.trace(square), 0)
    lost = jnp.sum(jnp.maximum(dropped, 0)) + (tiny * total if len(dropped) else 0)
    added = jnp.sqrt(lost) + tiny * (jnp.sqrt(total) + norm(traces)) + jnp.sqrt(number.tiny)
    stretched = jnp.log(spectral_bound(jacobian)) + log_error
    return jnp.logaddexp(jnp.maximum(stretched, jnp.log(number.tiny)), jnp.log(added))


@jax.custom_jvp
def _eigenvectors(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The eigenvalues of a symmetric matrix in ascending order, and its eigenvectors in columns."""
    values, vectors = jnp.linalg.eigh(matrix)
    return values, vectors


@_eigenvectors.defjvp
def _eigenvectors_jvp(primals, tangents):
    """The derivative, which counts as zero between vectors of equal values.

    Which of these vectors comes first does not matter as long as all or none of them are kept, as after the zero
    carry.
    """
    values, vectors = _eigenvectors(*primals)
    change = vectors.T @ tangents[0] @ vectors
    gaps = values - values[:, None]
    differ = jnp.abs(gaps) > len(values) * jnp.finfo(values.dtype).eps * jnp.max(jnp.abs(values))
    factors = jnp.where(differ, 1 / jnp.where(differ, gaps, 1), 0)
    return (values, vectors), (jnp.diagonal(change), vectors @ (factors * change))


def _next_traces(point: Linearisation, units: Units, traces: Traces, params: Tree, jacobian: jax.Array) -> Traces:
    """S' = mask ⊙ (J S + I) for a model in which every weight feeds one unit only."""
    flat, unravel = ravel_pytree(real_leaves(point.state))
    components = len(traces)
    own = jnp.diagonal(jacobian.reshape(components, -1, components, flat.size // components), axis1=1, axis2=3)
    new = []
    for i, trace in enumerate(traces):
        # A weight reaches its own unit only, so the derivative of the sum over all units contains all rows of I.
        ones = np.zeros((components, flat.size // components))
        ones[i] = 1
        _, immediate = point.pull_back(unravel(jnp.asarray(ones.ravel(), flat.dtype)))
        new.append(next_trace(immediate, along_traces(units, own[i], traces, params), trace))
    return tuple(new)


def spectral_bound(matrix: jax.Array) -> jax.Array:
    """Return an upper bound on the largest singular value of a matrix of n columns, at most n^(1/64) times too large.

    It is ‖(AᵀA)³²‖^(1/64) in the Frobenius norm, computed with logarithms so that nothing overflows.
    """
    log_scale = jnp.zeros((), matrix.dtype)
    power = matrix
    for squaring in range(SQUARINGS + 1):
        largest = jnp.max(jnp.abs(power))
        scaled = power / jnp.where(largest > 0, largest, 1)
        power, log_scale = (scaled if squaring else scaled.T) @ scaled, 2 * (log_scale + jnp.log(largest))
    log_bound = (log_scale + jnp.log(jnp.linalg.norm(power))) / 2 ** (SQUARINGS + 1)
    return jnp.exp(log_bound) * (1 + len(matrix) * jnp.finfo(matrix.dtype).eps)


def _along_weights(units: Tree, traces: Traces, weights: Tree, count: int) -> jax.Array:
    """S w for a tree of weights: one number per entry of the state."""
    products = [jax.tree.map(lambda s, w: jnp.real(s * jnp.conj(w)), trace, weights) for trace in traces]
    return jnp.concatenate([sum_per_unit(units, one, count) for one in products])


def _dot(a: Tree, b: Tree) -> jax.Array:
    products = [jnp.sum(jnp.real(x * jnp.conj(y))) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]
    return sum(products[1:], start=products[0])


def _entry(tree: Tree, i: int) -> Tree:
    return jax.tree.map(lambda leaf: leaf[i], tree)
