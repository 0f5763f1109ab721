"""`norewind forecast` equals what the model would predict once the rows arrive."""

import csv
import io
import json

import numpy as np
import pytest
from run_folders import MODEST, assert_rejected, everything, norewind

from norewind.forecasting import load
from norewind.forecasting.forecasts import forecast
from norewind.learners.horizon import PERIODS
from norewind.scoring.compare_rows import ERROR_DECAY
from norewind.training.folder import saved_run
from norewind.training.log import read_log

pytestmark = pytest.mark.usefixtures("shared_programs")

ROWS = 202
OPTIONS = (*MODEST, "--no-standardise", "--predictions", "file", "--rate", 0.01)


@pytest.fixture(scope="module")
def wave(tmp_path_factory):
    random = np.random.default_rng(0)
    rows = [f"{np.sin(t / 3) + random.normal() / 10:.3f},{np.cos(t / 3):.3f}\n" for t in range(ROWS)]
    path = tmp_path_factory.mktemp("wave") / "wave.csv"
    path.write_text("x,y\n" + "".join(rows))
    return path


def test_beyond_the_horizon_forecasts_replace_rows(wave, tmp_path, capsys):
    source = tmp_path / "wave.csv"
    source.write_text(wave.read_text())
    run = tmp_path / "run"
    assert norewind("train", source, "--out", run, "--method", "rtrl", *OPTIONS) == 0
    before = everything(run)
    result = forecast(*saved_run(run), 10)
    assert (len(result.entries), result.means.shape) == (10, (10, 2))
    entry = result.entries[0]
    assert (entry["for"], entry["step"]) == (ROWS + 1, 1)
    assert entry["forecast"] == read_log(run / "predictions.jsonl")[-1]["forecast"]
    # The deviation is that of the latest errors, and grows with the step, since errors add up.
    entries = [entry for entry in read_log(run / "predictions.jsonl") if "prediction" in entry]
    squares = np.array([[(e["prediction"][c] - e["target"][c]) ** 2 for c in "xy"] for e in entries])
    weights = ERROR_DECAY ** np.arange(len(squares))[::-1, None]
    expected = np.sqrt((weights * squares).sum(axis=0) / weights.sum())
    np.testing.assert_allclose(result.deviations[0], expected, rtol=1e-3)
    # But it is no less than the change of the column over as many of the rows that are kept.
    values = np.loadtxt(wave, delimiter=",", skiprows=1)[-max(PERIODS) :]
    changes = np.array([np.sqrt(np.mean((values[apart:] - values[:-apart]) ** 2, axis=0)) for apart in range(1, 11)])
    floored = []
    for ahead in range(1, 10):
        summed = np.hypot(result.deviations[0], result.deviations[ahead - 1])
        floored.append(changes[ahead] > summed)
        np.testing.assert_allclose(result.deviations[ahead], np.maximum(summed, changes[ahead]), rtol=1e-6)
    assert 0 < np.sum(floored) < np.size(floored)
    # The same rows, now learned from:
    source.write_text(wave.read_text() + "".join(f"{x!r},{y!r}\n" for x, y in result.means.tolist()))
    capsys.readouterr()
    assert norewind("predict", run) == 0
    sent = [json.loads(line)["forecast"] for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose([list(row.values()) for row in sent[:-1]], result.means[1:], rtol=1e-4, atol=1e-5)
    assert everything(run) == before


def test_the_default_is_the_horizon_and_a_warning_says_how_it_goes_on(tmp_path, capsys):
    source, run = tmp_path / "hours.csv", tmp_path / "run"
    source.write_text("temp,hour\n" + "".join(f"{np.sin(t / 4):.3f},{t % 24}\n" for t in range(60)))
    assert norewind("train", source, "--out", run, "--targets", "temp", "--method", "rtrl", *OPTIONS) == 0
    capsys.readouterr()
    assert norewind("forecast", run) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 1
    assert "Warning" not in printed.err
    assert norewind("forecast", run, "--steps", 3) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 3
    assert "rows 2 to 3 are beyond the horizon of 1" in printed.err
    assert "hour keeps the last value. To forecast all of them directly, train with --horizon 3." in printed.err
    with pytest.warns(UserWarning, match="beyond the horizon of 1") as warned:
        load(run).forecast(2)
    assert warned[0].filename == __file__


def test_variances_of_all_steps_are_those_forecast_at_the_latest_row(wave, tmp_path, capsys):
    run = tmp_path / "run"
    options = ("--method", "rtrl", *OPTIONS, "--horizon", 6, "--loss", "gaussian")
    assert norewind("train", wave, "--out", run, *options) == 0
    latest = read_log(run / "predictions.jsonl")[-1]
    capsys.readouterr()
    assert norewind("forecast", run, "--format", "csv", "--figure", tmp_path / "next.png") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [int(row["row"]) for row in rows] == list(range(ROWS + 1, ROWS + 7))
    for step, row in enumerate(rows, 1):
        for column in "xy":
            assert float(row[column]) == pytest.approx(latest["forecast"][str(step)][column], rel=1e-6)
            assert float(row[f"{column} deviation"]) == pytest.approx(latest["deviation"][str(step)][column], rel=1e-6)


def test_a_random_walk_is_forecast_to_stay_where_it_is(tmp_path):
    """The latest rows count, for all of the next eight rows."""
    walk = 50 + np.cumsum(np.random.default_rng(0).normal(size=400))
    source, run = tmp_path / "walk.csv", tmp_path / "run"
    source.write_text("x\n" + "".join(f"{value:.3f}\n" for value in walk))
    assert norewind("train", source, "--out", run, "--budget", 1, "--horizon", 8, "--quiet") == 0
    result = forecast(*saved_run(run))
    assert np.abs(result.means[0, 0] - walk[-1]) < 2
    assert (np.diff(result.deviations[:, 0]) > 0).all()
    assert result.deviations[0, 0] < 0.6 * result.deviations[-1, 0]


def test_the_mixture_forecasts_too_and_its_source_may_be_gone(wave, tmp_path):
    source = tmp_path / "gone.csv"
    source.write_text(wave.read_text())
    run = tmp_path / "run"
    assert norewind("train", source, "--out", run, "--budget", 1, "--predictions", "file", "--quiet") == 0
    source.unlink()
    result = forecast(*saved_run(run), 5)
    assert result.entries[0]["forecast"] == read_log(run / "predictions.jsonl")[-1]["forecast"]
    # The forecast continues the wave.
    expected = np.cos(np.arange(ROWS, ROWS + 5) / 3)
    assert np.abs(result.means[:, 1] - expected).max() < 0.3


def test_what_cannot_be_scaled_yet_keeps_its_last_value(tmp_path):
    """With three rows, and with a constant column."""
    for rows in (3, 40):
        source, run = tmp_path / f"{rows}.csv", tmp_path / f"run{rows}"
        source.write_text("x,same\n" + "".join(f"{t % 5 + 0.5},7\n" for t in range(rows)))
        assert norewind("train", source, "--out", run, "--method", "rtrl", *MODEST, "--predictions", "file") == 0
        entries = forecast(*saved_run(run), 3).entries
        assert [entry["forecast"]["same"] for entry in entries] == [7, 7, 7]
        assert entries[0]["forecast"] == read_log(run / "predictions.jsonl")[-1]["forecast"]
    assert forecast(*saved_run(tmp_path / "run3"), 1).entries[0]["forecast"]["x"] == 2.5


def test_forecasts_have_times_if_times_are_regular(wave, tmp_path, capsys):
    rows = [line.split(",") for line in wave.read_text().splitlines()[1:]]
    table = "".join(f"2024-{1 + t // 28 % 12:02d}-{1 + t % 28:02d},{x}\n" for t, (x, _) in enumerate(rows[:20]))
    odd = table.replace("2024-01-20", "2024-01-19T12:00")
    for name, text in (("regular", table), ("odd", odd)):
        (tmp_path / f"{name}.csv").write_text("day,x\n" + text)
        run = tmp_path / name
        assert norewind("train", tmp_path / f"{name}.csv", "--out", run, "--method", "rtrl", *OPTIONS) == 0
        capsys.readouterr()
        assert norewind("forecast", run, "--steps", 2) == 0
        times = [json.loads(line).get("time") for line in capsys.readouterr().out.splitlines()]
        assert times == (["2024-01-21", "2024-01-22"] if name == "regular" else [None, None])
    assert norewind("forecast", tmp_path / "regular", "--steps", 1, "--format", "csv") == 0
    assert capsys.readouterr().out.splitlines()[0] == "row,time,x,x deviation"


@pytest.mark.parametrize("method", ["auto", "rtrl"])
def test_the_next_class_is_the_one_that_was_forecast(tmp_path, capsys, method):
    path, run = tmp_path / "modes.csv", tmp_path / "run"
    path.write_text("a,mode\n" + "".join(f"{t % 7},{'wait' if t % 3 else 'go'}\n" for t in range(60)))
    options = ("--method", method, *(("--budget", 1, "--quiet") if method == "auto" else MODEST))
    options += ("--predictions", "file", "--loss", "classes", "--targets", "mode", "--horizon", 2)
    assert norewind("train", path, "--out", run, *options) == 0
    latest = read_log(run / "predictions.jsonl")[-1]
    assert latest["for"] == {"1": 61, "2": 62}
    capsys.readouterr()
    assert norewind("forecast", run) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [entry["for"] for entry in entries] == [61, 62]
    for step, entry in zip("12", entries, strict=True):
        assert entry["forecast"] == latest["forecast"][step]
        assert entry["probability"] == pytest.approx(latest["probability"][step], abs=2e-6)
    assert norewind("forecast", run, "--format", "csv") == 0
    assert capsys.readouterr().out.splitlines()[0] == "row,forecast,probability"
    assert_rejected(capsys, norewind("forecast", run, "--steps", 3), "--horizon 3")


def test_impossible_forecasts_are_rejected(whole, wave, tmp_path, capsys):
    assert_rejected(capsys, norewind("forecast", whole / "bytes"), "norewind sample")
    assert_rejected(capsys, norewind("forecast", whole / "rows", "--steps", 0), "--steps")
    assert_rejected(capsys, norewind("forecast", tmp_path), "holds no run")
    assert norewind("train", wave, "--out", tmp_path / "run", "--method", "rtrl", *OPTIONS, "--samples", 3) == 0
    # After only three rows, there are still two forecasts.
    capsys.readouterr()
    assert norewind("forecast", tmp_path / "run", "--steps", 2) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
