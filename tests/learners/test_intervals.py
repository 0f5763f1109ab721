"""Intervals: the bound on misses holds for every stream, and keys and chunks change nothing."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from norewind.core.checks import ModelError
from norewind.core.trees import copy_arrays
from norewind.fleets import Fleet, Keyed
from norewind.learners import LeastSquares
from norewind.learners.intervals import MAX_THRESHOLD, IntervalLearner
from norewind.learners.learner import Forecasts
from norewind.testing import check_learner

LEVELS = (0.5, 0.9)
# What an adversary, who knows the bounds, makes of a target.
ADVERSARY = {
    "above": lambda low, high: np.nextafter(np.float32(high), np.float32(np.inf)),
    "below": lambda low, high: np.nextafter(np.float32(low), np.float32(-np.inf)),
    "inside": lambda low, high: np.float32((low + high) / 2),
    "far": lambda low, high: np.float32(100.0),
    "unknown": lambda low, high: np.float32(np.nan),
}
PIECES = st.lists(st.tuples(st.sampled_from(sorted(ADVERSARY)), st.integers(1, 300)), min_size=1, max_size=8)


def intervals(step, levels=LEVELS):
    return IntervalLearner(LeastSquares(1, 1, steps=(step,)), levels, targets=1)


@settings(deadline=None, max_examples=60)
@given(PIECES, st.sampled_from([0, 1, 2, 9]), st.floats(-3, 3, width=32))
@example([("above", 900)], 9, 0.0)
@example([("below", 300), ("above", 300), ("inside", 300)], 2, 1.0)
def test_misses_are_bounded_for_every_stream(pieces, step, forecast):
    learner = intervals(step)
    state, slots = learner.start(), np.zeros(1, np.int64)
    first, tails, gain = state.thresholds[0, :, 0].copy(), learner.plan.tails, learner.plan.gains[0]
    scored, missed = 0, np.zeros(len(tails))
    made = np.array([[forecast]], np.float32)
    row = 0
    for action, length in pieces:
        for _ in range(length):
            if step:
                bounds = state.waiting[0, (row - step) % step, :, 0]
            else:
                trial = type(state)(*(part.copy() for part in state))
                bounds = learner.add_bounds(trial, slots, [[np.nan]], Forecasts(made, made)).made[0, 1:]
            low, high = np.clip(np.nan_to_num(bounds[2:], nan=forecast), -100, 100)
            target = ADVERSARY[action](low, high)
            target = target if np.isnan(target) else np.clip(target, -100, 100)
            if not np.isnan(bounds).any() and not np.isnan(target):
                scored += 1
                missed += [target < bound if place % 2 == 0 else target > bound for place, bound in enumerate(bounds)]
            learner.add_bounds(state, slots, [[target]], Forecasts(made, made))
            row += 1
            most = tails * scored + (MAX_THRESHOLD - first) / gain + (1 - tails) * max(1, step)
            assert (missed <= most + 1e-6).all()
    if state.thresholds.min() > -MAX_THRESHOLD:
        moved = (state.thresholds[0, :, 0] - first) / gain
        np.testing.assert_allclose(missed - tails * scored, moved, atol=1e-6)


@pytest.mark.parametrize("step", [1, 6])
def test_coverage_and_width_are_those_of_the_errors(step):
    """With skewed errors, the bounds differ, and neither is missed more often than the other."""
    random = np.random.default_rng(step)
    noise = random.exponential(size=(6_000, 1)) - 1
    learner = intervals(step)
    _, _, (_, due) = learner.scan(learner.init(learner.learner.init()), noise, noise)
    low, high = due[3_000:, 3].astype(float), due[3_000:, 4].astype(float)
    for share in (np.mean(noise[3_000:, 0] < low), np.mean(noise[3_000:, 0] > high)):
        assert 0.04 < share < 0.06
    best = -1 - np.log(0.95), -1 - np.log(0.05)
    assert np.mean(low) == pytest.approx(best[0], abs=0.15)
    assert np.mean(high) == pytest.approx(best[1], abs=0.25)


@pytest.mark.parametrize("steps", [(0,), (1, 3)])
def test_intervals_are_a_learner(steps):
    learner = IntervalLearner(LeastSquares(2, 1, steps=steps), LEVELS, targets=1)
    xs = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    check_learner(learner, learner.init(learner.learner.init()), xs, np.repeat(xs[:, :1], len(steps), axis=1))


def test_every_key_has_its_own_intervals():
    learner = IntervalLearner(LeastSquares(1, 1, steps=(1, 2)), LEVELS, targets=1)
    start = learner.init(learner.learner.init())
    xs = np.random.default_rng(0).normal(size=(120, 1)).astype(np.float32) * np.tile([[1], [9]], (60, 1))
    xs, targets = xs.astype(np.float32), np.repeat(xs, 2, axis=1).astype(np.float32)
    fleet = Fleet(learner, start)
    _, _, together = fleet.scan(fleet.init(), Keyed([b"a", b"b"] * 60, xs), targets)
    for place in range(2):
        _, _, alone = learner.scan(copy_arrays(start), xs[place::2], targets[place::2])
        for one, other in zip(together, alone, strict=True):
            np.testing.assert_array_equal(one[place::2], other)


def test_levels_are_checked():
    with pytest.raises(ModelError, match="between 0 and 1"):
        intervals(1, [1.0])
