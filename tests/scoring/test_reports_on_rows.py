"""The summary of a run on rows: the columns it uses, and its errors compared with those of simple forecasts."""

import json

import numpy as np
import pytest
from run_folders import SMALL, everything, norewind

from norewind.learners.learner import Forecasts
from norewind.learners.number_mixture import NumberMixture
from norewind.scoring.row_score import RowScore
from norewind.streams import RowStream, Source
from norewind.training.log import read_log

pytestmark = pytest.mark.usefixtures("shared_programs")


ROWS = 400


@pytest.fixture(scope="module")
def daily(tmp_path_factory):
    """A table with a noisy wave of 24 rows, an id, a time and a word."""
    values = 50 + 10 * np.sin(2 * np.pi * np.arange(ROWS) / 24) + np.random.default_rng(0).normal(size=ROWS)
    path = tmp_path_factory.mktemp("daily") / "daily.csv"
    rows = [f"{i},2024-01-{1 + i // 24:02}T{i % 24:02}:00,eco,{value:.2f}\n" for i, value in enumerate(values)]
    path.write_text("id,ts,mode,power\n" + "".join(rows))
    return path, np.round(values, 2)


def scored(path, horizon, guesses, period=None, cuts=(ROWS,)):
    """Return a score of the table for these standardised forecasts of its rows."""
    score = RowScore(["power"], "squared", (horizon,), period)
    with RowStream(Source(path), steps=(horizon,)) as stream:
        start = 0
        for cut in cuts:
            samples = stream.take(cut - start)
            score.add(samples, Forecasts(guesses[start:cut], guesses[start:cut]))
            start = cut
    return score


@pytest.mark.parametrize("horizon", [1, 5])
def test_simple_forecasts_are_those_of_their_definition(daily, horizon):
    path, values = daily
    line = scored(path, horizon, np.zeros((ROWS, 1), np.float32)).end_interval()
    assert line["period"] == 24
    known = 9 + horizon  # a deviation needs ten values
    means = np.array([values[: t - horizon + 1].mean() for t in range(known, ROWS)])
    for name, forecasts in {
        "baseline": means,
        "model": means,  # its forecast is 0 standard deviations
        "persistence": values[known - horizon : ROWS - horizon],
        "seasonal": values[: ROWS - 24],
    }.items():
        first = ROWS - len(forecasts)
        found, errors = line["errors"][name]["power"], forecasts - values[first:]
        assert found["rows"] == ROWS - first
        assert found["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-4)
        assert found["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-4)


def summary(lines):
    return RowScore(["power"], "squared").summary(lines)


def test_a_run_warns_if_a_simple_forecast_is_better(daily):
    path, _ = daily
    score = scored(path, 1, np.full((ROWS, 1), 5.0, np.float32))
    line = {"samples": ROWS, "loss": 25.0, **score.end_interval()}
    # 24 rows ago was not known for all rows of this line.
    assert summary([line]).best_simple()[0] == "the last value"
    line["errors"]["seasonal"]["power"]["rows"] = line["errors"]["model"]["power"]["rows"]
    result = summary([line])
    assert result.best_simple()[0] == "24 rows ago"
    assert "Warning: 24 rows ago was a better forecast" in result.table()
    # It is only slightly worse.
    rmse = line["errors"]["seasonal"]["power"]["rmse"]
    line["errors"]["model"]["power"]["rmse"] = 1.005 * rmse
    assert "Warning: 24 rows ago was as good a forecast" in summary([line]).table()
    line["errors"]["model"]["power"]["rmse"] = 1.02 * rmse
    assert "Warning: 24 rows ago was a better forecast" in summary([line]).table()
    # It has larger absolute errors only.
    line["errors"]["model"]["power"] |= {"rmse": 0.9 * rmse, "mae": 1.02 * line["errors"]["seasonal"]["power"]["mae"]}
    assert "Warning: 24 rows ago had a smaller mean absolute error" in summary([line]).table()
    # A model that knows the future is not worse than simple forecasts.
    with RowStream(Source(path)) as stream:
        targets = np.nan_to_num(stream.take(ROWS).targets)
    result = summary([{"samples": ROWS, "loss": 0.0, **scored(path, 1, targets).end_interval()}])
    assert result.best_simple()[1] >= 1
    assert "Warning" not in result.table()


def test_the_last_half_is_compared_even_if_the_best_period_changes():
    errors = {"power": {"mae": 1.0, "rmse": 1.0, "rows": 10}}
    names = ("model", "baseline", "persistence", "seasonal")
    lines = [
        {"samples": 10 * i, "loss": 1.0, "period": 12 if i < 9 else 7, "errors": dict.fromkeys(names, errors)}
        for i in range(1, 11)
    ]
    result = summary(lines)
    assert result.rows == 50
    assert "12 or 7 rows ago" in result.errors
    assert "7 rows ago" in summary(lines[-1:]).errors
    # Long periods are not known at first.
    del lines[5]["period"], lines[5]["errors"]["seasonal"]
    assert summary(lines).rows == 50
    assert list(summary(lines).errors) == ["this model", "the last value", "the mean so far"]


def test_a_run_reports_its_columns_and_its_errors(daily, tmp_path, capsys):
    path, values = daily
    run = tmp_path / "run"
    options = ("--method", "uoro", "--hidden", 4, "--predictions", "file", "--copy", "id", "ts")
    assert norewind("train", path, "--out", run, *options) == 0
    output = capsys.readouterr().err
    for words in (
        "inputs:  power",
        "targets: power, 1 row ahead",
        "ignored: id (a row counter), ts (a timestamp), mode (text)",
        "power: MAE",
        "the last value",
        "24 rows ago",
        "recent.png",
    ):
        assert words in output
    assert json.loads((run / "columns.json").read_text())["ignored"]["mode"] == "text"
    entries = read_log(run / "predictions.jsonl")
    assert [entry["line"] for entry in entries] == list(range(2, ROWS + 2))
    assert entries[30]["copied"] == {"id": "30", "ts": "2024-01-02T06:00"}
    assert [entry["target"]["power"] for entry in entries[20:]] == values[20:].tolist()
    assert len(read_log(run / "metrics.jsonl")) == 153


def test_copied_columns_wait_for_their_window_too(daily, tmp_path):
    path, _ = daily
    options = ("--method", "uoro:window=3", *SMALL[2:], "--predictions", "file", "--copy", "ts", "--inputs", "power")
    assert norewind("train", path, "--out", tmp_path / "whole", *options) == 0
    short = tmp_path / "short.csv"
    lines = path.read_text().splitlines(True)
    short.write_text("".join(lines[:102]))
    assert norewind("train", short, "--out", tmp_path / "run", *options) == 0
    short.write_text("".join(lines))
    assert norewind("resume", tmp_path / "run", "--quiet") == 0
    whole, run = everything(tmp_path / "whole"), everything(tmp_path / "run")
    assert run["predictions"] == whole["predictions"]
    assert run["metrics"] == whole["metrics"]


def test_a_short_table_has_a_curve_of_many_points_and_is_learned_in_one_chunk(daily, tmp_path, monkeypatch):
    path, _ = daily
    calls, scan = [], NumberMixture.scan
    monkeypatch.setattr(NumberMixture, "scan", lambda self, *args, **more: calls.append(1) or scan(self, *args, **more))
    assert norewind("train", path, "--out", tmp_path / "run", "--budget", 1, "--quiet") == 0
    lines = read_log(tmp_path / "run" / "metrics.jsonl")
    assert 40 < len(lines) < 250
    assert len(calls) == 1
    assert sum(line["errors"]["model"]["power"]["rows"] for line in lines if line.get("errors")) > 100
