"""Columns known in advance and holidays, from the command line and in Python: forecasts follow the plan."""

import asyncio
import json
import sys
from datetime import date, timedelta
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
from run_folders import assert_rejected, norewind

from norewind import Forecaster
from norewind.serving.bodies import RequestError
from norewind.streams import StreamError
from norewind.streams.table.calendar_entries import holidays_between, holidays_of_year, wall_clock
from norewind.streams.table.python_rows import plain
from norewind.training.log import read_log

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


def rows_with_plans(frame):
    """The rows as they come one by one, each with the prices of the next three."""
    prices = frame["price"].tolist()
    return [
        {**row, "@known_future": [{"price": price} for price in prices[place + 1 : place + 4]]}
        for place, row in enumerate(frame[:ROWS].to_dict("records"))
    ]


def write(path, rows):
    path.write_text("".join(json.dumps({name: plain(row[name]) for name in row}) + "\n" for row in rows))


COMMAND = ("--targets", "load", "--horizon", 3, "--known-future", "price", "--budget", 6, "--quiet")


def lines_of(frame, kind, folder, cluster=None):
    """The lines of predictions of a run that reads the prices ahead, or finds them in each row."""
    source, options = folder / f"rows.{'csv' if kind == 'csv' else 'jsonl'}", ()
    if kind == "csv":
        frame.to_csv(source, index=False)
    elif kind == "jsonl":
        write(source, [{**row, "load": plain(row["load"])} for row in frame.to_dict("records")])
    elif kind == "sent":
        write(source, rows_with_plans(frame))
    else:
        messages = [(0, 1_700_000_000_000 + place, b"", row) for place, row in enumerate(rows_with_plans(frame))]
        cluster.send(folder.name, messages)
        source, options = f"kafka://{folder.name}/0", ("--brokers", cluster.brokers, "--final")
    assert norewind("train", source, *COMMAND, *options, "--predictions", "file", "--out", folder / "run") == 0
    return read_log(folder / "run" / "predictions.jsonl")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "sent", "kafka"])
def test_forecasts_use_the_price_of_their_row_and_nothing_of_later_targets(kind, frame, tmp_path, capsys, request):
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    cluster = request.getfixturevalue("cluster") if kind == "kafka" else None
    lines = lines_of(frame, kind, tmp_path / "first", cluster)
    assert len(lines) == ROWS
    errors = [abs(line["prediction"]["load"] - line["target"]["load"]) for line in lines[100:]]
    assert np.mean(errors) < 1  # the mean absolute deviation of the load is 7
    capsys.readouterr()
    assert norewind("forecast", tmp_path / "first" / "run") == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [entry["forecast"]["load"] for entry in entries] == pytest.approx(expected(frame), abs=1.5)
    frame.loc[120:, "load"] = 1_000.0 - frame.loc[120:, "load"]
    changed = lines_of(frame, kind, tmp_path / "second", cluster)
    assert changed[:120] == lines[:120]
    assert changed[120]["forecast"] != lines[120]["forecast"]


def test_a_topic_has_to_send_what_is_known_in_advance(cluster, tmp_path, capsys):
    pytest.importorskip("confluent_kafka")
    cluster.send("bare", [(0, 1_700_000_000_000, b"", {"load": 1, "price": 2})])
    options = ("--brokers", cluster.brokers, "--final", "--out", tmp_path / "run")
    words = "not read ahead", '"@known_future": [{"price": 1.5}]'
    assert_rejected(capsys, norewind("train", "kafka://bare/0", *COMMAND, *options), *words)


@pytest.mark.parametrize("plan", [3, [3], [{"price": "high"}]])
def test_a_bad_plan_is_a_bad_row(plan, frame):
    model = Forecaster(**OPTIONS).fit(frame)
    with pytest.raises(StreamError, match="@known_future"):
        model.learn_one({"load": 1.0, "price": 2.0, "@known_future": plan})


def test_single_rows_are_sent_with_their_plan(frame):
    rows, model = rows_with_plans(frame), Forecaster(**OPTIONS)
    model.fit(rows[:150])
    for row in rows[150:-1]:
        model.learn_one(row)
    asked = model.predict_one(rows[-1])
    model.learn_one(rows[-1])
    assert model.forecast(3) == pytest.approx(expected(frame), abs=1.5)
    assert list(asked.values()) == pytest.approx(expected(frame), abs=1.5)


@pytest.mark.parametrize("options", [{}, {"interval": (0.8, 0.95)}, {"loss": "absolute"}, {"loss": "gaussian"}])
def test_a_forecast_takes_what_is_known_in_advance_without_learning_it(options, frame):
    known, plan = frame[:ROWS], frame[ROWS:].drop(columns="load")
    model = Forecaster(**OPTIONS, **options).fit(known)
    before = model.forecast(3)
    planned = Forecaster(**OPTIONS, **options).fit(frame).forecast(3)
    made = model.forecast(3, known_future=plan)
    pandas.testing.assert_frame_equal(made, planned, rtol=1e-4)
    assert made["load"].tolist() == pytest.approx(expected(frame), abs=1.5)
    pandas.testing.assert_frame_equal(model.forecast(3), before)
    other = plan.assign(price=plan["price"] + 2)
    later = model.forecast(3, known_future=other.to_dict("records"))
    assert later["load"].tolist() == pytest.approx([value + 6 for value in expected(frame)], abs=2)


def test_what_is_known_in_advance_must_be_of_the_next_rows(frame):
    model = Forecaster(**OPTIONS).fit(frame[:ROWS])
    with pytest.raises(StreamError, match="known_future: the next row is that of 2024-01-08 02:00:00, but the first"):
        model.forecast(3, known_future=frame[:3])
    with pytest.raises(StreamError, match="known_future: the first row has no value of 'price'"):
        model.forecast(3, known_future=frame[["time", "load"]][ROWS:])
    with pytest.raises(StreamError, match="no columns are known in advance"):
        Forecaster("load").fit(frame[:ROWS]).forecast(1, known_future=frame[ROWS:])


def test_a_service_is_sent_what_is_known_in_advance(frame, tmp_path):
    pytest.importorskip("uvicorn")
    from norewind.serving.forecast_requests import ForecastRequest
    from norewind.serving.service import Service

    rows = rows_with_plans(frame)
    frame[:150].to_csv(tmp_path / "rows.csv", index=False)
    assert norewind("train", tmp_path / "rows.csv", *COMMAND, "--final", "--out", tmp_path / "run") == 0
    service = Service(tmp_path / "run")

    async def ask():
        service.loop = asyncio.get_running_loop()
        service.learn(rows[150:169], [None] * 19)
        await service.wait_until_learned(169)
        asked = await service.predict(rows[169:170], [None])
        service.learn(rows[169:170], [None])
        await service.wait_until_learned(ROWS)
        told = await service.forecast(ForecastRequest())
        prices = [{"price": row["price"] + 2} for row in rows[169]["@known_future"]]
        why = await service.explain(2)
        parts = [part["adds"] for part in why["forecast"]["load"]["parts"]]
        assert sum(parts) == pytest.approx(told[1]["forecast"]["load"], rel=1e-5)
        assert why["unusual"][0]["column"] == "load"
        assert {"value", "expected"} <= why["unusual"][0].keys()
        return asked[0]["forecast"], told, await service.forecast(ForecastRequest(3, known_future=prices))

    try:
        asked, told, other = asyncio.run(ask())
        with pytest.raises(RequestError, match="@known_future"):
            service.read({"load": 1, "@known_future": 3})
    finally:
        service.close()
    assert [each["load"] for each in asked.values()] == pytest.approx(expected(frame), abs=1.5)
    assert [each["forecast"]["load"] for each in told] == pytest.approx(expected(frame), abs=1.5)
    higher = [value + 6 for value in expected(frame)]
    assert [each["forecast"]["load"] for each in other] == pytest.approx(higher, abs=2)


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
    with pytest.raises(StreamError, match="pip install '.\\[holidays\\]'"):
        Forecaster(targets="load", holidays="DE").fit(frame)


def test_holidays_need_times(frame):
    with pytest.raises(StreamError, match="holidays: the table has no column of evenly spaced times"):
        Forecaster(targets="load", holidays="DE").fit(frame[["load", "price"]])
