"""The regret of a mixture of numbers: the stated bound, on streams made to break it, with late targets."""

import numpy as np
import pytest

from norewind.learners.number_mixture import NumberMixture
from norewind.learners.regrets import (
    ALLOWED,
    MAX_ERROR,
    allowed_after,
    follow_regrets,
    huber_loss,
    init_regrets,
    update_regrets,
)

ROWS, ARMS = 400, 4
RNG = np.random.default_rng(0)


def against_the_weights(row, made):
    """The target is as far from what the mixture forecasts as the experts allow."""
    return np.array([-1.0, 0.0, 1.0, 0.2]), -1.0 if made > 0 else 1.0


def a_late_change(row, made):
    return np.array([0.0, 1.0, 0.5, 0.0]), float(row > ROWS / 3)


def growing(row, made):
    return np.array([0.0, 1.0, -1.0, 0.0]) * 1.05**row, 1.05**row * (row % 3 > 0)


def heavy_tails(row, made):
    return np.append(RNG.normal(size=3), 0.0), RNG.standard_cauchy()


def asleep(row, made):
    return np.array([0.0 if row % 2 else np.nan, 0.9 if row > 50 else np.nan, 5.0, 5.0]), 0.0


def bad_average(row, made):
    return np.array([0.1, 3.0, 4.0, 5.0]), 0.0


STREAMS = [against_the_weights, a_late_change, growing, heavy_tails, asleep, bad_average]


def regrets_of(stream, late):
    """Return the regrets of every row (rows, arms), computed one number at a time, and those that the kernels keep."""
    regrets, waiting, own = init_regrets(ARMS, 1), [], np.zeros((ROWS, ARMS))
    for row in range(ROWS):
        forecasts, target = np.full((ARMS + 1, 1), np.nan), 0.0
        made = waiting[row - late][-1, 0] if row >= late else 0.0
        arms, target = stream(row, made)
        if row >= late:
            due = waiting[row - late]
            update_regrets(regrets, due, np.array([target]), np.ones(1))
            losses = [huber_loss(one - target, MAX_ERROR) for one in due[:, 0]]
            own[row] = np.nan_to_num(losses[-1] - np.array(losses[:-1]))
        forecasts[:ARMS, 0] = arms
        follow_regrets(regrets, np.array([late]), forecasts, np.zeros((ARMS - 1, 1)))
        waiting.append(forecasts)
    return own, regrets


def bound_of(own, late):
    """Return the bound on the total regret of every arm, as `norewind.learners.regrets` states it."""
    sizes, squares, allowed = np.abs(own), np.square(own), allowed_after(late)
    before = sum((np.vstack([np.zeros((age, own.shape[1])), sizes[:-age]]) for age in range(1, late)), 0 * sizes)
    late_ones = 2 * (1 + allowed) * (sizes * before).sum()
    return allowed * np.sqrt(squares.sum(0)) + np.sqrt(squares.sum() + late_ones)


@pytest.mark.parametrize("late", [1, 2, 7])
@pytest.mark.parametrize("stream", STREAMS)
def test_the_bound_holds(stream, late):
    own, regrets = regrets_of(stream, late)
    allowed = allowed_after(late)
    np.testing.assert_allclose(regrets.totals[:, 0], own.sum(0), rtol=1e-9, atol=1e-9)
    bound, widest = bound_of(own, late), np.abs(own).max()
    assert np.all(own.sum(0) <= bound * (1 + 1e-9))
    assert np.all(bound <= widest * np.sqrt(ROWS) * (allowed + np.sqrt(ARMS * (1 + 2 * (1 + allowed) * (late - 1)))))
    # Always following the average would lose more than is allowed.
    assert stream is not bad_average or late > 2 or 24.99 * (ROWS - late) > 2 * bound[0]


def test_the_average_is_used_until_an_expert_is_clearly_better():
    regrets, forecasts = init_regrets(ARMS, 1), np.array([[1.0], [2.0], [3.0], [4.0], [0.0]])
    average = np.array([[0.0], [0.25], [0.75]])[: ARMS - 1]
    follow_regrets(regrets, np.array([1]), forecasts, weights := average.copy())
    assert forecasts[-1] == 4
    assert np.array_equal(weights, average)
    for count in range(1, 20):
        update_regrets(regrets, forecasts, np.array([1.0]), np.ones(1))
        follow_regrets(regrets, np.array([1]), forecasts, weights := average.copy())
        assert (forecasts[-1] == 4) == (count <= ALLOWED**2)
        # The weights are those of the experts in the forecasts.
        assert np.array_equal(weights, average) == (count <= ALLOWED**2)
        assert count <= ALLOWED**2 or (weights.T @ forecasts[: ARMS - 1])[0] == pytest.approx(forecasts[-1])
    # Nothing is learned from an unknown target, and an expert without a forecast does not count.
    before = regrets.totals.copy()
    update_regrets(regrets, forecasts, np.array([np.nan]), np.ones(1))
    assert np.array_equal(regrets.totals, before)
    forecasts[:3] = np.nan
    follow_regrets(regrets, np.array([1]), forecasts, weights)
    assert forecasts[-1] == 4


@pytest.mark.parametrize("steps", [(1,), (1, 4)])
def test_the_bound_holds_for_the_mixture(steps):
    rng = np.random.default_rng(1)
    # What is true of this stream changes all the time: it repeats, and then it does the opposite.
    xs = np.concatenate([np.repeat(rng.normal(size=30), 5), rng.choice([-1.0, 1.0], 150) * np.geomspace(1, 50, 150)])
    xs = xs[:, None].astype(np.float32)
    mixture = NumberMixture(1, 1, steps=steps, known=(0,))
    targets = np.tile(xs, len(steps))
    run, _, _ = mixture.scan(mixture.init(), xs, targets, outputs=True)
    regrets = run.mixture.regrets
    assert (regrets.squares > 0).any(axis=0).all()
    for place, step in enumerate(steps):
        squares, allowed = regrets.squares[:, place], allowed_after(step)
        # |r| |r'| is at most half of r² + r'².
        late = 2 * (1 + allowed) * (step - 1) * squares.sum()
        assert np.all(regrets.totals[:, place] <= allowed * np.sqrt(squares) + np.sqrt(squares.sum() + late))
