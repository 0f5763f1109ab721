"""Influence balancing: the formulas for its gradients and its limit are exact."""

import jax.numpy as jnp
import numpy as np
import pytest

import norewind
from examples.paper.influence import InfluenceBalancing


def state_at_rest(task, theta):
    """Solve for the fixed point s = A s + θ v in floating point."""
    a = (np.eye(task.n) + np.eye(task.n, k=1)) / 2
    return jnp.asarray(np.linalg.solve(np.eye(task.n) - a, theta * np.array(task.signs)))


def truncated_gradient(task, window, theta):
    """Return the gradient of T-truncated BPTT by automatic differentiation."""
    estimator = norewind.bptt(*norewind.window(task.transition, task.loss))
    params, ones = task.init(theta), jnp.ones(window)
    _, _, estimate = estimator.step(params, state_at_rest(task, theta), (), ones, ones)
    return float(estimate.grad)


@pytest.mark.parametrize("window", [1, 2, 10, 109, 110])
def test_the_block_influence_is_what_bptt_follows(x64, window):
    task = InfluenceBalancing(23, 13)
    for theta in (0.5, -0.4):
        error = task.influence_limit * theta - 1
        expected = error * float(task.block_influence(window))
        # At T = 110 the sum of a hundred terms of size 10 nearly cancels.
        assert truncated_gradient(task, window, theta) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_the_wrong_sign_ends_at_109_for_the_papers_task():
    task = InfluenceBalancing(23, 13)
    assert task.last_wrong_window() == 109
    assert task.block_influence(109) > 0 > task.block_influence(110)


@pytest.mark.parametrize(("n", "minus"), [(1, 1), (3, 2), (4, 3), (5, 3), (7, 4), (6, 1), (2, 0)])
def test_the_last_wrong_window_is_the_last_of_all(n, minus):
    task = InfluenceBalancing(n, minus)
    wrong = [T for T in range(1, 120) if task.block_influence(T) * task.influence_limit <= 0]
    assert wrong == list(range(1, task.last_wrong_window() + 1))


def test_the_limit_solves_the_task(x64):
    task = InfluenceBalancing(23, 13)
    assert task.limit == pytest.approx(-1 / 6)
    state = state_at_rest(task, task.limit)
    state, output = task.transition(task.init(task.limit), state, jnp.zeros(()))
    assert float(output) == pytest.approx(1)
    assert float(task.loss(output, jnp.ones(()))) == pytest.approx(0, abs=1e-20)


def test_learning_starts_where_the_paper_does():
    assert float(InfluenceBalancing(23, 13).init()) == 0.5


def test_a_task_without_influence_is_rejected():
    with pytest.raises(ValueError, match="no influence in the long run"):
        InfluenceBalancing(4, 2)
    with pytest.raises(ValueError, match="0 <= minus <= n"):
        InfluenceBalancing(3, 4)
