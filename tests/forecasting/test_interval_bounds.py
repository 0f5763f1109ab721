"""Intervals keep the bound on misses on adversarial streams: in Python, the command line, fleets and the service."""

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from missed_intervals import LEVELS, adversarial_value, assert_misses_are_bounded, assert_run_misses_are_bounded
from run_folders import assert_rejected, norewind

from norewind.forecasting.models import Forecaster, load
from norewind.scoring.interval_score import bounds_in_units, rounded_outwards
from norewind.training.log import read_log
from norewind.training.settings import Settings, SettingsError

pytestmark = pytest.mark.usefixtures("shared_programs")

MODEL = {"method": "bptt", "hidden": 2, "interval": LEVELS}
OPTIONS = ("--method", "bptt", "--hidden", 2, "--interval", "0.5,0.9", "--predictions", "file", "--quiet")
ACTIONS = ("above", "below", "far", "inside", "unknown")
PIECES = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(1, 80)), min_size=1, max_size=4)


def play(pieces, step):
    """Let an adversary choose the rows of a model one by one. Returns the intervals made and the values."""
    model = Forecaster("x", inputs="x", only_steps=(step,), **MODEL)
    made, values = [], []
    for action, length in pieces:
        for _ in range(length):
            due = made[len(values) - step] if len(values) >= step else None
            values.append(adversarial_value(action, due))
            model.learn_one({"x": values[-1]})
            made.append(model.intervals(step)[-1])
    return made, values


@settings(deadline=None, max_examples=5)
@given(PIECES, st.sampled_from([1, 3]))
@example([("inside", 15), ("above", 200)], 1)
@example([("inside", 15), ("far", 2), ("below", 150)], 3)
def test_in_python(pieces, step):
    assert_misses_are_bounded(*play(pieces, step), step)


@pytest.fixture(scope="module")
def values():
    """A stream made by an adversary who watched the same model."""
    return play([("inside", 20), ("above", 150), ("far", 1), ("below", 100)], 2)[1]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("steps", [(2,), (1, 2)])
def test_on_the_command_line(tmp_path, values, steps):
    source, run = write(tmp_path / "rows.jsonl", [{"x": value} for value in values]), tmp_path / "run"
    columns = ("--inputs", "x", "--targets", "x", "--only-steps", *steps)
    assert norewind("train", source, "--out", run, *columns, *OPTIONS) == 0
    entries = read_log(run / "predictions.jsonl")
    for step in steps:
        assert assert_run_misses_are_bounded(entries, values, step, "x") > 200


def test_of_the_same_row(tmp_path, values):
    rows = [{"x": value, "y": number % 7} for number, value in enumerate(values)]
    source, run = write(tmp_path / "rows.jsonl", rows), tmp_path / "run"
    columns = ("--inputs", "y", "--targets", "x", "--horizon", 0)
    assert norewind("train", source, "--out", run, *columns, *OPTIONS) == 0
    assert assert_run_misses_are_bounded(read_log(run / "predictions.jsonl"), values, 0, "x") > 200


@pytest.mark.parametrize("share", [(), pytest.param(("--share",), marks=pytest.mark.slow)])
def test_in_fleets(tmp_path, values, share):
    both = {"a": values, "b": [value and 5 - value for value in values]}
    rows = [{"k": key, "x": both[key][place]} for place in range(len(values)) for key in both]
    source, run = write(tmp_path / "rows.jsonl", rows), tmp_path / "run"
    columns = ("--key", "k", "--inputs", "x", "--targets", "x", "--only-steps", 2)
    assert norewind("train", source, "--out", run, *columns, *share, *OPTIONS) == 0
    entries = read_log(run / "predictions.jsonl")
    for key in both:
        own = [entry for entry in entries if entry["key"] == key]
        assert assert_run_misses_are_bounded(own, both[key], 2, "x") > 200
    assert read_log(run / "metrics.jsonl")[-1]["intervals"]["0.9"]["targets"] > 0


@pytest.mark.slow
def test_in_the_service(tmp_path, values, capsys):
    pytest.importorskip("uvicorn")
    from servers import served

    rows, run = [{"x": value} for value in values], tmp_path / "run"
    source = write(tmp_path / "rows.jsonl", rows[:30])
    columns = ("--inputs", "x", "--targets", "x", "--only-steps", 2)
    assert norewind("train", source, "--out", run, *columns, *OPTIONS) == 0
    with served(run) as server:
        _, answer = server.ask("predict", {"row": rows[30]})
        assert answer["interval"]["x"].keys() == {"0.5", "0.9"}
        assert len(server.stream(rows[30:])) == len(rows[30:])
        status, ahead = server.ask("forecast?steps=3")
        assert status == 200
        assert [server.ask(f"forecast?{query}")[0] for query in ("steps=0", "steps=x", "key=a")] == [400] * 3
        assert server.end() == 143
    capsys.readouterr()
    assert norewind("forecast", run, "--steps", 3) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ahead["rows"]
    entries = read_log(run / "predictions.jsonl")
    assert assert_run_misses_are_bounded(entries, values, 2, "x") > 200


def test_forecasts_have_the_intervals_of_the_latest_row(tmp_path, capsys):
    random = np.random.default_rng(0)
    rows = [{"x": 5 + value, "y": value} for value in random.normal(size=120)]
    model = Forecaster(["x", "y"], horizon=3, **MODEL).fit(rows)
    model.save(tmp_path / "run")
    capsys.readouterr()
    assert norewind("forecast", tmp_path / "run", "--steps", 5) == 0
    output = capsys.readouterr()
    printed = [json.loads(line) for line in output.out.splitlines()]
    assert [row["interval"] for row in printed] == model.intervals(5) == load(tmp_path / "run").intervals(5)
    assert "without a guaranteed coverage" in output.err
    for row in printed:
        for column in ("x", "y"):
            (low, high), (wide_low, wide_high) = row["interval"][column].values()
            assert wide_low < low < row["forecast"][column] < high < wide_high
    assert norewind("forecast", tmp_path / "run", "--steps", 2, "--format", "csv") == 0
    head, first, _ = capsys.readouterr().out.splitlines()
    assert head.endswith("x 0.5 low,x 0.5 high,x 0.9 low,x 0.9 high,y 0.5 low,y 0.5 high,y 0.9 low,y 0.9 high")
    assert first.endswith(f",{printed[0]['interval']['y']['0.9'][1]}")


def test_bounds_are_rounded_outwards():
    random = np.random.default_rng(1)
    center, deviation = random.normal(size=(50, 1)) * 1e4, random.lognormal(size=(50, 1))
    values = center + deviation * random.normal(size=(50, 1))
    standardised = ((values - center) / deviation).astype(np.float32)
    low, high = bounds_in_units(np.stack([standardised, standardised], axis=1), center, deviation)[..., 0].T
    assert (low <= values[:, 0]).all()
    assert (high >= values[:, 0]).all()
    for value in [*low.tolist(), 0.0, 1e-12, -3.0, 123456.75]:
        assert rounded_outwards(value, -1) <= value <= rounded_outwards(value, 1)
    # A standardised target is at most 100, so an interval that ends there has no bound.
    assert bounds_in_units(np.array([[[-100.0], [100.0]]]), center[:1], deviation[:1]).tolist() == [
        [[-np.inf], [np.inf]]
    ]


def test_settings_of_intervals(tmp_path, capsys):
    assert Settings(interval=0.9).interval == (0.9,)
    assert Settings(interval=(0.95, 0.8)).interval == (0.8, 0.95)
    with pytest.raises(SettingsError, match="interval"):
        Settings(interval=(1.5,))
    with pytest.raises(SettingsError, match="made without intervals|interval="):
        Forecaster("x").intervals()
    source = write(tmp_path / "rows.jsonl", [{"x": 1.0}] * 30)
    code = norewind("train", source, "--out", tmp_path / "run", "--interval", "0.9", "--no-standardise")
    assert_rejected(capsys, code, "interval", "standardised")
