"""The study of real data extracts and scores correctly, and no baseline sees the future."""

from pathlib import Path

import numpy as np
import pytest

from examples.real_data import baselines, disturb, fetch, forecasts, others, plan
from norewind.sweeps.sweep import train_run
from norewind.training.settings import Settings


@pytest.fixture
def table(tmp_path):
    """Write two columns with a missing value to a file."""
    random = np.random.default_rng(0)
    values = np.sin(np.arange(400)[:, None] / (4, 9)) * (1, 30) + 0.1 * random.standard_normal((400, 2))
    path = tmp_path / "table.csv"
    lines = [f"{a:.6g},{'NA' if row == 100 else f'{b:.6g}'}" for row, (a, b) in enumerate(values)]
    path.write_text("\n".join(["a,b", *lines, ""]))
    return path


def settings_for(path):
    return Settings(source=str(path), format="csv", inputs=("a", "b"), only_steps=(3,), samples=400, metrics_every=40)


def test_translations_are_extracted_without_originals_and_header():
    catalogue = (
        'msgid ""\nmsgstr ""\n"Language: de\\n"\n\nmsgid "a"\nmsgid_plural "b"\nmsgstr[0] "ä"\nmsgstr[1] "ü\\n"\n'
    )
    catalogue += '\n#: x\nmsgid "c"\nmsgstr ""\n'
    assert fetch.translations(catalogue.encode()).decode() == "ä\nü\n\n"


def test_outages_are_missing_values():
    assert fetch.without_outages(b"t,flow\n1,100.5\n2,24.3\n3,101\n") == b"flow\n100.5\nNA\n101\n"


def test_one_airport_is_extracted():
    table = b"origin,temp,dewp,humid,wind_speed,pressure\nEWR,1,2,3,4,5\nJFK,6,7,8,9,NA\n"
    assert fetch.weather_of_jfk(table) == b"temp,dewp,humid,wind_speed,pressure\n6,7,8,9,NA\n"


def test_disturbed_copies(table):
    disturb.write_copies(table, ("a", "b"), 400)
    before = disturb.read_columns(table, ("a", "b"), 400)
    large, jumped = (disturb.read_columns(disturb.path_of(table, name), ("a", "b"), 400) for name in disturb.CHANGES)
    assert np.isnan(large[100, 1])
    assert np.nanstd(large, axis=0) == pytest.approx([100, 100])
    assert jumped[:200] == pytest.approx(before[:200], nan_ok=True)
    assert (jumped - before)[200:] == pytest.approx(np.tile(10 * np.nanstd(before, axis=0), (200, 1)), rel=1e-4)


def test_baselines_are_scored_as_runs_are(table, tmp_path):
    settings = settings_for(table)
    # A network that never learns forecasts 0: the running mean.
    still = Settings(
        **{**settings.as_json(), "method": "readout_only", "rate": 1e-30, "optimizer": "sgd", "cell": "elman"}
    )
    record = train_run(still, tmp_path / "run")
    series = forecasts.read_series(settings)
    mine = forecasts.scored(forecasts.squared_errors(series, forecasts.simple_forecasts(series, "running mean")), 40)
    assert mine["samples"] == record["samples"] == 400
    nothing = forecasts.scored(forecasts.squared_errors(series, series.scales_after[..., 0]), 40)
    assert mine["mean"] == pytest.approx(nothing["mean"], rel=0.02)
    newest = forecasts.scored(forecasts.squared_errors(series, series.values), 40)
    assert newest["curve"][3:] == pytest.approx(record["persistence"][3:], rel=1e-4)
    assert nothing["curve"][3:] == pytest.approx(record["baseline"][3:], rel=1e-4)


def test_least_squares_is_ridge_regression_on_all_rows_so_far(table):
    series = forecasts.read_series(settings_for(table))
    made = forecasts.least_squares(series, 5, 0.3)
    row, h = 350, 3
    padded = np.concatenate([np.zeros((4, 2)), series.xs])
    features = np.array([[*padded[i : i + 5].T.ravel(), 1] for i in range(len(series.xs))])
    learned = [i for i in range(row + 1) if i >= h and not np.isnan(series.targets[i]).any()]
    x, y = features[[i - h for i in learned]], series.targets[learned]
    weights = np.linalg.solve(x.T @ x + 0.3 * np.eye(11), x.T @ y)
    mean, deviation = series.scales_after[row].T
    assert made[row] == pytest.approx(mean + deviation * (features[row] @ weights), rel=1e-8)


@pytest.mark.parametrize("name", ["running mean", "newest value", "24 rows before", "least squares"])
def test_simple_forecasts_use_only_the_past(table, name):

    def made(path):
        series = forecasts.read_series(settings_for(path))
        return (
            forecasts.least_squares(series, 4, 1)
            if name == "least squares"
            else forecasts.simple_forecasts(series, name)
        )

    before = made(table)
    lines = table.read_text().splitlines()
    lines[301:] = ["7,7"] * (len(lines) - 301)
    table.write_text("\n".join([*lines, ""]))
    after = made(table)
    assert np.array_equal(before[:300], after[:300])
    assert not np.allclose(before[300:], after[300:])


class MeanModel:
    """Forecasts the mean of its data; after a fit, a path that starts there and rises by one per row."""

    def fit(self, values):
        self.mean = values.mean()

    def predict(self, h):
        return {"mean": self.mean + np.arange(1, h + 1)}

    def forward(self, values, h):
        return {"mean": np.full(h, values.mean())}


class LagModel:
    """A regression with River's interface that predicts the last target it learned."""

    last = 0.0

    def learn_one(self, x, y):
        self.last = y - x[0]

    def predict_one(self, x):
        return x[0] + self.last


@pytest.mark.parametrize("forward", [True, False])
def test_models_of_other_libraries_use_only_the_past(forward):
    values = np.arange(100.0)
    made, failures = others.rolled(values, 3, others.Schedule(10, 12, 20), MeanModel(), forward=forward)
    assert failures == 0
    assert np.array_equal(made[:9], values[:9])
    changed, _ = others.rolled(
        np.where(values < 60, values, -1), 3, others.Schedule(10, 12, 20), MeanModel(), forward=forward
    )
    assert np.array_equal(made[:60], changed[:60])
    # Fitted at rows 9, 13, 19, 28, 40 and 52: whenever there are half as many more rows, but at most 12 rows apart.
    assert made[51] == (np.mean(values[32:52]) if forward else np.mean(values[21:41]) + 11 + 3)
    assert not np.array_equal(made[75:], changed[75:])


def test_a_model_that_fails_forecasts_the_newest_value_and_is_counted():

    class Broken(MeanModel):
        def forward(self, values, h):
            raise ValueError("no")

    made, failures = others.rolled(np.arange(30.0), 3, others.Schedule(10, 12, 20), Broken(), forward=True)
    assert np.array_equal(made, np.arange(30.0))
    assert failures == 21


def test_regressions_of_other_libraries_learn_once_the_target_has_arrived():
    values = np.arange(50.0)[:, None] ** 2
    made = others.regressed(values, 3, LagModel)
    # At row i, row i − 3 is learned from: i² − (i − 3)².
    rows = np.arange(3, 50)
    assert np.array_equal(made[rows, 0], rows**2 + rows**2 - (rows - 3) ** 2)
    assert np.array_equal(made[:3], values[:3])


def test_every_method_gets_the_same_tries_and_samples():
    first = plan.first_plan(Path("runs/cache"))
    for samples in (None, 1_000):
        assert all(run.samples % 16 == 0 for run in plan.first_plan(Path("runs/cache"), samples).values())
    for stream in plan.STREAMS:
        own = [settings for name, settings in first.items() if name.startswith(f"{stream.name}_")]
        tries = [[s for s in own if (s.method, s.cell) == (kind.method, kind.cell)] for kind in plan.KINDS]
        assert {len(one) for one in tries} == {len(plan.RATES)}
        assert len({settings.samples for settings in own}) == 1
    assert {len(tries) for tries in baselines.OTHERS.values()} == {1, len(plan.RATES)}


def test_the_best_rate_is_run_with_other_seeds():
    cache, stream, kind = Path("runs/cache"), plan.STREAMS[0], plan.KINDS[0]
    first = plan.first_plan(cache)
    found = {
        name: {"mean": abs(settings.rate - 3e-3), "problem": "diverged" if settings.rate == 3e-3 else None}
        for name, settings in first.items()
    }
    assert plan.best_rate(stream, kind, found) == 1e-3
    second = plan.second_plan(cache, found)
    assert {settings.rate for settings in second.values()} == {1e-3}
    assert {settings.seed for settings in second.values()} == {1, 2}
    assert len(second) == 2 * len(plan.STREAMS) * len(plan.KINDS)
    assert not set(first) & set(second)


def test_the_seasonal_forecast_is_the_row_a_season_before_the_target(table):
    series = forecasts.read_series(settings_for(table))
    made = forecasts.simple_forecasts(series, "24 rows before")
    assert np.array_equal(made[21:], series.values[: 400 - 21])
    assert np.array_equal(made[:21], series.values[:21])
