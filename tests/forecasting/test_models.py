"""The three Python models: the same rows, learners and run folders as the command line."""

import copy
import datetime
import decimal
import json
import math
import pickle
import warnings

import numpy as np
import pytest
from msgspec.structs import asdict

import norewind
from norewind.cli import main
from norewind.storage.checkpoint import CheckpointError
from norewind.streams.table.python_rows import iterate_rows
from norewind.training.settings import SettingsError

SMALL = {"method": "snap1", "cell": "lru", "hidden": 4, "rate": 1e-2}


def wave(count, start=0):
    return [{"tide": round(math.sin(t / 2), 6), "wind": t * 7 % 3} for t in range(start, start + count)]


def small(**settings):
    return norewind.Forecaster("tide", **{**SMALL, **settings})


def run_line(*words):
    """Run a command. Some end by returning, others by an exit code."""
    try:
        main([str(word) for word in words])
    except SystemExit as ended:
        assert not ended.code


def assert_same_run(one, other):
    """Assert that all numbers of two models are equal, bit for bit."""
    mine, others = (model.training.snapshot().arrays.values() for model in (one, other))
    assert len(mine) == len(others) > 3
    for leaf, another in zip(mine, others, strict=True):
        assert (leaf.dtype, leaf.shape, leaf.tobytes()) == (another.dtype, another.shape, another.tobytes())


@pytest.fixture(scope="module")
def fitted():
    return small().fit(wave(300))


def test_learning_row_by_row_equals_fit_up_to_rounding(fitted):
    one = small()
    for row in wave(300):
        one.learn_one(row)
    assert one.samples == fitted.samples == 300
    np.testing.assert_allclose(one.forecast(5), fitted.forecast(5), rtol=1e-4, atol=1e-4)
    for mine, other in zip(one.lines, fitted.lines, strict=True):
        assert mine["samples"] == other["samples"]
        np.testing.assert_allclose(*(np.array(line["loss"], float) for line in (mine, other)), rtol=1e-4)
    statistics = [model.training.windowed.stream.position()["statistics"] for model in (one, fitted)]
    assert statistics[0] == statistics[1]


def test_a_mixture_learns_row_by_row_as_with_fit_and_predictions_do_not_change_it():
    rows, few = wave(80), {"budget": 30.0}  # no networks, which take long to compile
    one, whole = norewind.Forecaster("tide", 2, **few), norewind.Forecaster("tide", 2, **few).fit(rows)
    for number, row in enumerate(rows):
        if number % 9 == 5:
            one.predict_one(row)
        one.learn_one(row)
    for row in wave(2, 80):
        made = [list(model.predict_one(row).values()) for model in (one, whole)]
        np.testing.assert_allclose(*made, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(one.forecast(5), whole.forecast(5), rtol=1e-3, atol=1e-3)
    mine, others = (model.training.snapshot().arrays.values() for model in (one, whole))
    for leaf, another in zip(mine, others, strict=True):
        assert leaf.dtype == another.dtype
        np.testing.assert_allclose(leaf, another, rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_the_default_classifier_learns_row_by_row_as_with_fit():
    rows = [{**row, "sky": "clear" if math.cos(number) > 0.2 else "dark"} for number, row in enumerate(wave(150))]
    one, whole = norewind.Classifier("sky"), norewind.Classifier("sky").fit(rows)
    for row in rows:
        one.learn_one(row)
    for row in wave(3, 150):
        mine, other = (model.predict_proba_one(row) for model in (one, whole))
        assert mine == pytest.approx(other, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"horizon": 0}, {"only_steps": (1, 3)}, {"loss": "gaussian", "horizon": 2}])
def test_the_default_learns_row_by_row_as_with_fit_up_to_rounding(settings):
    rows = [{**row, "sun": math.cos(number)} for number, row in enumerate(wave(150))]
    one, whole = norewind.Forecaster("tide", **settings), norewind.Forecaster("tide", **settings).fit(rows)
    for row in rows:
        one.learn_one(row)
    for row in wave(3, 150):
        mine, other = (np.array(list(_numbers(model.predict_one(row)))) for model in (one, whole))
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--horizon", "0"], ["--loss", "classes", "--horizon", "0"]])
def test_fit_equals_training_on_the_command_line_bit_for_bit(tmp_path, words):
    rows = [{"wind": row["wind"], "sun": math.cos(number), "tide": row["tide"]} for number, row in enumerate(wave(250))]
    if "classes" in words:
        rows = [{**row, "tide": "high" if row["tide"] > 0 else "low"} for row in rows]
    file = tmp_path / "tide.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_line("train", file, "--targets", "tide", "--out", tmp_path / "run", "--quiet", *words)
    horizon = 0 if words else 1
    kind = norewind.Classifier if "classes" in words else norewind.Forecaster
    assert_same_run(norewind.load(tmp_path / "run"), kind("tide", horizon).fit(rows))


def _numbers(value):
    return [number for part in value.values() for number in _numbers(part)] if isinstance(value, dict) else [value]


def test_predict_one_and_forecast_change_nothing(fitted):
    before = fitted.forecast(3)
    assert isinstance(fitted.predict_one(wave(1, 300)[0]), float)
    assert fitted.forecast(3) == before
    assert len(fitted.spread(3)) == 3


@pytest.mark.parametrize("kind", [norewind.AnomalyDetector, lambda **more: small(horizon=0, **more)])
def test_learning_does_not_depend_on_predicted_rows(kind):
    """A row that is predicted and then learned from is converted once."""
    asked, silent = (kind(inputs=["wind", "sun"], **SMALL) for _ in range(2))
    ask = asked.score_one if isinstance(asked, norewind.AnomalyDetector) else asked.predict_one
    rows = [{**row, "sun": math.cos(number)} for number, row in enumerate(wave(120))]
    for number, row in enumerate(rows):
        for place in ((), (0,), (-1, 0), (1,), (0, 1))[number % 5]:  # the row itself, the one before, the next one
            ask(rows[(number + place) % len(rows)])
        for model in (asked, silent):
            model.learn_one(row)
    assert_same_run(asked, silent)
    for mine, other in zip(
        *(model.training.windowed.stream.position().values() for model in (asked, silent)), strict=True
    ):
        np.testing.assert_equal(mine, other)
    assert asked.lines == silent.lines


def test_metrics_of_single_rows_do_not_depend_on_when_they_are_read():
    often, once = (small(inputs=["tide", "wind"]) for _ in range(2))
    for number, row in enumerate(wave(230)):
        for model in (often, once):
            model.learn_one(row)
        if number % 3 == 0:
            assert often.training.unfinished_line() is None or often.lines[-1]["samples"] <= number + 1
    assert often.lines == once.lines
    assert often.training.unfinished_line() == once.training.unfinished_line()
    assert any(line["carry"] for line in once.lines)
    np.testing.assert_equal(asdict(often.training.score.state), asdict(once.training.score.state))


def test_arrays_frames_and_dicts_are_the_same_rows(fitted):
    rows = [[row["tide"], row["wind"]] for row in wave(300)]
    expected = fitted.forecast(3)
    assert norewind.Forecaster("1", **SMALL).fit(np.array(rows)).forecast(3) == expected
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    for frame in (pandas.DataFrame(wave(300)), polars.DataFrame(wave(300))):
        assert small().fit(frame).forecast(3) == expected


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_series_is_a_column_with_its_name(package):
    series = pytest.importorskip(package).Series
    values = [row["tide"] for row in wave(12)]
    named, unnamed = series(values, name="tide") if package == "pandas" else series("tide", values), series(values)
    assert list(iterate_rows(named)) == [{"tide": value} for value in values]
    assert list(iterate_rows(unnamed)) == list(iterate_rows(values)) == [{"1": value} for value in values]


def test_a_saved_model_continues_as_if_uninterrupted(fitted, tmp_path):
    fitted.save(tmp_path / "run")
    again, other = norewind.load(tmp_path / "run"), copy.deepcopy(fitted)
    third = pickle.loads(pickle.dumps(fitted))
    for row in wave(20, 300):
        for model in (again, other, third):
            model.learn_one(row)
    assert again.forecast(4) == other.forecast(4) == third.forecast(4) != fitted.forecast(4)
    # The line of the unfinished interval, which the folder has too, is not one of the model's.
    assert [line["samples"] for line in again.lines] == [line["samples"] for line in other.lines]
    again.save(tmp_path / "run")
    assert norewind.load(tmp_path / "run").samples == 320
    with pytest.raises(SettingsError, match="holds a run other than this model.*norewind.load"):
        other.save(tmp_path / "run")


def test_targets_may_be_given_separately(fitted):
    rows, tide = [{"wind": row["wind"]} for row in wave(300)], [row["tide"] for row in wave(300)]
    settings = {**SMALL, "inputs": ("wind", "tide")}
    one = norewind.Forecaster("tide", **settings).fit(rows, tide)
    assert_same_run(one, norewind.Forecaster("tide", **settings).fit(wave(300)))
    with pytest.raises(norewind.streams.StreamError, match="the same number of rows"):
        small().fit(rows, tide[:-1])
    with pytest.raises(norewind.streams.StreamError, match="y has no column 'tide'. It has 'a', 'b'"):
        small().fit(rows, [{"a": 1, "b": 2}] * 300)
    with pytest.raises(norewind.streams.StreamError, match="name the target"):
        norewind.Forecaster().fit(rows, tide)
    with pytest.raises(norewind.streams.StreamError, match="holds its own targets"):
        small().fit("rows.csv", tide)


def test_a_model_learns_one_series(tmp_path):
    with pytest.raises(SettingsError, match="norewind train --key sensor"):
        norewind.Forecaster("tide", key="sensor")
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({"sensor": "a", **row}) + "\n" for row in wave(12)))
    run_line("train", source, "--key", "sensor", "--out", tmp_path / "run", "--quiet")
    with pytest.raises(SettingsError, match="learns one series"):
        norewind.load(tmp_path / "run")


def test_times_that_go_back_are_reported():
    rows = [{"time": f"2024-01-{31 - t:02d}", **row} for t, row in enumerate(wave(30))]
    with pytest.warns(UserWarning, match="'time' are not in ascending order"):
        small().fit(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small().fit(rows[::-1])


def test_a_later_state_in_the_folder_is_not_replaced(fitted, tmp_path):
    fitted.save(tmp_path / "run")
    early, late = norewind.load(tmp_path / "run"), norewind.load(tmp_path / "run")
    late.learn_one(wave(1, 300)[0])
    late.save(tmp_path / "run")
    with pytest.raises(SettingsError, match="later state"):
        early.save(tmp_path / "run")
    assert norewind.load(tmp_path / "run").forecast(2) == late.forecast(2) != early.forecast(2)


def test_a_model_is_in_its_folder_only_once_it_is_complete(fitted, tmp_path, monkeypatch):
    """Its checkpoint is written last: whatever fails before that, there is no model of another kind."""

    def fail(*_):
        raise OSError(28, "No space left on device")

    for number, place in enumerate(["forecasting.base_model.write_atomically", "storage.checkpoint.write_atomically"]):
        folder, model = tmp_path / str(number), copy.deepcopy(fitted)
        with monkeypatch.context() as patch:
            patch.setattr(f"norewind.{place}", fail)
            with pytest.raises(OSError, match="No space"):
                model.save(folder)
        with pytest.raises((SettingsError, CheckpointError)):
            norewind.load(folder)
        model.save(folder)
        assert norewind.load(folder).forecast(2) == fitted.forecast(2)


def test_fit_continues_after_single_rows_and_a_bad_row_changes_nothing(fitted):
    parts = small().fit(wave(200))
    for row in wave(50, 200):
        parts.learn_one(row)
    before = parts.forecast(3)
    with pytest.raises(norewind.streams.StreamError, match="'tide'"):
        parts.fit([*wave(20, 250), {"tide": "high", "wind": 1}])
    with pytest.raises(ZeroDivisionError):
        parts.fit({"tide": 1 / (count - 3), "wind": 1} for count in range(5))
    assert (parts.samples, parts.forecast(3)) == (250, before)
    parts.fit(iter(wave(50, 250)))
    assert parts.samples == 300
    np.testing.assert_allclose(parts.forecast(3), fitted.forecast(3), rtol=1e-4, atol=1e-4)


def test_the_command_line_continues_a_saved_model_and_vice_versa(tmp_path, capsys):
    file, more = tmp_path / "tide.csv", tmp_path / "more.csv"
    file.write_text("tide,wind\n" + "".join(f"{row['tide']},{row['wind']}\n" for row in wave(300)))
    more.write_text("".join(f"{row['tide']},{row['wind']}\n" for row in wave(50, 300)))
    options = [f"--{name}={value}" for name, value in SMALL.items()]
    run_line("train", file, "--targets", "tide", "--out", tmp_path / "cli", "--quiet", *options)
    model, mine = norewind.load(tmp_path / "cli"), small().fit(file)
    assert_same_run(model, mine)
    assert_same_run(model, small().fit(wave(300)))
    assert model.forecast(3) == mine.forecast(3)
    mine.save(tmp_path / "mine")
    run_line("resume", tmp_path / "mine", "--source", more, "--continues", "--quiet")
    for row in wave(50, 300):
        model.learn_one(row)
    resumed = norewind.load(tmp_path / "mine")
    assert resumed.samples == model.samples == 350
    np.testing.assert_allclose(resumed.forecast(3), model.forecast(3), rtol=1e-4, atol=1e-4)
    capsys.readouterr()
    run_line("forecast", tmp_path / "mine", "--steps", "3", "--format", "csv")
    printed = [float(line.split(",")[1]) for line in capsys.readouterr().out.splitlines()[1:]]
    assert printed == resumed.forecast(3)
    new = tmp_path / "new.csv"
    new.write_text(file.read_text())
    run_line("predict", tmp_path / "mine", new)


@pytest.mark.parametrize("method", ["uoro:window=4", "bptt:16"])
def test_a_method_with_windows_answers_single_rows(method, tmp_path, capsys):
    """This also holds after rows that wait for their window."""
    model = small(method=method).fit(wave(120)[:-17])
    assert model.training.windowed.partial_window is not None
    assert math.isfinite(model.predict_one(wave(1)[0]))
    model.save(tmp_path / "run")
    capsys.readouterr()
    run_line("forecast", tmp_path / "run", "--steps", "4", "--format", "csv")
    printed = [float(line.split(",")[1]) for line in capsys.readouterr().out.splitlines()[1:]]
    np.testing.assert_allclose(model.forecast(4), printed, rtol=1e-5, atol=1e-5)


def test_rows_from_python_can_be_resumed_as_json_lines(tmp_path):
    model = small()
    for row in wave(120):
        model.learn_one(row)
    model.save(tmp_path / "run")
    more = tmp_path / "more.jsonl"
    more.write_text("".join(f'{{"tide": {row["tide"]}, "wind": {row["wind"]}}}\n' for row in wave(30, 120)))
    run_line("resume", tmp_path / "run", "--source", more, "--continues", "--quiet")
    assert norewind.load(tmp_path / "run").samples == 150


ODD = [None, math.nan, "high", "", True, 10**400, -math.inf, decimal.Decimal("1.5"), decimal.Decimal("NaN"), b"1", [1]]
ODD += [np.float32(2), np.int64(3), np.bool_(True), np.datetime64("2024-01-01"), datetime.datetime(2024, 1, 1), {}]
ODD += [object(), complex(1, 2), range(3), "1e5", "１", {"a": [None]}, np.array([1.0, 2.0]), float("inf")]


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:20])
def test_unusual_values_are_accepted_or_rejected_and_nothing_is_lost(fitted, value):
    model = copy.deepcopy(fitted)
    for column in ("tide", "wind", "another"):
        before, rows = model.forecast(2), model.samples
        try:
            model.learn_one({**wave(1, 300)[0], column: value})
        except (norewind.streams.StreamError, SettingsError) as problem:
            assert str(problem)
            assert (model.samples, model.forecast(2)) == (rows, before)
        else:
            assert model.samples == rows + 1
    model.learn_one({"wind": 1})
    model.learn_one(wave(1, 301)[0])
    assert all(map(math.isfinite, model.forecast(2)))


def test_the_first_rows_may_be_unusual():
    model = small()
    with pytest.raises(norewind.streams.StreamError, match="not a number, text"):
        model.learn_one({"tide": object()})
    with pytest.raises(norewind.streams.StreamError, match="not a str"):
        model.learn_one("tide")
    for row in [{"tide": None, "wind": 1}, *wave(15), {"tide": "high", "wind": 2}, *wave(3)]:
        model.learn_one(row)
    with pytest.raises(norewind.streams.StreamError, match="row 17 is bad: column 'tide'"):
        model.predict_one(wave(1)[0])
    assert model.samples == 19
    assert isinstance(model.predict_one(wave(1)[0]), float)


@pytest.mark.parametrize(
    ("do", "message"),
    [
        (lambda: small().forecast(), "nothing to forecast from"),
        (lambda: small().save("nowhere"), "nothing to save"),
        (lambda: small().fit({"tide": [1, 2]}), "data frame"),
        (lambda: small().fit(3), "an iterable of dicts"),
        (lambda: small().fit("nowhere.csv"), "does not exist"),
        (lambda: small().fit("nowhere.xlsx"), "ends in .csv"),
        (lambda: small(horizon=0).forecast(), "horizon of 0"),
        (lambda: small().forecast(0), "not 0"),
        (lambda: small(method="uoro:window=4").learn_one({"tide": 1}), "windows of 4"),
        (lambda: norewind.Forecaster("tide", hiden=3), "no setting hiden. Did you mean hidden"),
        (lambda: norewind.Forecaster("tide", qqq=3), "no setting qqq. Settings are those"),
    ],
)
def test_mistakes_are_named(do, message):
    with pytest.raises((norewind.streams.StreamError, SettingsError), match=message):
        do()


def test_a_classifier_learns_a_rule_with_calibrated_probabilities(tmp_path):
    model = norewind.Classifier("sky", **SMALL)
    rng = np.random.default_rng(0)
    rows = [{"light": float(x), "sky": bool(x > 0)} for x in rng.normal(size=400)]
    assert model.predict_one(rows[0]) is None
    right = 0
    for row in rows:
        right += model.predict_one({"light": row["light"]}) == row["sky"]
        model.learn_one(row)
    assert right > 330
    chances = model.predict_proba_one({"light": 1.5})
    assert chances.keys() == {False, True}
    assert sum(chances.values()) == pytest.approx(1)
    model.learn_one({"light": 0.3, "sky": None})
    model.save(tmp_path / "run")
    again = norewind.load(tmp_path / "run")
    assert again.predict_proba_one({"light": 1.5}) == model.predict_proba_one({"light": 1.5})
    whole = norewind.Classifier("sky", **SMALL).fit([*rows, {"light": 0.3, "sky": None}])
    for label, chance in whole.predict_proba_one({"light": 1.5}).items():
        assert chance == pytest.approx(model.predict_proba_one({"light": 1.5})[label], abs=1e-4)


def test_a_detector_finds_anomalies(tmp_path):
    model = norewind.AnomalyDetector(**SMALL)
    assert model.score_one({"tide": 1.0, "wind": 0}) == 0
    model.fit(wave(400))
    usual, odd = wave(1, 400)[0], {"tide": 5.0, "wind": 40}
    assert model.score_one(usual) < 0.99 < 0.9999 < model.score_one(odd) <= 1
    assert model.score_one(odd) == model.score_one(odd)  # scoring changes nothing
    model.save(tmp_path / "run")
    assert isinstance(norewind.load(tmp_path / "run"), norewind.AnomalyDetector)


def test_models_have_a_short_repr(fitted):
    assert len(repr(fitted).splitlines()) <= 7
    assert "300 rows" in repr(fitted)
    assert "<table>" in fitted._repr_html_()
    assert "<td>curve</td>" in fitted._repr_html_()
    assert "0 rows" in small()._repr_html_()
