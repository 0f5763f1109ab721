"""Remedies against the loss of plasticity, as optax transformations: L2 to the initialisation, continual backprop."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from norewind.core.trees import Tree, real_leaves
from norewind.core.units import per_weight, sum_per_unit


def l2_to_start(strength: float) -> optax.GradientTransformation:
    """Pull the parameters towards their initial values: adds λ (θ − θ₀) to the gradient.

    Chain it before an optimizer: `optax.chain(l2_to_start(1e-3), adam(1e-3))`.

    Reference: Kumar, Marklund & Van Roy, Maintaining Plasticity in Continual Learning via Regenerative Regularization
    (2023).

    Args:
        strength: λ.

    Returns:
        The transformation. Its state is θ₀, the parameters that it was initialised with.

    >>> import jax.numpy as jnp
    >>> remedy = l2_to_start(0.5)
    >>> updates, _ = remedy.update(jnp.zeros(2), remedy.init(jnp.ones(2)), jnp.array([1.0, 3.0]))
    >>> updates.tolist()
    [0.0, 1.0]
    """

    def update(updates, state, params=None):
        if params is None:
            raise ValueError("l2_to_start needs the parameters: call update(gradient, state, params).")
        return jax.tree.map(lambda g, p, p0: g + strength * (p - p0), updates, params, state), state

    return optax.GradientTransformation(lambda params: jax.tree.map(jnp.array, params), update)


class ContinualState(NamedTuple):
    """The state of `continual_backprop`.

    Attributes:
        inner: the state of the optimizer.
        utility: the utility of every unit.
        age: the number of updates since each unit was made.
        due: the fraction of a unit that is due to be replaced.
        key: the PRNG key of the next fresh weights.
    """

    inner: Tree
    utility: jax.Array
    age: jax.Array
    due: jax.Array
    key: jax.Array


def continual_backprop(
    optimizer: optax.GradientTransformation,
    *,
    fresh: Callable[[jax.Array], Tree],
    feeds: Callable[[Tree], Tree],
    reads: Callable[[Tree], Tree],
    key: jax.Array,
    rate: float = 1e-4,
    maturity: int = 100,
    decay: float = 0.99,
) -> optax.GradientTransformationExtraArgs:
    """Continual backprop: an optimizer that keeps replacing the units that are least useful.

    The utility of unit i, with h_i its entry of the state and w its outgoing weights, is the running
    mean of |h_i| Σ |w|. At every update a fraction `rate` of the mature units is due; when that adds up to one, the
    mature unit of least utility gets fresh incoming weights and outgoing weights of zero, and the
    optimizer forgets its moments of them. State and carry are not changed: they forget in their own time.

    It needs `model_state`, which `online` passes, with one floating leaf that has one entry per unit.

    Reference: Dohare et al., Loss of plasticity in deep continual learning (2024).

    Args:
        optimizer: the optimizer.
        fresh: `fresh(key)` makes initial parameters, like the `init` of a cell.
        feeds: `feeds(params)` is the unit that each weight feeds, as `norewind.declare` takes `units`.
        reads: `reads(params)` is the unit that each weight reads, in the same form.
        key: a PRNG key.
        rate: the fraction of units to replace per update.
        maturity: the number of updates before which a unit is not replaced.
        decay: the decay of the mean utility.

    Returns:
        The optimizer.

    >>> import jax, numpy as np, norewind
    >>> cell = norewind.cells.mingru(3, 4, 3)
    >>> row = np.arange(4)
    >>> optimizer = continual_backprop(
    ...     norewind.adam(1e-3),
    ...     fresh=cell.init,
    ...     feeds=norewind.core.structure_of(cell.transition).units,
    ...     reads=lambda params: dict.fromkeys(params) | {"readout": {"weight": row, "bias": None}},
    ...     key=jax.random.key(0),
    ... )
    >>> learner = norewind.online(norewind.estimators.snap1(cell.transition, norewind.losses.cross_entropy), optimizer)
    """
    inner = optax.with_extra_args_support(optimizer)

    def init(params):
        size = int(max(leaf.max() for leaf in jax.tree.leaves(feeds(params)))) + 1
        zero = jnp.zeros(())
        return ContinualState(inner.init(params), jnp.zeros(size), jnp.zeros(size, jnp.int32), zero, key)

    def update(updates, state, params=None, **known):
        if params is None or "model_state" not in known:
            raise ValueError("continual_backprop needs the parameters and model_state=, the new state of the model.")
        updates, inner_state = inner.update(updates, state.inner, params, **known)
        (hidden,) = jax.tree.leaves(real_leaves(known["model_state"]))
        size = state.utility.size
        outgoing = sum_per_unit(reads(params), jax.tree.map(jnp.abs, params), size)
        utility = decay * state.utility + (1 - decay) * jnp.abs(hidden) * outgoing
        age = state.age + 1
        mature = age > maturity
        due = state.due + rate * jnp.sum(mature)
        chosen = (jnp.arange(size) == jnp.argmin(jnp.where(mature, utility, jnp.inf))) & (due >= 1) & jnp.any(mature)
        next_key, draw = jax.random.split(state.key)

        def replaced():
            fed, read = (per_weight(index(params), chosen.astype(float), params) for index in (feeds, reads))
            fed, read = (jax.tree.map(lambda m, p: jnp.broadcast_to(m > 0, p.shape), m, params) for m in (fed, read))
            new = jax.tree.map(lambda d, r: jnp.where(r, 0, d), fresh(draw), read)
            touched = jax.tree.map(jnp.logical_or, fed, read)
            moved = jax.tree.map(lambda t, n, p, u: jnp.where(t, n - p, u), touched, new, params, updates)
            cleared = optax.tree.map_params(inner, lambda s, t: jnp.where(t, 0, s), inner_state, touched)
            return moved, cleared

        happens = jnp.any(chosen)
        updates, inner_state = jax.lax.cond(happens, replaced, lambda: (updates, inner_state))
        new = ContinualState(
            inner_state, jnp.where(chosen, 0, utility), jnp.where(chosen, 0, age), due - happens, next_key
        )
        return updates, new

    return optax.GradientTransformationExtraArgs(init, update)
