"""Runs packed for single calls: nothing is lost, and they learn as the others do."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import norewind
from norewind.learners.least_squares import LeastSquares, lags
from norewind.learners.series import Series, member
from norewind.packing import Packing, Single
from norewind.trees import is_key

TEXT = [0, 2, 1, 1, 0, 2, 2, 1, 0, 0, 1, 2] * 3


def numbers(leaf):
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def test_packing_loses_nothing():
    tree = {
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(4), 2),
        "complex": jnp.array([[1 + 2j, jnp.inf - 3j]], jnp.complex64),
        "counts": (jnp.array(7, jnp.int32), jnp.array([2**32 - 1], jnp.uint32)),
        "flag": jnp.array([True, False]),
        "half": jnp.array([1.5, jnp.nan], jnp.bfloat16),
        "rows": np.arange(6, dtype=np.float32).reshape(2, 3),
        "none": None,
        "empty": jnp.zeros((0, 3)),
    }
    packing = Packing(tree)
    vectors = packing.packed(tree)
    again = packing.unpacked(vectors)
    assert jax.tree.structure(again) == jax.tree.structure(tree)
    assert isinstance(again["rows"], np.ndarray)
    for before, after in zip(jax.tree.leaves(tree), jax.tree.leaves(again), strict=True):
        assert (before.dtype, before.shape) == (after.dtype, after.shape)
        assert numbers(before).tobytes() == numbers(after).tobytes()
    # float32, int32, bool and bfloat16.
    assert len(vectors) == 4


@pytest.fixture(scope="module")
def pair():
    cell = norewind.cells.gru(inputs=3, hidden=5, outputs=3)
    learner = norewind.online(norewind.uoro(cell.transition, norewind.losses.cross_entropy), norewind.adam(1e-2))
    return learner, learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))


def assert_same_run(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(numbers(a), numbers(b), rtol=1e-4, atol=1e-6)


def test_a_packed_run_learns_as_the_other_does(pair):
    learner, run = pair
    single, now = norewind.packed(learner, run)
    for x, target in pairwise(TEXT):
        run, estimate = learner.step(run, x, target)
        now, found = single.step(now, x, target)
        np.testing.assert_allclose(found.loss, estimate.loss, rtol=1e-4)
        np.testing.assert_allclose(found.output, estimate.output, rtol=1e-4, atol=1e-5)
    assert_same_run(single.unpacked(now), run)


def test_late_targets_and_inputs_that_wait(pair):
    learner, run = pair
    single, now = norewind.packed(learner, run)
    for place, x in enumerate(TEXT):
        run, output = learner.predict(run, x)
        now, found = single.predict(now, x)
        np.testing.assert_allclose(found, output, rtol=1e-4, atol=1e-5)
        if place >= 2:
            run, _ = learner.learn(run, TEXT[place - 1])
            now, _ = single.learn(now, TEXT[place - 1])
    assert_same_run(single.unpacked(now), run)
    assert_same_run(single.unpacked(single.pack(run)), run)
    with pytest.raises(ValueError, match="2 of them"):
        single.step(now, 0, 0)
    with pytest.raises(ValueError, match="no input waits"):
        single.learn(single.pack(pair[1]), 0)


def test_a_step_that_is_not_finite_leaves_the_run_as_it_was(pair):
    learner, run = pair
    single, now = norewind.packed(learner, run._replace(params=jax.tree.map(lambda leaf: leaf * jnp.nan, run.params)))
    with pytest.raises(norewind.NonFiniteError, match="step 1 ") as error:
        single.step(now, 0, 1)
    assert int(error.value.run.steps) == 0


@pytest.mark.parametrize("horizon", [0, 2])
def test_rows_one_by_one_are_a_scan_of_them(horizon):
    learner = LeastSquares(lags(2, 3), 1, forgetting=0.99, limit=5.0)
    series = Series(
        [member(learner, learner.init(), 2, 1, horizon)], 1, horizon, known=[0] if horizon else (), gaussian=True
    )
    xs = np.random.default_rng(0).normal(size=(60, 2)).cumsum(axis=0).astype(np.float32)
    targets = xs[:, :1] - (0 if horizon else xs[:, 1:])
    targets[: max(1, horizon)] = targets[20] = np.nan
    run, (losses, outputs) = series.scan(series.init(), xs, targets, outputs=True)
    single = Single(series, series.init())
    now, seen = single.pack(series.init()), []
    for place, (x, target) in enumerate(zip(xs, targets, strict=True)):
        if place < horizon:
            now, made = single.answer(now, x)
            seen.append((0.0, made))
        else:
            now, *loss_and_made = single.step(now, x, target)
            seen.append(tuple(loss_and_made))
    found = jax.tree.map(lambda *rows: np.stack(rows), *seen)
    for one, other in zip(jax.tree.leaves((losses, outputs)), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)
    assert_same_run(single.unpacked(now), run)
