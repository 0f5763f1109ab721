"""Periods are found online: the distances are those of a plain loop, and known periods are found in time."""

import numpy as np
import pytest

from norewind.learners.seasons import LONGEST_PERIOD, MEMORY, REPEATS, init_seasons, observe_row


def found_in(values, periods=()):
    """Return the seasons after each row of values (rows, columns), as their state at the end and a list of periods."""
    seasons, history = init_seasons(values.shape[1], periods), []
    for row in values:
        observe_row(seasons, row)
        history.append(tuple(sorted(seasons.periods[seasons.periods > 0].tolist())))
    return seasons, history


def wave(rows, period, noise=0.1, seed=0):
    shape = np.random.default_rng(seed).normal(size=period)
    return shape[np.arange(rows) % period] + noise * np.random.default_rng(seed + 1).normal(size=rows)


def test_distances_are_those_of_a_plain_loop():
    values = np.random.default_rng(0).normal(size=(LONGEST_PERIOD + 300, 1)).cumsum(axis=0)
    seasons, _ = found_in(values)
    assert len(values) < MEMORY
    for lag in (1, 2, 24, 1_000, LONGEST_PERIOD):
        expected = np.mean(np.abs(values[lag:] - values[:-lag]))
        assert seasons.distances[lag] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("period", [4, 7, 12, 24, 48, 96])
@pytest.mark.parametrize("seed", range(3))
def test_a_period_is_found(period, seed):
    values = wave(8 * period, period, seed=seed)
    _, history = found_in(values[:, None])
    assert period in history[-1]
    assert period in history[round(1.3 * REPEATS * period)]


def test_a_short_and_a_long_period_are_found():
    day, week = wave(168 * 6, 24, noise=0.1), wave(168 * 6, 168, noise=0.1, seed=5)
    _, history = found_in((day + 0.5 * week)[:, None])
    assert history[-1] == (24, 168)


def test_lines_and_constants_have_no_period():
    for values in (np.zeros((500, 1)), np.arange(500.0)[:, None]):
        assert not any(found_in(values)[1])


def test_a_known_period_is_kept_until_another_is_closer():
    values = wave(400, 24)[:, None]
    _, history = found_in(values, periods=[24])
    assert all(24 in periods for periods in history)
    _, history = found_in(values, periods=[7])
    assert history[0] == (7,)
    assert 24 in history[-1]
