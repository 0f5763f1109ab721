"""A horizon means all steps up to it, and the next rows are forecast as they were at the latest row."""

from itertools import pairwise

import numpy as np
import pytest
from run_folders import MODEST, assert_rejected, everything, norewind

from norewind.forecasting.forecasts import forecast
from norewind.training.folder import saved_run
from norewind.training.log import read_log
from norewind.training.settings import Settings, SettingsError

pytestmark = pytest.mark.usefixtures("shared_programs")

OPTIONS = {"rtrl": ("--method", "rtrl", *MODEST), "auto": ("--budget", 1, "--quiet")}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    random = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("waves") / "waves.csv"
    rows = [f"{10 + np.sin(t / 3) + random.normal() / 10:.3f},{np.cos(t / 3):.3f}\n" for t in range(150)]
    path.write_text("x,y\n" + "".join(rows))
    return path


@pytest.mark.parametrize("method", OPTIONS)
def test_the_next_rows_are_those_forecast_at_the_latest_row(source, tmp_path, method):
    run, options = tmp_path / "run", (*OPTIONS[method], "--predictions", "file")
    assert norewind("train", source, "--out", run, "--horizon", 4, *options) == 0
    entries = read_log(run / "predictions.jsonl")
    assert entries[20]["for"] == {"1": 22, "2": 23, "3": 24, "4": 25}
    # The prediction of a row is its latest forecast.
    for before, entry in pairwise(entries[20:]):
        assert entry["prediction"] == before["forecast"]["1"]
    result = forecast(*saved_run(run))
    assert [row["forecast"] for row in result.entries] == list(entries[-1]["forecast"].values())
    line = read_log(run / "metrics.jsonl")[-1]
    assert [len(errors) for errors in line["by_step"].values()] == [4] * len(line["by_step"])
    assert (run / "by_step.png").exists()


@pytest.mark.parametrize("method", OPTIONS)
def test_some_steps_only(source, tmp_path, method):
    run, options = tmp_path / "run", (*OPTIONS[method], "--predictions", "file")
    assert norewind("train", source, "--out", run, "--only-steps", 4, 1, *options) == 0
    entries = read_log(run / "predictions.jsonl")
    assert entries[20]["for"] == {"1": 22, "4": 25}
    # Each row by the nearest step that reaches it, made as many rows ago as it takes.
    made = [entries[-1]["forecast"]["1"], *(entry["forecast"]["4"] for entry in entries[-3:])]
    assert [row["forecast"] for row in forecast(*saved_run(run)).entries] == made


def test_least_squares_forecast_every_step_as_a_run_for_it_alone(source, tmp_path):
    for name, steps in (("all", ("--horizon", 3)), ("far", ("--only-steps", 3))):
        options = ("--out", tmp_path / name, *OPTIONS["auto"], "--predictions", "file")
        assert norewind("train", source, *steps, *options) == 0
    ours, theirs = (read_log(tmp_path / name / "predictions.jsonl") for name in ("all", "far"))
    for one, other in zip(ours[20:], theirs[20:], strict=True):
        for column in "xy":
            assert one["forecast"]["3"][column] == pytest.approx(other["forecast"][column], rel=1e-4)


@pytest.mark.parametrize("method", OPTIONS)
def test_an_interruption_changes_nothing(source, tmp_path, method):
    options = ("--only-steps", 1, 2, 6, *OPTIONS[method], "--predictions", "file")
    assert norewind("train", source, "--out", tmp_path / "whole", *options) == 0
    assert norewind("train", source, "--out", tmp_path / "cut", *options, "--samples", 70) == 0
    assert norewind("resume", tmp_path / "cut", "--samples", 150, "--quiet") == 0
    ours, whole = everything(tmp_path / "cut"), everything(tmp_path / "whole")
    for part in ("metrics", "predictions"):
        assert ours[part] == whole[part]


def test_steps_that_mean_nothing_are_rejected(source, tmp_path, capsys):
    assert Settings(horizon=3).steps == (1, 2, 3)
    assert Settings(horizon=0).steps == (0,)
    assert Settings(only_steps=(24, 1, 1)).steps == (1, 24)
    assert Settings(only_steps=(24, 1)).horizon == 24
    for wrong in ({"horizon": -1}, {"horizon": 10**6}, {"only_steps": (0, 1)}, {"horizon": 3, "only_steps": (1, 6)}):
        with pytest.raises(SettingsError, match="horizon is|only_steps is"):
            Settings(**wrong)
    code = norewind("train", source, "--out", tmp_path / "run", "--horizon", 3, "--only-steps", 2, *OPTIONS["rtrl"])
    assert_rejected(capsys, code, "Choose one of the two")
