"""Outliers change a run for a few hundred rows, not for good; shifts and growing scales are followed."""

import json

import numpy as np
import pytest

import norewind
from norewind.streams.table.column_statistics import (
    MEAN,
    MEMORY,
    MIN_VALUES,
    STATISTICS,
    VARIANCE,
    deviation_of,
    observe,
)
from norewind.training.folder import RunFolder
from norewind.training.hooks import Hooks
from norewind.training.log import read_log
from norewind.training.settings import Settings
from norewind.training.train_folder import train_folder

AT, ROWS = 600, 2_000
SLOW = pytest.mark.slow


def series(seed=1):
    rng = np.random.default_rng(seed)
    return 1 + np.sin(np.arange(ROWS) / 9) + 0.2 * rng.normal(size=ROWS)


def with_outliers(values, at, count=1):
    spoiled = np.array(values)
    spoiled[at : at + count] = 1e6
    return spoiled


def mean_error(entries, first, last):
    """The mean absolute error of the predictions of some rows, in the units of the series."""
    found = [abs(e["prediction"]["x"] - e["target"]["x"]) for e in entries if first < e["sample"] <= last]
    assert len(found) == last - first
    return np.mean(found)


def mean_loss(lines, first, last):
    counts = np.diff([0, *(line["samples"] for line in lines)])
    chosen = [first < line["samples"] <= last for line in lines]
    return np.average([line["loss"] for line, used in zip(lines, chosen, strict=True) if used], weights=counts[chosen])


def forecast(values, budget=50.0, **options):
    """The predictions of a model, by default without networks below a budget of 50, and its lines of metrics."""
    entries = []
    model = norewind.Forecaster("x", budget=budget, metrics_every=100, **options)
    model.fit([{"x": float(value)} for value in values], hooks=Hooks(predictions=entries.extend))
    return entries, model.lines


@pytest.mark.parametrize(("at", "budget"), [(0, 30.0), (5, 30.0), (AT, 30.0), pytest.param(AT, 50.0, marks=SLOW)])
def test_an_outlier_is_forgotten_and_does_not_make_the_loss_smaller(at, budget):
    clean, spoiled = (forecast(values, budget) for values in (series(), with_outliers(series(), at)))
    ratios = [
        mean_error(spoiled[0], *rows) / mean_error(clean[0], *rows) for rows in ((AT + 100, AT + 300), (AT + 300, ROWS))
    ]
    assert ratios[0] < 1.1
    assert ratios[1] < 1.02
    assert mean_loss(spoiled[1], AT + 300, ROWS) > 0.95 * mean_loss(clean[1], AT + 300, ROWS)


@pytest.mark.parametrize("count", [5, 10])
def test_outliers_in_a_row_do_not_make_the_loss_smaller(count):
    """They do make the forecasts worse for longer than a single one: by 6 and 13 % here."""
    clean, spoiled = (forecast(values, 30.0) for values in (series(), with_outliers(series(), AT, count)))
    assert mean_error(spoiled[0], AT + 300, ROWS) < 1.2 * mean_error(clean[0], AT + 300, ROWS)
    assert mean_loss(spoiled[1], AT + 300, ROWS) > 0.95 * mean_loss(clean[1], AT + 300, ROWS)


@pytest.mark.slow
def test_clipped_gradients_let_a_gaussian_network_forget_an_outlier():
    options = {"method": "uoro", "hidden": 16, "loss": "gaussian", "clip": 10.0}
    clean, spoiled = (forecast(values, **options) for values in (series(), with_outliers(series(), AT)))
    assert mean_error(spoiled[0], AT + 300, ROWS) < 1.02 * mean_error(clean[0], AT + 300, ROWS)
    assert abs(mean_loss(spoiled[1], AT + 300, ROWS) - mean_loss(clean[1], AT + 300, ROWS)) < 0.05


def test_an_outlier_of_one_key_of_a_fleet_is_forgotten(tmp_path):
    found = []
    for name, ours in (("clean", series()), ("spoiled", with_outliers(series(), AT))):
        rows = [
            f"{key},{value:.6f}"
            for pair in zip(ours, series(2), strict=True)
            for key, value in zip("ab", pair, strict=True)
        ]
        (tmp_path / name).with_suffix(".csv").write_text("\n".join(["key,x", *rows]) + "\n")
        settings = Settings(str(tmp_path / f"{name}.csv"), key="key", predictions="file", metrics_every=200)
        with RunFolder(tmp_path / name) as folder:
            train_folder(settings.with_format(), folder)
        entries = [json.loads(line) for line in (tmp_path / name / "predictions.jsonl").read_text().splitlines()]
        ours = [{**e, "sample": n} for n, e in enumerate(e for e in entries if e["key"] == "a")]
        found.append((ours, read_log(tmp_path / name / "metrics.jsonl")))
    clean, spoiled = found
    assert mean_error(spoiled[0], AT + 300, ROWS - 1) < 1.02 * mean_error(clean[0], AT + 300, ROWS - 1)
    later = 2 * (AT + 300), 2 * ROWS
    assert mean_loss(spoiled[1], *later) > 0.95 * mean_loss(clean[1], *later)


def statistics_after(values):
    known = np.zeros((STATISTICS, 1))
    for value in values:
        observe(known, np.array([value]))
    _, mean, variance = known[:3, 0]
    return mean, np.sqrt(variance)


@pytest.mark.parametrize("outliers", [1, 5, 10])
def test_a_few_outliers_in_a_row_do_not_change_the_scale(outliers):
    values = np.random.default_rng(0).normal(1, 1, 300)
    for outlier in (30.0, 1e6, -3e38):
        assert statistics_after([*values, *[outlier] * outliers]) == statistics_after(values)


def test_the_first_value_may_be_an_outlier():
    values = np.random.default_rng(0).normal(1, 1, 50)
    mean, deviation = statistics_after(values)
    for at in range(MIN_VALUES):
        changed = statistics_after(np.where(np.arange(50) == at, 1e30, values))
        np.testing.assert_allclose(changed, (mean, deviation), atol=0.15)


@pytest.mark.parametrize("shift", [30.0, 1e4, 1e9])
def test_a_shift_is_followed_within_some_rows(shift):
    values = np.random.default_rng(0).normal(0, 1, 5_000)
    assert statistics_after([*values, *(values[:30] + shift)])[1] > shift / 100


def test_a_larger_and_a_smaller_scale_are_followed():
    values = np.random.default_rng(0).normal(0, 1, 4 * MEMORY)
    _, deviation = statistics_after([*values[:MEMORY], *(1_000 * values[:100])])
    assert deviation > 50
    _, deviation = statistics_after([*(2 * values[:MEMORY]), *values])
    assert deviation == pytest.approx(1, abs=0.06)


def test_the_deviation_of_forecasts_and_the_season_are_not_spoiled():
    """The deviations that go with forecasts, and the choice of the best season, use limited errors too."""
    values = np.tile(np.random.default_rng(0).normal(size=24), 50) + 0.01 * np.random.default_rng(1).normal(size=1_200)
    model = norewind.Forecaster("x", budget=30.0, metrics_every=100)
    for value in with_outliers(values, 900):
        model.learn_one({"x": float(value)})
    (deviation,) = model.spread(1)
    assert deviation < 1
    assert model.lines[-1]["period"] == 24


def test_growth_after_a_few_quiet_rows_is_followed_soon():
    known = np.zeros((STATISTICS, 1))
    for value in np.random.default_rng(2).normal(size=12):
        observe(known, np.array([value]))
    for value in 20.0 * np.arange(1, 9):
        observe(known, np.array([value]))
    assert deviation_of(known, 0) > 20


def test_spikes_that_recur_count_in_full():
    rng = np.random.default_rng(0)
    values = np.where(rng.random(20_000) < 0.01, 50.0, 0.1 * rng.normal(size=20_000))
    assert statistics_after(values)[1] == pytest.approx(values[-MEMORY:].std(), rel=0.25)


def test_a_deviation_that_is_only_rounding_is_none():
    known = np.zeros((STATISTICS, 1))
    known[MEAN], known[VARIANCE] = 0.1, 1e-34
    assert deviation_of(known, 0) == 0
    known[VARIANCE] = 1e-20
    assert deviation_of(known, 0) == 1e-10
