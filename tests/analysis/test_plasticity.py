"""The instruments of continual learning, on activations whose answer is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from norewind import adam, cells, losses, online, window
from norewind.analysis.plasticity import dormant_units, effective_rank, plasticity, weight_growth
from norewind.estimators import snap1


def test_effective_rank_of_known_spectra():
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(n, 4)))[0] for n in (20, 6))
    values = np.array([8.0, 4.0, 2.0, 2.0])
    share = values / 16
    wanted = np.exp(-np.sum(share * np.log(share)))
    assert effective_rank(jnp.asarray(left * values @ right.T)) == pytest.approx(wanted, rel=1e-5)
    assert effective_rank(jnp.zeros((5, 3))) == 0.0


def test_a_unit_is_dormant_relative_to_the_others():
    rng = np.random.default_rng(1)
    activations = rng.normal(size=(500, 4)) * [1.0, 0.02, 1.0, 0.04]
    assert dormant_units(jnp.asarray(activations)).tolist() == [False, False, False, False]
    assert dormant_units(jnp.asarray(activations), 0.06).tolist() == [False, True, False, False]
    assert dormant_units(jnp.asarray(100 * activations), 0.06).tolist() == [False, True, False, False]


def test_growth_by_leaf():
    start = {"a": jnp.array([3.0, 4.0]), "b": jnp.zeros(2), "c": jnp.zeros(1)}
    now = {"a": jnp.array([0.0, 10.0]), "b": jnp.ones(2), "c": jnp.zeros(1)}
    assert weight_growth(now, start) == {"['a']": 2.0, "['b']": float("inf"), "['c']": 1.0}


def test_of_a_run_with_windows_in_which_one_unit_is_off():
    cell = cells.mingru(3, 4, 3)
    learner = online(snap1(*window(cell.transition, losses.cross_entropy)), adam(1e-2))
    params = cell.init(jax.random.key(0))
    params["input"] = params["input"].at[:, 6].set(0)
    params["bias"] = params["bias"].at[6].set(0)  # the candidate of unit 2 is 0
    run = learner.init(params, cell.initial_state(), jax.random.key(1))
    xs = np.random.default_rng(0).integers(0, 3, 200)
    before = plasticity(learner, run, params, xs)
    assert before.dormant == 0.25
    assert 1 < before.rank < 3.001
    assert set(before.growth.values()) == {1.0}
    learned, _, _ = learner.scan(run, xs[:160].reshape(40, 4), xs[1:161].reshape(40, 4))
    after = plasticity(learner, learned, params, xs)
    assert after.dormant == 0
    assert max(abs(factor - 1) for factor in after.growth.values()) > 0.1
