"""Fleets in the service: a row is answered by the run of its key while other keys learn."""

import asyncio
import json
import shutil
from contextlib import contextmanager

import jax
import numpy as np
import pytest
from run_folders import keys_in, norewind

pytest.importorskip("uvicorn")
from servers import lines, served, table

from norewind.serving.bodies import RequestError
from norewind.serving.forecast_requests import ForecastRequest
from norewind.serving.row_model import KeyedModel
from norewind.serving.service import Service
from norewind.training.log import read_log

KEYS = ("north", 7, "south")
MODEL = ("--key", "sensor", "--quiet", "--predictions", "file")
# A network that learns nothing, so that its forecasts do not change.
STILL = ("--method", "snap1", "--hidden", "4", "--rate", "1e-30")


def keyed(count: int, start: int = 0) -> list[dict]:
    return [{"sensor": KEYS[n % 3], **row} for n, row in enumerate(table(count, start), start)]


def trained(folder, *options, rows=60):
    source = folder / "rows.jsonl"
    source.write_text(lines(keyed(rows)))
    assert norewind("train", source, "--out", folder / "run", *MODEL, *options) == 0
    return folder / "run"


@contextmanager
def service_of(run):
    service = Service(run)
    try:
        yield service
    finally:
        service.close()


def taught(service: Service, rows: list[dict]) -> list[dict]:
    """Return the answers to the rows during training. Afterwards, the folder is unlocked."""
    asyncio.run(learned(service, rows))
    return read_log(service.folder / "predictions.jsonl")[-len(rows) :]


async def learned(service: Service, rows: list[dict]) -> None:
    service.learn(rows, [None] * len(rows))
    await service.stop()


def test_the_next_rows_of_a_key_are_forecast(tmp_path, capsys):
    run = trained(tmp_path, *STILL, "--horizon", "2", "--interval", "0.8")
    capsys.readouterr()
    assert norewind("forecast", run) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    with service_of(run) as service:
        for key in KEYS:
            found = asyncio.run(service.forecast(ForecastRequest(key=str(key))))
            assert found == [entry for entry in printed if entry["key"] == key]
            assert found[1]["interval"]["power"]["0.8"][0] is not None
        for rows, key, words in ((3, "7", "no further"), (1, "new", "no key"), (1, None, "every key")):
            with pytest.raises(RequestError, match=words):
                asyncio.run(service.forecast(ForecastRequest(rows, key)))


@pytest.mark.parametrize(
    "options",
    [
        ("--horizon", "2", "--resident", "1"),
        pytest.param(("--horizon", "0", "--targets", "power"), marks=pytest.mark.slow),
    ],
)
def test_a_row_is_answered_as_it_is_once_it_has_arrived(tmp_path, options):
    run, rows = trained(tmp_path, *STILL, *options), [*keyed(3, 60), {"sensor": "new", "wind": 1.0, "power": 2.0}]
    with service_of(run) as service:
        assert isinstance(service.model, KeyedModel)
        slots = service.model.learner.slots
        before = [part.copy() for part in slots.arrays.values()]
        found = service.model.answers(rows)
        assert found == service.model.answers(rows[:1]) + service.model.answers(rows[1:])  # each as if it came next
        assert all(map(np.array_equal, before, slots.arrays.values()))
        for number, (answer, came) in enumerate(zip(found, taught(service, rows), strict=True)):
            assert (answer.pop("sample"), came.pop("sample"), came.pop("line")) == (61, 61 + number, 61 + number)
            assert answer["key"] == rows[number]["sensor"]
            (answered, names), (expected, others) = map(jax.tree.flatten, (answer, came))
            assert names == others
            for one, other in zip(answered, expected, strict=True):
                assert one == (other if isinstance(other, str) else pytest.approx(other, rel=1e-5, abs=1e-6))


def test_keys_are_seen_as_they_were_published_while_they_change(tmp_path):
    with service_of(trained(tmp_path)) as service:
        model, row = service.model, keyed(1, 60)[0]
        slots, before = model.learner.slots, model.answers([row])
        key = model.stream.peek([row]).keys[0]
        for _ in range(2):
            slot = slots.load([key])[0]
            for array in slots.arrays.values():
                array[slot] += 1  # in the middle of learning
            assert model.answers([row]) == before
        model.publish()
        assert model.answers([row])[0]["prediction"] != before[0]["prediction"]


def test_a_fleet_that_diverges_answers_from_its_last_checkpoint(tmp_path, diverge):
    with service_of(trained(tmp_path)) as service:
        rows = keyed(3, 60)
        before = service.model.answers(rows)

        diverge(90)
        many = keyed(120, 60)
        assert service.learn(many, [None] * 120) == 180
        service._thread.join(60)
        assert "diverged" in service.problem
        assert service.model.answers(rows) == before


def test_fleets_that_cannot_be_served_are_rejected_with_an_explanation(tmp_path):
    source = tmp_path / "rows.csv"
    source.write_text("sensor,power\n" + "".join(f"{n % 4},{n % 5}\n" for n in range(80)))
    assert norewind("train", source, "--out", tmp_path / "run", *MODEL, "--shards", "2", "--shard", "1") == 0
    with service_of(tmp_path / "run") as service:
        rejected = 0
        for sensor in range(4):
            try:
                row, _ = service.read({"sensor": sensor, "power": 1})
                # In CSV, all keys are text.
                assert service.model.answers([row])[0]["key"] == str(sensor)
            except RequestError as error:
                assert "another shard" in str(error)
                rejected += 1
        assert 0 < rejected < 4
        with pytest.raises(RequestError, match="no key"):
            service.read({"power": 1})


def test_learning_in_the_service_is_training(tmp_path):
    run = trained(tmp_path)
    whole = shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-whole") / "run"
    with served(run) as server:
        answers = server.stream(keyed(6, 60))
        status, found = server.ask("learn", {"rows": keyed(3, 66)})
        assert (status, found["last"]) == (202, 69)
        assert server.ask("predict", {"row": {"sensor": "new", "power": 1.5}})[1]["key"] == "new"
        assert server.end() == 143
    (whole.parent / "rows.jsonl").write_text(lines(keyed(69)))
    assert norewind("resume", whole, "--quiet", "--source", whole.parent / "rows.jsonl") == 0
    assert keys_in(run) == keys_in(whole)
    assert read_log(run / "predictions.jsonl") == read_log(whole / "predictions.jsonl")
    assert answers == read_log(run / "predictions.jsonl")[60:66]
