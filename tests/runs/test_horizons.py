"""Several horizons at once are the same as one run for each."""

import json

import numpy as np
import pytest
from run_folders import MODEST, assert_refused, everything, norewind

from norewind.runs.folder import read_log, saved_run
from norewind.runs.predict import forecast
from norewind.runs.settings import Settings, SettingsError

HORIZONS = (1, 4, 6)
OPTIONS = ("--method", "rtrl", *MODEST, "--predictions", "file")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    random = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("waves") / "waves.csv"
    rows = [f"{10 + np.sin(t / 3) + random.normal() / 10:.3f},{np.cos(t / 3):.3f}\n" for t in range(150)]
    path.write_text("x,y\n" + "".join(rows))
    return path


@pytest.fixture
def runs(source, tmp_path):
    for horizon in ("6,1,4", *HORIZONS):
        assert norewind("train", source, "--out", tmp_path / str(horizon), "--horizon", horizon, *OPTIONS) == 0
    return tmp_path


def test_several_horizons_are_several_runs(runs, source, capsys):
    together = read_log(runs / "6,1,4" / "predictions.jsonl")
    assert together[20]["for"] == {"1": 22, "4": 25, "6": 27}
    for horizon in HORIZONS:
        alone = read_log(runs / str(horizon) / "predictions.jsonl")
        for ours, theirs in zip(together[20:], alone[20:], strict=True):
            assert ours["forecast"][str(horizon)] == theirs["forecast"]
            assert ours["prediction"][str(horizon)] == theirs["prediction"]
            assert ours["target"] == theirs["target"]
        errors = [read_log(runs / name / "metrics.jsonl")[-1]["errors"] for name in ("6,1,4", str(horizon))]
        for kind in ("model", "persistence"):
            assert errors[0][kind][f"x in {horizon}"] == errors[1][kind]["x"]
    # What comes next is said by the nearest horizon that reaches it.
    results = {name: forecast(*saved_run(runs / str(name)), 8) for name in ("6,1,4", *HORIZONS)}
    for step, name in enumerate((1, 4, 4, 4, 6, 6)):
        np.testing.assert_array_equal(results["6,1,4"].means[step], results[name].means[step])
        np.testing.assert_array_equal(results["6,1,4"].deviations[step], results[name].deviations[step])
    # It survives an interruption.
    cut = runs / "cut"
    options = ("--out", cut, "--horizon", "1,4,6", *OPTIONS)
    assert norewind("train", source, *options, "--samples", 70) == 0
    assert norewind("resume", cut, "--samples", 150, "--quiet") == 0
    ours, whole = everything(cut), everything(runs / "6,1,4")
    for part in ("metrics", "predictions"):
        assert ours[part] == whole[part]
    capsys.readouterr()
    assert norewind("predict", runs / "1", source, "--samples", 2) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["line"] == 2


def test_horizons_that_mean_nothing_are_refused(source, tmp_path, capsys):
    assert Settings(horizon="24").horizon == 24
    assert Settings(horizon="24,1").horizons == (1, 24)
    for wrong in ("0,1", "1,x", "-1", "1,,2"):
        with pytest.raises(SettingsError, match="horizon is"):
            Settings(horizon=wrong)
    code = norewind("train", source, "--out", tmp_path / "run", "--horizon", "0,3", *OPTIONS)
    assert_refused(capsys, code, "1,6,24")
