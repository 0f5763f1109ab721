"""The tables of SK-RTRL: its series, the means it notes, and the traces that it calls RFLO."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples.sketched_rtrl.leaky_traces import leaky_traces
from examples.sketched_rtrl.report import summary
from examples.sketched_rtrl.runs import initial_params, noted, squared_error, table_plan
from examples.sketched_rtrl.series import LANES, REAL, SERIES, lanes_of
from norewind.cells import elman


@pytest.fixture
def data(tmp_path):
    random = np.random.default_rng(0)
    for file, size in (("sunspot.txt", 3_329), ("laser.txt", 1_000)):
        np.savetxt(tmp_path / file, random.normal(100, 20, size))
    return tmp_path


@pytest.mark.parametrize("name", SERIES)
def test_a_target_is_the_next_input_until_a_longer_file_starts_again(name, data):
    inputs, targets = lanes_of(name, 3_500, 1, data)
    assert inputs.shape == targets.shape == (3_500, LANES)
    follows = (inputs[1:] == targets[:-1]).all(axis=1)
    period = {"sunspots": 3_000, "laser": 1_000}.get(name, 4_000)
    assert np.flatnonzero(~follows).tolist() == ([2_999] if name == "sunspots" else [])
    if name in REAL:
        assert np.array_equal(inputs[period:], inputs[: 3_500 - period])
        known = inputs[: min(period, 2_000)]
        assert known.mean(axis=0) == pytest.approx(np.zeros(LANES), abs=1e-5)
        assert known.std(axis=0, ddof=1) == pytest.approx(np.ones(LANES), abs=1e-5)


def test_the_chaotic_series_follow_their_maps(data):
    inputs, targets = lanes_of("henon", 1_000, 0, data)
    lane = np.append(inputs[:, 0], targets[-1, 0]).astype(float)
    # x″ = 1 − 1.4 x′² + 0.3 x stays quadratic in standardised values.
    design = np.stack([np.ones(999), lane[1:-1], lane[1:-1] ** 2, lane[:-2]], axis=1)
    assert np.abs(lane[2:] - design @ np.linalg.lstsq(design, lane[2:], rcond=None)[0]).max() < 1e-5
    with pytest.raises(ValueError, match="lorenz is made for 20,000 samples, not 20,001"):
        lanes_of("lorenz", 20_001, 0, data)


def test_the_notes_are_those_of_the_published_code():
    losses, notes = np.random.default_rng(0).normal(size=15_000), []
    for step in range(15_000):
        if step % 250 == 0:
            notes.append(losses[max(0, step - 199) : step + 1].mean())
    assert noted(losses) == pytest.approx(np.mean(notes[-5:]))


def test_leaky_traces_equal_their_recursion():
    cell, keys = elman(1, 4, 1, symbols=False), jax.random.split(jax.random.key(0))
    params = initial_params(cell.init(keys[0]), keys[0])
    estimator = leaky_traces(cell, squared_error)
    state = jnp.zeros(4)
    carry, traces = estimator.init(params, state, keys[1]), np.zeros((4, 6))
    for x, y in np.random.default_rng(0).normal(size=(5, 2, 1)):
        seen = np.concatenate([np.asarray(state), x, [1]])
        state, carry, estimate = estimator.step(params, state, carry, jnp.asarray(x), jnp.asarray(y))
        traces = 0.9 * traces + np.outer(1 - np.asarray(state) ** 2, seen)
        weight, bias = (np.asarray(params["readout"][name]) for name in ("weight", "bias"))
        error = weight @ np.asarray(state) + bias - y
        grad = (2 * error @ weight)[:, None] * traces
        assert np.asarray(estimate.grad["recurrent"]) == pytest.approx(grad[:, :4], rel=1e-4, abs=1e-6)
        assert np.asarray(estimate.grad["bias"]) == pytest.approx(grad[:, 5], rel=1e-4, abs=1e-6)


def test_a_plan_has_a_run_for_every_seed_method_and_series():
    plan = table_plan(("snap1", "uoro"), seeds=(0, 1))
    assert len(plan) == 2 * 2 * 5
    assert "lorenz-snap1-15000-seed1" in plan


def test_the_interval_is_for_one_more_seed():
    # t(0.975, 2) = 4.303; s = 0.01; √(1 + 1/3) = 1.1547.
    assert summary([0.1, 0.12, 0.11]) == "0.1100 ± 0.0497 (3)"
