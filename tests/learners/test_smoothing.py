"""Exponential smoothing equals the textbook's recursions, with bounded memory."""

import numpy as np
import pytest

from norewind.learners.series_models import SMOOTHINGS
from norewind.learners.smoothing import (
    ERROR_LIMIT,
    SPREAD_RATE,
    Smoothing,
    init_smoothing,
    smooth_row,
    smoothing_table,
    write_smoothed,
)

ROWS, PERIOD, STEPS, RING = 90, 6, np.array([1, 2, 6, 9]), 40


def sales(rows=ROWS):
    rng = np.random.default_rng(0)
    season = 1 + 0.3 * np.sin(np.arange(rows) * 2 * np.pi / PERIOD)
    values = (50 + 0.4 * np.arange(rows)) * season + rng.normal(size=rows)
    values[70] += 300  # an outlier, whose error is limited
    return values


def forecasts_of(settings, values, period, found):
    """Return the forecasts made at every row (rows, steps), where the period is known from a row on."""
    table, run = smoothing_table([settings]), init_smoothing([settings], 1, 50)
    ring, made = np.zeros((RING, 1)), np.zeros((len(values), len(STEPS)))
    for t, value in enumerate(values):
        ring[t % RING] = value
        smooth_row(table, run, ring, t, np.array([period if t >= found else 0, 0]))
        write_smoothed(table[0], run, 0, t, STEPS, np.array([values[: t + 1].min()]), made[t])
    return made


def textbook(settings, values, period, found):
    """Compute the same by the equations for the components of Holt and Winters, and of Theta."""
    made = np.full((len(values), len(STEPS)), np.nan)
    level = trend = spread = None
    for t in range(len(values)):
        known = period if t >= found and settings.season else 0
        if (settings.season and (not known or t + 1 < 2 * known)) or (t == 0 and known):
            continue
        if level is None and not known:
            level, trend, spread, seasons = values[t], 0.0, 0.0, None
        elif level is None:
            first = t + 1 - known * min(4, (t + 1) // known, RING // known)
            one, two = values[first : first + known], values[first + known : first + 2 * known]
            slope = (two.mean() - one.mean()) / known
            line = one.mean() + slope * (np.arange(2 * known) - (known - 1) / 2)
            apart = np.append(one, two) / line if settings.multiplicative else np.append(one, two) - line
            seasons = dict(enumerate((apart[:known] + apart[known:]) / 2, first - known))
            level, trend = line[0] - slope, 0.0 if settings.theta else slope
            spread = np.mean((np.append(one, two) - line) ** 2)
            for earlier in range(first, t + 1):
                level, trend, spread = learn(settings, values[earlier], earlier, known, level, trend, spread, seasons)
        else:
            level, trend, spread = learn(settings, values[t], t, known, level, trend, spread, seasons)
        if settings.theta and t > 0 and not (known and t + 1 == max(2 * known, found + 1)):
            trend = np.polyfit(np.arange(t + 1), values[: t + 1], 1)[0] / 2
        for place, step in enumerate(STEPS):
            rows = sum(settings.damping**i for i in range(1, step + 1))
            if settings.theta:
                rows = step - 1 + (1 - (1 - settings.level) ** (t + 1)) / settings.level
            made[t, place] = level + rows * trend
            if known:
                season = seasons[t + step - known * -(-step // known)]
                made[t, place] = made[t, place] * season if settings.multiplicative else made[t, place] + season
    return made


def learn(settings, value, t, period, level, trend, spread, seasons):
    trend = 0.0 if settings.theta else settings.damping * trend
    season = seasons[t - period] if period else 0.0
    expected = (level + trend) * season if settings.multiplicative else level + trend + season
    if spread > 0:
        value = expected + np.clip(value - expected, -ERROR_LIMIT * spread**0.5, ERROR_LIMIT * spread**0.5)
    spread += (SPREAD_RATE if spread > 0 else 1) * ((value - expected) ** 2 - spread)
    own = value / season if settings.multiplicative else value - season
    after = settings.level * own + (1 - settings.level) * (level + trend)
    if period:
        apart = value / (level + trend) if settings.multiplicative else value - level - trend
        seasons[t] = settings.season * apart + (1 - settings.season) * season
    return after, settings.trend * (after - level) + (1 - settings.trend) * trend, spread


@pytest.mark.parametrize("settings", [*SMOOTHINGS, Smoothing(0.4, 0.2, 0.1, damping=0.9), Smoothing(0.4, 0.2)])
@pytest.mark.parametrize("found", [0, 30])
def test_smoothing_is_that_of_the_textbook(settings, found):
    values = sales()
    made, expected = (compute(settings, values, PERIOD, found) for compute in (forecasts_of, textbook))
    np.testing.assert_allclose(made, expected, rtol=1e-9)
    assert np.isfinite(made[-1]).all()


def test_factors_need_positive_values():
    made = forecasts_of(Smoothing(0.3, 0.1, 0.2, multiplicative=True), sales() - 60, PERIOD, 0)
    assert np.isnan(made[-1]).all()
