"""`norewind explain`: its parts add up to the printed forecast, and it finds the column, the lag and the change."""

import json
from itertools import pairwise

import numpy as np
import pytest
from kept_runs import unpack
from run_folders import assert_rejected, everything, norewind

from norewind import Forecaster
from norewind.forecasting.explain import explanation_text, main_members
from norewind.learners.explanation import ForecastPart
from norewind.plotting.figures import as_dates, save
from norewind.plotting.weights_figure import weights_figure
from norewind.storage.checkpoint import read_metadata
from norewind.streams import RowStream
from norewind.streams.table.input_names import input_names
from norewind.streams.table.python_rows import PythonRows
from norewind.training.log import read_log

pytestmark = pytest.mark.usefixtures("shared_programs")

ROWS, CHANGE = 1_400, 800
# Without networks.
OPTIONS = ("--budget", 20, "--targets", "load", "price", "--inputs", "load", "price", "wind", "--horizon", 2)


def time_of(row):
    return str(np.datetime64("2024-01-01T00:00") + np.timedelta64(row - 1, "h"))


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """A table with times, whose load follows the wind of two rows before until it changes."""
    draw = np.random.default_rng(0)
    wind = draw.normal(size=ROWS)
    load = 20 + np.concatenate([[0, 0], 3 * wind[:-2]]) + 0.1 * draw.normal(size=ROWS)
    load[CHANGE:] = 20 + 9 * draw.normal(size=ROWS - CHANGE)
    load[-30] = 200
    price = draw.normal(size=ROWS)
    rows = [
        f"{time_of(row)},{a:.4f},{b:.4f},{c:.4f}\n"
        for row, (a, b, c) in enumerate(zip(load, price, wind, strict=True), 1)
    ]
    path = tmp_path_factory.mktemp("table") / "table.csv"
    path.write_text("when,load,price,wind\n" + "".join(rows))
    return path


@pytest.fixture(scope="module")
def trained(timed):
    """A run folder that has learned from the table until shortly before the change, and one that saw all of it."""
    half, whole = timed.parent / "half", timed.parent / "whole"
    assert norewind("train", timed, "--out", half, *OPTIONS, "--samples", CHANGE - 10, "--quiet") == 0
    assert norewind("train", timed, "--out", whole, *OPTIONS, "--quiet") == 0
    return half, whole


def explained(capsys, *arguments):
    assert norewind("explain", *arguments, "--format", "json") == 0
    return json.loads(capsys.readouterr().out)


def test_the_parts_of_a_forecast_add_up_to_it_and_name_the_column_and_lag(trained, capsys):
    half, _ = trained
    before = everything(half)
    for step in (1, 2):
        found = explained(capsys, half, "--step", step)
        assert norewind("forecast", half) == 0
        printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert (found["samples"], found["for"]) == (CHANGE - 10, CHANGE - 10 + step)
        for column, forecast in found["forecast"].items():
            assert sum(part["adds"] for part in forecast["parts"]) == pytest.approx(forecast["forecast"], rel=1e-12)
            assert forecast["forecast"] == pytest.approx(printed[step - 1]["forecast"][column], rel=1e-5)
        names = [part["from"] for part in found["forecast"]["load"]["parts"]]
        assert names[0] == "the mean so far"
        largest = {1: "wind, 1 row before the latest", 2: "wind, latest row"}[step]
        assert largest in names[1:3]
    # Nothing but the figures has changed.
    after = everything(half)
    assert {name for name in after if after[name] != before.get(name)} <= {"weights.png", "forecast.png"}


def test_a_change_is_an_alarm_with_its_date_and_the_same_after_a_kill(timed, trained, tmp_path, capsys):
    _, whole = trained
    found = explained(capsys, whole)
    first = next(alarm for alarm in found["drift"] if alarm["of"] == "errors")
    assert first["column"] == "load"
    assert CHANGE < first["sample"] <= CHANGE + 480
    assert abs(first["since"] - CHANGE) <= 48
    assert first["time"] == time_of(first["sample"])
    lines = read_log(whole / "metrics.jsonl")
    assert lines[-1]["alarms"] == len(found["drift"])
    assert lines[-1]["time"] == time_of(ROWS)
    # The same lines when the run is interrupted in between.
    again = tmp_path / "again"
    assert norewind("train", timed, "--out", again, *OPTIONS, "--samples", CHANGE + 5, "--quiet") == 0
    assert norewind("resume", again, "--samples", ROWS, "--quiet") == 0

    def shown(path):
        return [{k: v for k, v in line.items() if k != "seconds"} for line in read_log(path / "metrics.jsonl")]

    assert shown(again) == shown(whole)
    saved = [max((run / "checkpoints").glob("*")) for run in (again, whole)]
    scores = [read_metadata(path) for path in saved]
    assert scores[0]["weights"] == scores[1]["weights"]


def test_an_anomaly_names_its_column_and_what_was_expected(trained, capsys):
    _, whole = trained
    worst = explained(capsys, whole)["unusual"][0]
    assert (worst["sample"], worst["column"], worst["value"]) == (ROWS - 29, "load", 200)
    assert 0 < worst["expected"] < 60
    assert worst["time"] == time_of(ROWS - 29)
    assert norewind("explain", whole) == 0
    text = capsys.readouterr().out
    assert f"row {ROWS - 29:,} ({worst['time']}): load was 200, expected" in text
    assert "Drift:\n  row " in text
    assert "Main members" in text


def test_rows_are_marked_with_the_unusual_column():
    draw = np.random.default_rng(0)
    model = Forecaster(targets=("a", "b"), inputs=("a", "b"), budget=20)
    rows = [{"a": x, "b": y} for x, y in draw.normal(size=(400, 2)).tolist()]
    model.fit(rows)
    score, samples, outputs = model._predict_at({"a": 0.1, "b": 50.0})
    (entry,) = score.prediction_entries(401, samples, outputs)
    assert entry["anomaly"] > 0.99
    assert entry["unusual"] == "b"
    assert abs(entry["prediction"]["b"]) < 1
    found = model.explain()
    assert set(found["forecast"]) == {"a", "b"}
    assert found["members"]
    assert "forecast of a for row 401" in explanation_text(found)


def test_since_when_a_member_carries_the_forecasts():
    weights = [{"a": 1.0}, {"a": 0.1, "b": 0.9}, {"a": 0.6, "b": 0.4}, {"a": 0.39, "b": 0.58, "c": 0.03}]
    lines = [{"samples": 10 * n, "time": f"t{n}", "weights": each} for n, each in enumerate(weights, 1)]
    assert main_members(lines) == [
        {"member": "b", "weight": 0.58, "since": 11, "time": "t1"},
        {"member": "a", "weight": 0.39, "since": 21, "time": "t2"},
    ]
    assert main_members([{"samples": 3}]) == []


def test_every_input_has_a_name():
    rows = [{"t": f"2024-05-{day:02d}", "x": day % 7, "city": "abc"[day % 3], "y": day % 5} for day in range(1, 29)]
    options = (
        {"inputs": ["t", "x", "city"], "targets": ["y"], "horizon": 0},
        {"inputs": ["city", "y", "t"], "targets": ["y"]},
    )
    for given in options:
        stream = RowStream(PythonRows(rows), **given)
        stream.take(100)
        names = input_names(stream.layout, stream.position())
        assert len(names) == stream.layout.width
        assert "city = b" in names


def test_runs_that_cannot_be_explained_are_rejected(trained, whole, tmp_path, capsys):
    half, _ = trained
    assert_rejected(capsys, norewind("explain", whole / "bytes"), "this run predicts symbols")
    assert_rejected(capsys, norewind("explain", unpack("fleet", tmp_path)), "this run has keys")
    assert_rejected(capsys, norewind("explain", half, "--step", 3), "step is 3, but this run forecasts 1 to 2")
    assert_rejected(capsys, norewind("explain", half, "--figure", "x.doc"), ".png, .pdf or .svg")
    # A single network has no members and cannot be divided, but its errors are watched.
    assert norewind("explain", whole / "rows") == 0
    assert "Drift: no alarms." in capsys.readouterr().out


def test_the_figure_has_dates_and_marks(tmp_path):
    lines = [{"samples": n, "weights": {"a": n / 10, "b": 0.1}} for n in range(1, 10)]
    lines[4]["drift"] = [{"sample": 5, "of": "members"}]
    figure = weights_figure(lines)
    assert figure.axes[0].get_xlabel() == "row"
    assert len([line for line in figure.axes[0].get_lines() if line.get_label() == "drift"]) == 1
    for line in lines:
        line["time"] = f"2024-05-{line['samples']:02d}"
    assert save(weights_figure(lines), tmp_path / "w.png").stat().st_size > 5_000
    assert as_dates(["2024-05-02", "2024-05-01"]) is None
    assert ForecastPart() != ForecastPart(0)
    assert all(a < b for a, b in pairwise(as_dates(["1700000000", "1700000060"])))
