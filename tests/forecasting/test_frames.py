"""Frames in, frames out: forecasts, predictions and backtests are frames of the kind that was passed in."""

import copy
import math

import numpy as np
import pandas as pd
import polars as pl
import pytest

import norewind
from norewind.streams import StreamError

SMALL = {"method": "bptt", "hidden": 2, "interval": 0.8}
ROWS = 130


def table(rows=ROWS, start=0):
    wave = [round(5 + math.sin(t / 3) + 0.1 * (t * 7 % 5), 4) for t in range(start, start + rows)]
    return {"when": pd.date_range("2024-01-01", periods=start + rows, freq="h")[start:], "tide": wave}


def model(**more):
    return norewind.Forecaster("tide", **{"horizon": 3, **SMALL, **more})


@pytest.fixture(scope="module")
def fitted():
    return model().fit(pd.DataFrame(table()))


def test_a_forecast_is_a_frame_with_times(fitted):
    found = fitted.forecast(3)
    assert list(found.columns) == ["when", "tide", "tide deviation", "tide 0.8 low", "tide 0.8 high"]
    assert found["when"].tolist() == list(table(3, ROWS)["when"])
    assert found.index.tolist() == [ROWS, ROWS + 1, ROWS + 2]
    entries = fitted.entries_ahead(3)
    assert found["tide"].tolist() == [entry["forecast"]["tide"] for entry in entries]
    assert (found["tide 0.8 low"] < found["tide"]).all()
    assert found.dtypes["tide 0.8 high"].kind == "f"


def test_polars_and_a_time_index(fitted):
    polars = model().fit(pl.DataFrame(table())).forecast(2)
    assert isinstance(polars, pl.DataFrame)
    assert polars["tide"].to_list() == fitted.forecast(2)["tide"].tolist()
    assert polars["when"].to_list() == [time.to_pydatetime() for time in table(2, ROWS)["when"]]
    indexed = model().fit(pd.DataFrame(table()).set_index("when"))
    indexed.learn_one({"tide": 5.0})
    found = indexed.forecast(2)
    assert found.index.tolist() == list(table(2, ROWS + 1)["when"])
    assert found.index.name == "when"
    assert "when" not in found.columns
    assert isinstance(model().fit(pd.DataFrame(table()).to_dict("records")).forecast(2), list)


def test_predict_goes_on_without_learning(fitted):
    more = pd.DataFrame(table(5, ROWS), index=[10, 20, 30, 40, 50])
    before = fitted.forecast(3)
    found = fitted.predict(more)
    assert found.index.tolist() == more.index.tolist()
    assert list(found.columns) == ["tide +1", "tide +2", "tide +3"]
    first = fitted.predict_one(more.iloc[0])
    np.testing.assert_allclose(found.iloc[0], list(first.values()), rtol=1e-6)
    pd.testing.assert_frame_equal(fitted.forecast(3), before)
    with pytest.raises(StreamError, match="a pandas or Polars frame"):
        fitted.predict([{"tide": 1}])


def test_a_backtest_uses_nothing_from_later():
    data = pd.DataFrame(table())
    result = model().backtest(data, origins=[60, 90], horizon=2)
    assert result.frame["row"].tolist() == [60, 61, 90, 91]
    assert result.frame["tide actual"].tolist() == data["tide"][[60, 61, 90, 91]].tolist()
    expected = model().fit(data[:60]).forecast(2)
    assert result.frame["tide"][:2].tolist() == expected["tide"].tolist()
    changed = data.copy()
    changed.loc[90:, "tide"] = 0
    assert model().backtest(changed, origins=[60, 90], horizon=2).frame["tide"].equals(result.frame["tide"])
    assert result.figure.axes
    assert len(model().backtest(pl.DataFrame(table()), origins=3).frame) == 9
    with pytest.raises(StreamError, match="from 1 to 128"):
        model().backtest(data, origins=[129], horizon=2)


@pytest.mark.parametrize("suffix", [".parquet", ".csv.gz", ".tsv.gz", ".tsv"])
def test_files_are_read_as_frames_or_tables(fitted, tmp_path, suffix):
    path, data = tmp_path / f"tide{suffix}", pd.DataFrame(table())
    if suffix == ".parquet":
        pl.DataFrame(table()).write_parquet(path)
    else:
        data.to_csv(path, index=False, sep="\t" if "tsv" in suffix else ",")
    found, expected = model().fit(str(path)).forecast(2), fitted.forecast(2)["tide"].tolist()
    assert (found if suffix == ".tsv" else found["tide"].to_list()) == expected


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
    for name in ("bad.parquet", "none.csv.gz"):
        with pytest.raises(StreamError, match=f"{name}: cannot be read"):
            model().fit(tmp_path / name)


def test_a_model_draws_its_forecast(fitted):
    assert "80 % interval" in [text.get_text() for text in fitted.plot(2).legends[0].get_texts()]


def weekly(rows, index=None):
    """A load that is twice as high on two days of the week and at some hours, which only the calendar tells."""
    times = pd.date_range("2024-01-01", periods=rows, freq="h")
    noise = np.random.default_rng(0).normal(size=rows)
    load = 10.0 + 5 * (times.day_of_week >= 5) + 3 * (times.hour == 8) + 0.1 * noise
    return pd.DataFrame({"when": times, "load": load})


CALENDAR = {"horizon": 30, "budget": 6}


@pytest.fixture(scope="module")
def by_column():
    return norewind.Forecaster("load", **CALENDAR).fit(weekly(600))


@pytest.mark.parametrize("kind", ["index", "unnamed", "period", "series", "polars", "named"])
def test_an_index_of_times_gives_the_calendar_as_a_column_does(kind, by_column):
    data, named = weekly(600), {"targets": "load"}
    data = data if kind in ("polars", "named") else data.set_index("when")
    if kind == "unnamed":
        data.index.name = None
    elif kind == "period":
        data = data.to_period("h")
    elif kind == "series":
        data = data["load"]
    elif kind == "polars":
        data = pl.DataFrame(data)
    elif kind == "named":
        named["inputs"] = ("when", "load")
    found = norewind.Forecaster(**named, **CALENDAR).fit(data)
    made, expected = found.forecast(30), by_column.forecast(30)
    assert list(made["load"]) == expected["load"].tolist()
    assert found.training.windowed.stream.outlook.entries[:2] == ("hour", "weekday")
    if kind in ("index", "unnamed", "series"):
        assert list(made.columns) == ["load", "load deviation"]
        assert made.index.tolist() == expected["when"].tolist()


def test_single_rows_go_on_with_the_times_of_the_index(by_column):
    data = weekly(603)
    found = norewind.Forecaster("load", **CALENDAR).fit(data.set_index("when")[:600])
    found.learn_one({"load": data["load"][600]})
    found.learn_one(data.set_index("when").iloc[601])
    expected = copy.deepcopy(by_column).fit(data[600:602]).forecast(30)
    assert found.forecast(30)["load"].tolist() == pytest.approx(expected["load"].tolist(), rel=1e-5)
    assert list(found.predict_one({"load": 10.0}).values()) == list(
        found.predict_one(data.assign(load=10.0).set_index("when").iloc[602]).values()
    )
