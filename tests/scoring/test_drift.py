"""Alarms of drift: rare on stationary noise of every kind, soon after a change, and the same however rows are cut."""

import numpy as np
import pytest

from norewind.scoring.drift import (
    BINS,
    BINS_PER_E,
    FALSE_ALARM_ROWS,
    HISTOGRAM_START,
    LOWEST_LOG,
    POWERS,
    MemberWeights,
    bet,
    block_rows,
    find_drift,
    init_drift,
)

NOISE = {
    "normal": lambda rng, rows: rng.normal(size=rows),
    "heavy tails": lambda rng, rows: rng.standard_t(1.5, size=rows),
    "rare spikes": lambda rng, rows: rng.normal(size=rows) * np.where(rng.random(rows) < 0.001, 100, 1),
    "three values": lambda rng, rows: rng.integers(0, 3, rows).astype(float),
    "constant": lambda rng, rows: np.ones(rows),
}


def alarms(errors, step=1, block=16, first=0, state=None):
    errors = np.abs(errors).reshape(len(errors), -1)
    return find_drift(init_drift(errors.shape[1]) if state is None else state, errors, first, step, block)


@pytest.mark.parametrize("kind", NOISE)
def test_false_alarms_are_as_rare_as_stated(kind):
    """On two million rows, at most one alarm is expected in 100,000 rows; that is 20."""
    rows = 2_000_000
    found = alarms(NOISE[kind](np.random.default_rng(0), rows))
    assert len(found) <= rows / FALSE_ALARM_ROWS


def test_false_alarms_of_overlapping_forecasts_are_rare():
    """The errors of forecasts 12 rows ahead are sums of the latest 12 changes."""
    steps = np.random.default_rng(0).normal(size=1_000_000)
    errors = np.convolve(steps, np.ones(12), "valid")
    assert len(alarms(errors, 12, block_rows(12))) <= 10


def test_the_bets_gain_nothing_on_average_wherever_a_mean_is_among_the_earlier_ones():
    """This is what the rate of false alarms rests on: all places, of equal means too, together gain exactly 1."""
    rng = np.random.default_rng(0)
    for means in (np.exp(rng.normal(size=40)), np.repeat([0.5, 1.0, 2.0], [5, 20, 3]), np.ones(4)):
        gains = []
        for last in range(len(means)):
            detector = np.zeros(HISTOGRAM_START + BINS)
            places = ((np.log(np.delete(means, last)) - LOWEST_LOG) * BINS_PER_E).astype(int)
            detector[0] = len(means) - 1
            np.add.at(detector, HISTOGRAM_START + places, 1)
            bet(detector, means[last], 0, np.array(POWERS))
            gains.append(detector[1 : 1 + len(POWERS)].copy())
        np.testing.assert_allclose(np.mean(gains, axis=0), 1, rtol=1e-12)


@pytest.mark.parametrize(("before", "factor", "most"), [(640, 10, 320), (5_000, 10, 320), (5_000, 2, 500)])
def test_larger_errors_are_found_within_the_stated_number_of_rows(before, factor, most):
    began = []
    for seed in range(20):
        errors = np.random.default_rng(seed).normal(size=before + 1_000)
        errors[before:] *= factor
        (row, column, since), *_ = alarms(errors)
        assert before <= row < before + most + 16
        assert column == 0
        began.append(since - before)
    # When it began is an estimate.
    assert max(map(abs, began)) <= 100


def test_smaller_errors_and_those_of_a_model_that_learns_raise_no_alarm():
    rng = np.random.default_rng(0)
    assert not alarms(rng.normal(size=20_000) * np.geomspace(10, 0.1, 20_000))


def test_after_an_alarm_the_larger_errors_are_usual():
    errors = np.random.default_rng(0).normal(size=40_000)
    errors[10_000:] *= 5
    assert len(alarms(errors)) == 1


def test_an_alarm_names_its_column():
    errors = np.random.default_rng(0).normal(size=(6_000, 3))
    errors[4_000:, 1] *= 4
    assert {column for _, column, _ in alarms(errors)} == {1}


@pytest.mark.parametrize("cut", [1, 7, 100])
def test_alarms_do_not_depend_on_how_rows_are_divided(cut):
    errors = np.random.default_rng(0).normal(size=(700, 2))
    errors[::9] = np.nan
    errors[300:, 1] *= 50
    whole, parts, found = init_drift(2), init_drift(2), []
    expected = alarms(errors, state=whole)
    for start in range(0, len(errors), cut):
        new = alarms(errors[start : start + cut], first=start, state=parts)
        found += [(start + row, column, since) for row, column, since in new]
    assert found == expected != []
    np.testing.assert_array_equal(parts, whole)


def test_a_change_of_members_is_an_alarm_and_a_small_one_is_not():
    weights, lines = MemberWeights(), []
    for samples, shares in ((200, (0.9, 0.1)), (400, (0.6, 0.4)), (600, (0.05, 0.95)), (800, (0.05, 0.95))):
        weights.add(np.tile(shares, (150, 1)))
        weights.add(np.tile(shares, (50, 1)))
        lines.append({"samples": samples, "time": f"t{samples}"})
        weights.add_line(lines[-1], ["last value", "network"])
    assert [line["weights"]["network"] for line in lines] == [0.1, 0.4, 0.95, 0.95]
    assert ["drift" in line for line in lines] == [False, False, True, False]
    assert lines[2]["drift"] == [{"sample": 600, "of": "members", "time": "t600"}]
    assert [line.get("alarms") for line in lines] == [0, 0, 1, 1]
