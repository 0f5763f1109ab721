"""Columns known in advance and holidays, from the command line and in Python: forecasts follow the plan."""

import json
import sys
from datetime import date, timedelta
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
from run_folders import assert_rejected, norewind

from norewind import Forecaster
from norewind.streams import StreamError
from norewind.streams.table.calendar_entries import holidays_between, holidays_of_year, wall_clock

pytestmark = pytest.mark.usefixtures("shared_programs")

ROWS, PLANNED = 170, 6
OPTIONS = {"targets": "load", "horizon": 3, "known_future": "price", "budget": 6}


@pytest.fixture
def frame():
    """A load that follows the price of its own row, which nothing else tells; the last rows are a plan."""
    random = np.random.default_rng(0)
    price = random.integers(0, 10, ROWS + PLANNED).astype(float)
    load = 5 + 3 * price + 0.3 * random.normal(size=len(price))
    load[ROWS:] = np.nan
    times = pandas.date_range("2024-01-01", periods=len(price), freq="h")
    return pandas.DataFrame({"time": times.astype(str), "load": load, "price": price})


def expected(frame):
    return (5 + 3 * frame["price"][ROWS : ROWS + 3]).tolist()


def test_the_command_line_forecasts_by_the_plan(frame, tmp_path, capsys):
    frame.to_csv(tmp_path / "rows.csv", index=False)
    options = ("--targets", "load", "--horizon", 3, "--known-future", "price", "--budget", 6, "--quiet")
    assert norewind("train", tmp_path / "rows.csv", *options, "--out", tmp_path / "run") == 0
    capsys.readouterr()
    assert norewind("forecast", tmp_path / "run") == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [entry["for"] for entry in entries] == [ROWS + 1, ROWS + 2, ROWS + 3]
    assert [entry["forecast"]["load"] for entry in entries] == pytest.approx(expected(frame), abs=1.5)


def test_python_forecasts_by_the_plan_and_continues_the_frame(frame):
    frame.index = pandas.DatetimeIndex(frame.pop("time"), freq="h")
    model = Forecaster(**OPTIONS).fit(frame)
    assert model.samples == ROWS
    made = model.forecast(3)
    assert list(made.index) == list(frame.index[ROWS : ROWS + 3])
    assert made["load"].tolist() == pytest.approx(expected(frame), abs=1.5)
    model.learn_one({"load": expected(frame)[0], "price": frame["price"].iloc[ROWS]})
    again = model.forecast(2)["load"].tolist()
    assert again == pytest.approx(expected(frame)[1:], abs=1.5)


def test_a_run_that_reads_ahead_is_not_served(frame, tmp_path, capsys):
    Forecaster(**OPTIONS).fit(frame).save(tmp_path / "run")
    assert_rejected(capsys, norewind("serve", tmp_path / "run"), "reads columns ahead (known_future)")


def test_holidays_are_those_of_the_package(monkeypatch):
    holidays_of_year.cache_clear()
    days = {(2024, 1, 1), (2024, 12, 25), (2025, 1, 1)}

    def country_holidays(country, subdiv, years):
        assert (country, subdiv) == ("DE", "BY")
        return [date(*day) for day in days if day[0] == years]

    monkeypatch.setitem(sys.modules, "holidays", SimpleNamespace(country_holidays=country_holidays))
    found = holidays_between("DE-BY", wall_clock("2024-05-01"), wall_clock("2025-01-01"))
    epoch = date(1970, 1, 1)
    assert [(epoch + timedelta(int(day))).timetuple()[:3] for day in found] == sorted(days)
    holidays_of_year.cache_clear()


def test_a_message_names_the_package_of_holidays(frame, monkeypatch):
    holidays_of_year.cache_clear()
    monkeypatch.setitem(sys.modules, "holidays", None)
    with pytest.raises(StreamError, match="pip install 'norewind\\[holidays\\]'"):
        Forecaster(targets="load", holidays="DE").fit(frame)


def test_holidays_need_times(frame):
    with pytest.raises(StreamError, match="holidays: the table has no column of evenly spaced times"):
        Forecaster(targets="load", holidays="DE").fit(frame[["load", "price"]])
