"""Diagnostics of continual learning: dormant units, effective rank, and the growth of the weights."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from norewind.core.combinators import one_step_of
from norewind.core.run import Run
from norewind.core.trees import Tree, named_leaves, real_leaves
from norewind.learners.online import OnlineLearner


class Plasticity(NamedTuple):
    """What is left of a network's ability to learn.

    Attributes:
        dormant: the fraction of units that are (nearly) silent; see `dormant_units`.
        rank: the effective rank of the states; see `effective_rank`.
        growth: the norm of each leaf of the parameters, divided by its initial norm.
    """

    dormant: float
    rank: float
    growth: dict[str, float]


def plasticity(learner: OnlineLearner, run: Run, start: Tree, xs: Tree) -> Plasticity:
    """Measure a run on some inputs, without changing it.

    Args:
        learner: the learner.
        run: its run.
        start: the initial parameters.
        xs: inputs along a leading axis, such as the latest thousand.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.mingru(3, 4, 3)
    >>> learner = norewind.online(norewind.bptt(cell.transition, norewind.losses.cross_entropy), norewind.adam(1e-3))
    >>> run = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    >>> found = plasticity(learner, run, run.params, jnp.array([0, 1, 2, 1] * 10))
    >>> found.dormant, 1 <= found.rank <= 4, found.growth["['bias']"]
    (0.0, True, 1.0)
    """
    transition = one_step_of(learner.update.estimator.model.transition)

    def body(state, x):
        state, _ = transition(run.params, state, x)
        return state, jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(real_leaves(state))])

    _, activations = jax.jit(lambda: jax.lax.scan(body, run.state, xs))()
    return Plasticity(
        float(jnp.mean(dormant_units(activations))), effective_rank(activations), weight_growth(run.params, start)
    )


def dormant_units(activations: jax.Array, threshold: float = 0.025) -> jax.Array:
    """Find the units whose mean |activation| is at most a fraction of that of all units.

    Reference: Sokar et al., The Dormant Neuron Phenomenon in Deep Reinforcement Learning (2023).

    Args:
        activations: a row per sample and a column per unit.
        threshold: the fraction.

    Returns:
        A boolean per unit.

    >>> import jax.numpy as jnp
    >>> dormant_units(jnp.array([[1.0, 0.0, -2.0], [1.0, 0.01, 2.0]])).tolist()
    [False, True, False]
    """
    sizes = jnp.mean(jnp.abs(activations), axis=0)
    return sizes <= threshold * jnp.mean(sizes)


def effective_rank(activations: jax.Array) -> float:
    """Compute the exponential of the entropy of the singular values, divided by their sum.

    Reference: Roy & Vetterli, The effective rank: a measure of effective dimensionality (2007).

    Args:
        activations: a row per sample and a column per unit.

    >>> import jax.numpy as jnp
    >>> round(effective_rank(jnp.eye(3)), 6), round(effective_rank(jnp.ones((5, 3))), 6)
    (3.0, 1.0)
    """
    values = np.linalg.svd(np.asarray(activations, np.float64), compute_uv=False)
    share = values[values > 0] / values.sum()
    return float(np.exp(-np.sum(share * np.log(share)))) if len(share) else 0.0


def weight_growth(params: Tree, start: Tree) -> dict[str, float]:
    """Return the norm of each leaf divided by its initial norm; infinite for one that started at zero and has grown.

    Args:
        params: the parameters.
        start: the initial parameters.

    >>> import jax.numpy as jnp
    >>> weight_growth({"w": jnp.full(4, 3.0)}, {"w": jnp.ones(4)})
    {"['w']": 3.0}
    """
    growth = {}
    for (place, now), before in zip(named_leaves("", params), jax.tree.leaves(start), strict=True):
        old, new = float(jnp.linalg.norm(jnp.ravel(before))), float(jnp.linalg.norm(jnp.ravel(now)))
        growth[place] = new / old if old else float("inf") if new else 1.0
    return growth
