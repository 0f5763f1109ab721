"""Scores of anomalies: how often they come up without anomalies, what they find, and a slow reference."""

import numpy as np
import pytest

from norewind.scoring import anomalies
from norewind.scoring.anomalies import init_anomalies, score_rows, scores_and_columns

ROWS = 2_000
STREAMS = 50


def autoregressive(noise, shape):
    values = noise.normal(size=shape)
    for row in range(1, shape[1]):
        values[:, row] += 0.95 * values[:, row - 1]
    return values, np.diff(values, axis=1, prepend=0)


# Values and errors of streams without anomalies.
QUIET = {
    "white noise": lambda noise, shape: (values := noise.normal(size=shape), values),
    "uniform": lambda noise, shape: (values := noise.random(shape), values - 0.5),
    "two values": lambda noise, shape: (values := noise.integers(0, 2, shape) * 1.0, values - 0.5),
    "heavy tails": lambda noise, shape: (values := noise.standard_t(3, shape), values),
    "skewed": lambda noise, shape: (values := np.exp(noise.normal(size=shape)), values - np.exp(0.5)),
    "a wave": lambda noise, shape: (
        np.sin(np.arange(shape[1]) / 45.8 + noise.random((shape[0], 1))),
        noise.normal(size=shape) * 1e-9,
    ),
    "memory": autoregressive,
}


def scores_of(values, errors):
    return np.stack([scored(init_anomalies(), *one) for one in zip(values, errors, strict=True)])


def scored(state, values, errors):
    """The scores of one column."""
    return score_rows(state, values[:, None], errors[:, None])


@pytest.mark.parametrize("kind", QUIET)
def test_a_score_comes_up_at_most_as_often_as_it_says(kind):
    values, errors = QUIET[kind](np.random.default_rng(0), (STREAMS, ROWS))
    scores = scores_of(values, errors)
    assert ((scores >= 0) & (scores <= 1)).all()
    for share in (0.1, 0.01):
        assert (scores >= 1 - share).mean() <= share
    assert (scores >= 0.999).mean() <= 2e-3  # tails that are continued, after few rows
    # On one long stream, this holds too.
    assert (scores_of(values.reshape(1, -1), errors.reshape(1, -1)) >= 0.999).mean() <= 1e-3


@pytest.mark.parametrize("kind", ["white noise", "heavy tails", "memory"])
def test_scores_are_not_needlessly_low(kind):
    values, errors = QUIET[kind](np.random.default_rng(1), (1, 100_000))
    assert (scores_of(values, errors) >= 0.99).mean() > 2e-3


@pytest.mark.parametrize("kind", ["white noise", "a wave", "uniform", "memory"])
def test_a_jump_is_found_at_once_and_alarms_once(kind):
    values, errors = (part[0] for part in QUIET[kind](np.random.default_rng(2), (1, ROWS)))
    values[1500:] += 3 * np.ptp(values)
    errors[1500] += 30 * np.abs(errors).max()
    scores = scored(init_anomalies(), values, errors)
    assert scores[1500] > 0.9999
    assert (scores[1501:1580] > scores[1500]).sum() == 0
    assert (scores[1500:] > 0.999).sum() <= 3  # the new level is soon the usual one


def test_a_drift_is_found_although_every_error_is_usual():
    noise = np.random.default_rng(3)
    values = noise.normal(size=ROWS)
    values[1500:] += 2.0
    scores = scored(init_anomalies(), values, noise.normal(size=ROWS))
    assert (scores[1500:1520] > 0.999).any()


def test_chunks_single_rows_and_the_scale_make_no_difference():
    noise = np.random.default_rng(4)
    values, errors = noise.normal(size=(2, 600))
    values[::97], errors[::89] = np.nan, np.nan
    whole = scored(init_anomalies(), values, errors)
    assert (whole[::97] == 0).all()
    state = init_anomalies()
    single = [scored(state, values[row : row + 1], errors[row : row + 1])[0] for row in range(600)]
    assert np.array_equal(whole, single)


def test_the_recursion_is_that_of_a_slow_reference():
    noise = np.random.default_rng(5)
    values, errors = noise.standard_t(2, (2, 400))
    assert scored(init_anomalies(), values, errors) == pytest.approx(list(reference(values, errors)), abs=1e-12)


@pytest.mark.parametrize("kind", ["white noise", "heavy tails", "two values"])
def test_a_score_of_several_columns_comes_up_at_most_as_often_as_it_says(kind):
    values, errors = QUIET[kind](np.random.default_rng(6), (STREAMS * 5, ROWS))
    several = (np.moveaxis(part.reshape(STREAMS, 5, ROWS), 1, 2) for part in (values, errors))
    scores = np.stack([score_rows(init_anomalies(5), *one) for one in zip(*several, strict=True)])
    for share in (0.1, 0.01):
        assert (scores >= 1 - share).mean() <= share
    assert (scores >= 0.999).mean() <= 2e-3


def test_errors_that_are_large_together_are_found_although_each_of_them_is_usual():
    noise = np.random.default_rng(7)
    values = noise.normal(size=(ROWS, 9))
    errors = noise.normal(size=(ROWS, 9))
    errors[1500] = 2.0
    errors[1500, 3] = -2.5
    alone = scored(init_anomalies(), values[:, 3], errors[:, 3])
    assert alone[1500] < 0.99
    scores, columns = scores_and_columns(init_anomalies(9), values, errors)
    assert scores[1500] > 0.999
    assert columns[1500] == 3


def test_several_columns_are_compared_as_in_a_slow_reference():
    noise = np.random.default_rng(8)
    values, errors = noise.standard_t(2, (2, 400, 3))
    errors[::17, 1], errors[5] = np.nan, np.nan
    scores = score_rows(init_anomalies(3), values, errors)
    alone = np.stack([1 - scored(init_anomalies(), values[:, i], errors[:, i]) for i in range(3)])
    sizes = []
    for row, found in enumerate(scores):
        known = errors[row][~np.isnan(errors[row])]
        together = rarity(sizes, np.sqrt(np.mean(known**2))) if len(known) else 1.0
        sizes += [np.sqrt(np.mean(known**2))] if len(known) else []
        assert found == pytest.approx(1 - min(1, 2 * min(3 * alone[:, row].min(), together)), abs=1e-9)


def rarity(past, size):
    """The share of earlier sizes, latest last, that are at least as large."""
    weights = (1 + 1 / anomalies.FADING_ROWS) ** np.arange(-len(past), 0.0)
    total = weights.sum()
    if total < anomalies.MIN_ROWS / (1 + anomalies.MIN_ROWS / anomalies.FADING_ROWS):
        return 1.0
    places = (np.log([*past, size]) + 70) * 10
    *bins, here = places.astype(int)
    bins = np.array(bins)
    above = weights[bins > here].sum() + 0.5 * weights[bins == here].sum()
    start = max(bins)
    while weights[bins >= start].sum() < anomalies.TAIL_COUNT:
        start -= 1
    tail = bins >= start
    if here > start + 1 and above < weights[tail].sum():
        mean = max((weights * (bins + 0.5 - start))[tail].sum() / weights[tail].sum(), 0.5)
        return min(1, weights[tail].sum() / total * np.exp((start - places[-1]) / mean))
    return (above + 0.5) / (total + 1)


def reference(values, errors):
    sizes, rests = [], []
    distances = {rows: [] for rows in anomalies.MEAN_LENGTHS}
    for row, (value, error) in enumerate(zip(values, errors, strict=True)):
        before = values[:row]
        rare = [rarity(sizes, abs(error))]
        sizes.append(abs(error))
        for rows, past in distances.items():
            if row >= rows:
                distance = abs(values[row - rows + 1 : row + 1].mean() - values[: row + 1].mean())
                rare.append(rarity(past, distance))
                past.append(distance)
        if row >= anomalies.MIN_ROWS and not before.min() <= value <= before.max():
            beyond = max(value - before.max(), before.min() - value) / np.ptp(before)
            rare.append(2 / (row + 1) * (1 + beyond) ** -10)
        found = min(1, 4 * min(rare))
        episode = [one for when, one in rests if row - when <= anomalies.REST_ROWS][-1:] or [1.0]
        yield 1 - found if found < episode[0] else 0.0
        if found <= min(episode[0], anomalies.REST_PROBABILITY):
            rests.append((row, found))
