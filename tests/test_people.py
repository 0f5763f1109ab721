"""Three estimators for people: the same rows, learners and run folders as the command line."""

import math

import numpy as np
import pytest

import norewind
from norewind.cli import main
from norewind.runs.settings import SettingsError

SMALL = {"method": "snap1", "cell": "lru", "hidden": 4, "rate": 1e-2}


def wave(count, start=0):
    return [{"tide": round(math.sin(t / 2), 6), "wind": t % 3} for t in range(start, start + count)]


def small(**settings):
    return norewind.Forecaster("tide", **{**SMALL, **settings})


@pytest.fixture(scope="module")
def fitted():
    return small().fit(wave(400))


def test_learning_one_by_one_is_fit_but_for_rounding(fitted):
    one = small()
    for row in wave(400):
        one.learn_one(row)
    assert one.samples == fitted.samples == 400
    np.testing.assert_allclose(one.forecast(5), fitted.forecast(5), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(one.live.mean_loss, fitted.live.mean_loss, rtol=1e-3)


def test_predict_one_and_forecast_change_nothing(fitted):
    before = fitted.forecast(3)
    assert isinstance(fitted.predict_one(wave(1, 400)[0]), float)
    assert fitted.forecast(3) == before


def test_arrays_frames_and_dicts_are_the_same_rows(fitted):
    rows = [[row["tide"], row["wind"]] for row in wave(400)]
    array = norewind.Forecaster("1", **SMALL).fit(np.array(rows))
    assert array.forecast(3) == fitted.forecast(3)

    class Polars:
        def iter_rows(self, named):
            return iter(wave(400))

    assert small().fit(Polars()).forecast(3) == fitted.forecast(3)
    pandas = pytest.importorskip("pandas")
    assert small().fit(pandas.DataFrame(wave(400))).forecast(3) == fitted.forecast(3)


def test_a_saved_model_goes_on_as_if_nothing_had_happened(fitted, tmp_path):
    fitted.save(tmp_path / "run")
    again = norewind.load(tmp_path / "run")
    assert again.forecast(4) == fitted.forecast(4)
    other = small().fit(wave(400))
    for row in wave(20, 400):
        again.learn_one(row)
        other.learn_one(row)
    assert again.forecast(4) == other.forecast(4)
    again.save(tmp_path / "run")
    assert norewind.load(tmp_path / "run").samples == 420
    again.save(tmp_path / "run")
    with pytest.raises(SettingsError, match="already holds a run"):
        other.save(tmp_path / "run")


def test_fit_goes_on_after_single_rows_and_a_bad_one_changes_nothing(fitted):
    whole, parts = small().fit(wave(400)), small().fit(wave(300))
    for row in wave(50, 300):
        parts.learn_one(row)
    before = parts.forecast(3)
    with pytest.raises(norewind.StreamError, match="'tide'"):
        parts.fit([*wave(20, 350), {"tide": "high", "wind": 1}])
    assert parts.samples == 350
    assert parts.forecast(3) == before
    parts.fit(iter(wave(50, 350)))
    assert parts.samples == 400
    np.testing.assert_allclose(parts.forecast(3), whole.forecast(3), rtol=1e-3, atol=1e-3)
    statistics = [model.live.opened.stream.position()["statistics"] for model in (whole, parts)]
    assert statistics[0] == statistics[1]


def test_the_first_rows_were_not_forecast():
    model = small(horizon=3)
    for row in wave(2):
        model.learn_one(row)
    assert model.forecast(4) == [None] * 4


def test_the_command_line_goes_on_with_a_saved_model_and_the_other_way_round(tmp_path, capsys):
    rows = wave(400)
    file = tmp_path / "tide.csv"
    file.write_text("tide,wind\n" + "".join(f"{row['tide']},{row['wind']}\n" for row in rows))
    more = tmp_path / "more.csv"
    more.write_text("".join(f"{row['tide']},{row['wind']}\n" for row in wave(50, 400)))
    options = [f"--{name}={value}" for name, value in SMALL.items()]
    with pytest.raises(SystemExit) as ended:
        main(["train", str(file), "--targets", "tide", "--out", str(tmp_path / "cli"), "--quiet", *options])
    assert not ended.value.code
    model = norewind.load(tmp_path / "cli")
    mine = small().fit(file)
    assert model.forecast(3) == mine.forecast(3)
    mine.save(tmp_path / "mine")
    with pytest.raises(SystemExit) as ended:
        main(["resume", str(tmp_path / "mine"), "--source", str(more), "--continues", "--quiet"])
    assert not ended.value.code
    for row in wave(50, 400):
        model.learn_one(row)
    resumed = norewind.load(tmp_path / "mine")
    assert resumed.samples == model.samples == 450
    np.testing.assert_allclose(resumed.forecast(3), model.forecast(3), rtol=1e-3, atol=1e-3)


def test_a_bad_row_is_refused_and_the_next_one_is_learned():
    model = small()
    model.learn_one({"tide": 1.0, "wind": 2})
    with pytest.raises(norewind.StreamError, match="column 'tide'"):
        model.learn_one({"tide": "high", "wind": 2})
    with pytest.raises(norewind.StreamError, match="give numbers"):
        model.learn_one({"tide": object(), "wind": 2})
    model.learn_one({"tide": 1.0, "wind": 2})
    assert model.samples == 2


@pytest.mark.parametrize(
    ("do", "message"),
    [
        (lambda: small().forecast(), "nothing to forecast from"),
        (lambda: small().save("nowhere"), "nothing to save"),
        (lambda: small().fit({"tide": [1, 2]}), "data frame"),
        (lambda: small().fit(3), "an iterable of dicts"),
        (lambda: small().spread(), "gaussian"),
        (lambda: small(horizon=0).forecast(), "predict_one"),
        (lambda: norewind.Forecaster("tide", method="uoro:window=4").learn_one({"tide": 1}), "windows of 4"),
        (lambda: norewind.Forecaster("tide", hiden=3), "hiden"),
    ],
)
def test_mistakes_are_named(do, message):
    with pytest.raises((norewind.StreamError, SettingsError), match=message):
        do()


def test_a_classifier_learns_a_rule_and_knows_how_sure_it_is(tmp_path):
    model = norewind.Classifier("sky", classes=3, **SMALL)
    rng = np.random.default_rng(0)
    rows = [{"light": float(x), "sky": "day" if x > 0 else "night"} for x in rng.normal(size=600)]
    assert model.predict_one(rows[0]) is None
    right = 0
    for row in rows:
        right += model.predict_one({"light": row["light"]}) == row["sky"]
        model.learn_one(row)
    assert right > 480
    chances = model.predict_proba_one({"light": 1.5})
    assert chances.keys() == {"day", "night"}
    assert sum(chances.values()) == pytest.approx(1)
    model.learn_one({"light": 0.3, "sky": None})
    model.save(tmp_path / "run")
    again = norewind.load(tmp_path / "run")
    assert again.predict_proba_one({"light": 1.5}) == model.predict_proba_one({"light": 1.5})
    model.learn_one({"light": 0.3, "sky": "dusk"})
    with pytest.raises(norewind.StreamError, match="more classes"):
        model.learn_one({"light": 0.3, "sky": "dawn"})
    with pytest.raises(norewind.StreamError, match="'light'"):
        model.learn_one({"light": "bright", "sky": "day"})
    assert (model.labels[2], model.before, model.samples) == ("dusk", 2, 602)


def test_a_detector_finds_what_is_odd():
    model = norewind.AnomalyDetector(**SMALL)
    assert model.score_one({"tide": 1.0, "wind": 0}) == 0
    for row in wave(400):
        model.learn_one(row)
    usual, odd = wave(1, 400)[0], {"tide": 5.0, "wind": 40}
    assert model.score_one(usual) < 4 < model.score_one(odd)
