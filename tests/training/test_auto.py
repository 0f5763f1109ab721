"""The default method: a mixture supports everything that a single method supports."""

import json

import numpy as np
import pytest
from run_folders import assert_rejected, at_sample, crash, everything, norewind

from norewind.learners.outlook_shape import OutlookShape
from norewind.training.auto import SERIES_RATES, series
from norewind.training.build import EXPERTS, OUTLOOK_EXPERTS
from norewind.training.log import read_log
from norewind.training.open_stream import StreamShape

pytestmark = pytest.mark.usefixtures("shared_programs")

OPTIONS = ("--metrics-every", 500, "--checkpoint-every", 400, "--quiet", "--predictions", "file")
KINDS = {"bytes": ("text",), "rows": ("table.csv", "--only-steps", 3)}


@pytest.fixture(scope="session", params=[pytest.param("bytes", marks=pytest.mark.slow), "rows"])
def mixture(request, whole):
    source, *options = KINDS[request.param]
    run = whole / f"auto-{request.param}"
    assert norewind("train", whole / source, "--out", run, *options, *OPTIONS) == 0
    return request.param, whole / source, run, options


def test_it_beats_its_baseline_and_reports_it(mixture):
    kind, _, run, _ = mixture
    line = read_log(run / "metrics.jsonl")[-1]
    assert line["loss"] < line["baseline"] / 2
    guesses = read_log(run / "predictions.jsonl")
    surprises = [guess["surprise"] for guess in guesses if guess.get("surprise") is not None]
    if kind == "bytes":
        assert np.mean(surprises) == pytest.approx(line["mean"], abs=1e-4)
    else:
        assert np.mean(np.square(surprises)) == pytest.approx(line["mean"], rel=1e-3)
        assert guesses[-1]["for"] == guesses[-1]["sample"] + 3


def test_a_crash_changes_nothing(mixture, tmp_path, monkeypatch):
    _, source, expected, options = mixture
    with monkeypatch.context() as patch:
        at_sample(patch, 900, crash)
        with pytest.raises(RuntimeError, match="a crash"):
            norewind("train", source, "--out", tmp_path / "run", *options, *OPTIONS)
    assert norewind("resume", tmp_path / "run", "--quiet") == 0
    assert everything(tmp_path / "run") == everything(expected)


def test_predictions_that_learn_are_those_of_training(mixture, tmp_path, capsys):
    kind, source, expected, options = mixture
    run = tmp_path / "run"
    learned = 800
    assert norewind("train", source, "--out", run, *options, *OPTIONS, "--samples", learned) == 0
    capsys.readouterr()
    assert norewind("predict", run, "--learn") == 0
    guesses = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    trained = read_log(expected / "predictions.jsonl")[learned:]
    # At the end, samples that do not fill a window are predicted too.
    guesses = guesses[: len(trained)]
    number = "symbol" if kind == "bytes" else "target"
    assert [guess[number] for guess in guesses] == [guess[number] for guess in trained]
    assert [guess["surprise"] for guess in guesses] == [guess["surprise"] for guess in trained]
    assert norewind("predict", run, "--samples", 50) == 0
    fixed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(fixed) == 50
    assert np.isfinite([guess["surprise"] for guess in fixed]).all()


def test_it_writes_text(mixture, capfdbinary):
    kind, _, run, _ = mixture
    if kind == "rows":
        pytest.skip("numbers are no text")
    assert norewind("sample", run, "--length", 200) == 0
    written = capfdbinary.readouterr().out
    assert len(written) >= 200
    assert sum(letter in "abcä\n".encode() for letter in written) > 190


def test_settings_that_auto_chooses_cannot_be_set(whole, tmp_path, capsys):
    code = norewind("train", whole / "text", "--out", tmp_path / "run", "--hidden", 32)
    assert_rejected(capsys, code, "hidden is 32, but it applies only to methods other than auto", "set --budget")
    assert not (tmp_path / "run" / "settings.toml").exists()


BUDGETS = [(1, 0), (15, 0), (30, 0), (40, 1), (50, 2), (1000, len(SERIES_RATES))]


@pytest.mark.parametrize(("budget", "networks"), BUDGETS)
def test_the_budget_decides_how_many_networks_there_are(budget, networks):
    learner, _ = series(StreamShape(1, 1, False, targets=1, steps=(1,), known=(0,)), False, budget, 0)
    least, _ = series(StreamShape(1, 1, False, targets=1, steps=(1,), known=(0,)), False, 1, 0)
    assert learner.experts - least.experts == networks


@pytest.mark.parametrize(("outlook", "more"), [(OutlookShape(), 0), (OutlookShape(("hour",), 1), OUTLOOK_EXPERTS)])
def test_the_estimate_of_memory_counts_all_experts(outlook, more):
    shape = StreamShape(1, 1, False, targets=1, steps=(1, 2), known=(0,), outlook=outlook)
    assert series(shape, False, 1e9, 0)[0].experts == EXPERTS + more
