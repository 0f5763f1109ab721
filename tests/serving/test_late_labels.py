"""Rows that wait for their labels: limits, files, kills and graceful shutdowns."""

import asyncio
import json
import shutil
import threading
import time
from dataclasses import replace

import pytest

pytest.importorskip("uvicorn")
from run_folders import norewind
from servers import MODEL, in_a_thread, lines, table
from servers import Server as Client

from norewind.serving import late_labels, service
from norewind.serving.app import application
from norewind.serving.bodies import RequestError
from norewind.serving.late_labels import LateLabels
from norewind.serving.service import Service


def labels_of(folder, most=10, durable=0, columns=("wind", "power")) -> LateLabels:
    return LateLabels(folder, columns, most=most, durable=durable)


def waits(labels: LateLabels, id: str) -> bool:
    try:
        labels.complete(id, {})
    except RequestError:
        return False
    return True


def test_beyond_a_number_the_oldest_row_is_dropped(tmp_path):
    labels = labels_of(tmp_path, most=2)
    for id in "abc":
        labels.add(id, {"wind": 1})
    assert [waits(labels, id) for id in "abc"] == [False, True, True]
    labels.add("b", {"wind": 2})  # added again, it is the latest
    labels.add("d", {"wind": 1})
    assert [waits(labels, id) for id in "bcd"] == [True, False, True]
    labels.save()
    assert len(labels_of(tmp_path, most=1)) == 1


def test_beyond_a_size_the_oldest_row_is_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(late_labels, "MAX_WAITING_BYTES", 3000)
    labels = labels_of(tmp_path)
    for id in "abc":
        labels.add(id, {"wind": "x" * 1000})
    assert [waits(labels, id) for id in "abc"] == [False, True, True]
    labels.accept("b", 1)  # makes room for another
    labels.add("d", {"wind": "x" * 1000})
    assert [waits(labels, id) for id in "cd"] == [True, True]
    labels.add("e", {"wind": "x" * 9000})
    assert len(labels) == 0
    labels.add("f" * 3000, {})  # ids take space, too
    assert len(labels) == 0


def test_accepted_rows_are_limited_too(tmp_path):
    labels = labels_of(tmp_path, most=2)
    for number, id in enumerate("abc", 1):
        labels.add(id, {})
        labels.accept(id, number)
    labels.save()
    assert list(json.loads(labels.path.read_text())) == ["b", "c"]


def test_accepted_rows_are_limited_in_bytes_too(tmp_path, monkeypatch):
    monkeypatch.setattr(late_labels, "MAX_WAITING_BYTES", 3000)
    labels = labels_of(tmp_path)
    for number, id in enumerate("abc", 1):
        labels.add(id, {"wind": "x" * 1000})
        labels.accept(id, number)
    labels.save()
    assert list(json.loads(labels.path.read_text())) == ["b", "c"]
    labels.forget(2)  # makes room for another
    labels.add("d", {"wind": "x" * 1000})
    labels.accept("d", 4)
    labels.save()
    assert list(json.loads(labels.path.read_text())) == ["c", "d"]


def test_only_columns_in_use_are_kept(tmp_path):
    labels = labels_of(tmp_path, columns=("wind", "sensor.temp", "sensor.power"))
    labels.add("a", {"wind": 1, "note": "x" * 10_000, "sensor": {"temp": 2, "power": None, "more": [0] * 1000}})
    assert labels.complete("a", {"sensor": {"power": 3}}) == {"wind": 1, "sensor.temp": 2, "sensor.power": 3}
    labels.save()
    assert labels.path.stat().st_size < 100


def test_an_older_state_never_replaces_a_newer_one(tmp_path, monkeypatch):
    labels = labels_of(tmp_path)
    writing, write = threading.Event(), late_labels.write_atomically

    def write_slowly(path, content):
        if not writing.is_set():
            writing.set()
            time.sleep(0.3)
        write(path, content)

    monkeypatch.setattr(late_labels, "write_atomically", write_slowly)
    labels.add("a", {"wind": 1})
    first = threading.Thread(target=labels.save)
    first.start()
    writing.wait()
    labels.add("b", {"wind": 2})
    labels.save()
    assert list(json.loads(labels.path.read_text())) == ["a", "b"]
    first.join()
    assert list(json.loads(labels.path.read_text())) == ["a", "b"]


def test_rows_that_could_not_be_saved_are_saved_later(tmp_path, monkeypatch):
    labels = labels_of(tmp_path)
    labels.add("a", {"wind": 1})
    with monkeypatch.context() as patched:
        patched.setattr(late_labels, "write_atomically", fail_to_write)
        with pytest.raises(OSError, match="No space"):
            labels.save()
    labels.save()
    assert len(labels_of(tmp_path)) == 1


def fail_to_write(*_):
    raise OSError(28, "No space left on device", "waiting.json")


async def predict(served: Service, *ids: str) -> None:
    await served.predict([{"wind": 0.5} for _ in ids], ids)


def test_rows_are_saved_with_time_although_nothing_is_learned(run, monkeypatch):
    monkeypatch.setattr(service, "SAVE_SECONDS", 0.05)
    served = Service(run)
    try:
        with in_a_thread(application(served.page, service=served)) as port:
            client = Client(None, f"http://127.0.0.1:{port}/")
            for number in range(20):
                assert client.ask("predict", {"row": {"wind": 0.5, "note": "x"}, "id": str(number)})[0] == 200
            end = time.monotonic() + 20
            while len(labels_of(run, 100, 300)) < 20:  # the labels that would survive a kill now
                assert time.monotonic() < end
                time.sleep(0.05)
    finally:
        served.close()


def test_a_429_leaves_the_row_waiting(run):
    served = Service(run, max_queue=1)
    try:
        asyncio.run(predict(served, "a"))
        served.incoming.most = 0
        with pytest.raises(RequestError, match="too busy"):
            served.learn([{"power": 1.0}], ["a"])
        assert served.accepted == 300
        served.incoming.most = 1
        assert served.learn([{"power": 1.0}], ["a"]) == 301
        with pytest.raises(RequestError, match="as row 301"):
            served.learn([{"power": 1.0}], ["a"])
    finally:
        served.close()


def test_a_graceful_shutdown_saves_waiting_rows(run):
    """This includes the case that nothing was learned, so that no checkpoint is written."""
    served = Service(run)

    async def use():
        await predict(served, "a")
        await served.stop()

    asyncio.run(use())
    assert waits(labels_of(run, 10, 300), "a")


def test_a_kill_right_after_a_checkpoint_does_not_let_a_label_be_learned_twice(run, tmp_path, monkeypatch):
    """The rows that wait are on disk before the checkpoint that contains them, and before it counts as durable."""
    left, durable, kept = [], [], []

    def look(self, path):
        left.append(shutil.copytree(run, tmp_path / f"left{len(left)}"))
        before, learned = self.durable, self.learned
        self.learned += 7  # rows that came after those in the checkpoint, one of them with a label
        self.labels.add("later", {})
        self.labels.accept("later", 305)
        note(self, path)
        durable.append((before, self.durable))
        kept.extend(self.labels._accepted)
        self.learned = learned

    note = Service._note_checkpoint
    monkeypatch.setattr(Service, "_note_checkpoint", look)
    served = Service(run)

    async def use():
        await predict(served, "a", "b")
        served.learn([{"power": 1.0}], ["a"])
        await served.stop()

    asyncio.run(use())
    (folder,) = left
    assert durable == [(300, 301)]
    assert kept == ["later"]
    again = Service(folder)
    try:
        assert again.durable == 301
        with pytest.raises(RequestError, match="no row waits"):
            again.learn([{"power": 1.0}], ["a"])
        assert again.learn([{"power": 1.0}], ["b"]) == 302
    finally:
        again.close()


def test_a_label_that_was_accepted_but_not_saved_can_be_sent_again(tmp_path):
    labels = labels_of(tmp_path)
    labels.add("a", {"wind": 1})
    labels.accept("a", 301)
    labels.save()
    assert waits(labels_of(tmp_path, durable=300), "a")
    assert not waits(labels_of(tmp_path, durable=301), "a")
    for durable, kept in ((300, ["a"]), (301, [])):
        labels.forget(durable)
        labels.save()
        assert list(json.loads(labels.path.read_text())) == kept
    assert not waits(labels, "a")


@pytest.mark.parametrize(
    "place", ["norewind.storage.checkpoint._write", "norewind.serving.late_labels.write_atomically"]
)
def test_a_failed_save_in_the_background_ends_learning(run, monkeypatch, place):
    monkeypatch.setattr(service, "SAVE_SECONDS", 0.05)
    served = Service(run)
    served.training._saved_time -= 3600  # the next checkpoint is due
    served.training.intervals = replace(served.training.intervals, checkpoint_seconds=1)
    try:
        with monkeypatch.context() as patched, in_a_thread(application(served.page, service=served)) as port:
            client = Client(None, f"http://127.0.0.1:{port}/")
            patched.setattr(place, fail_to_write)
            if "labels" in place:
                client.ask("predict", {"row": {"wind": 0.5}, "id": "a"})
            else:
                assert client.ask("learn", {"row": table(1)[0]})[0] == 202
            end = time.monotonic() + 20
            while client.ask("health")[0] == 200:
                assert time.monotonic() < end
                time.sleep(0.05)
            status, answer = client.ask("learn", {"row": table(1)[0]})
            assert status == 503
            assert "No space left" in answer["error"]
    finally:
        served.close()
    assert isinstance(served.error, OSError)


def test_copied_columns_are_answered_and_wait_too(tmp_path):
    source = tmp_path / "rows.jsonl"
    source.write_text(lines([{"name": f"r{n}", **row} for n, row in enumerate(table(40))]))
    assert norewind("train", source, "--out", tmp_path / "run", *MODEL, "--copy", "name") == 0
    served = Service(tmp_path / "run")
    try:
        with in_a_thread(application(served.page, service=served)) as port:
            client = Client(None, f"http://127.0.0.1:{port}/")
            status, answer = client.ask("predict", {"row": {"name": "new", "wind": 1, "note": "x"}, "id": "a"})
            assert (status, answer["copied"]) == (200, {"name": "new"})
            assert client.ask("learn?wait=1", {"row": {"power": 1}, "id": "a"})[0] == 202
            assert client.ask("predict", {"row": {"wind": 1}})[1]["copied"] == {"name": None}
            assert served.page.rows[-1]["copied"] == {"name": "new"}
    finally:
        served.close()
