"""A second Ctrl-C, or another thread, at every place where the service accepts rows: none is lost or counted twice."""

import asyncio
import time
from contextlib import suppress

import pytest

pytest.importorskip("uvicorn")
from interruptions import Interrupted, default_interrupts, every_place, places, switch_to  # noqa: F401
from run_folders import latest

from norewind.serving import late_labels
from norewind.serving.service import Service
from norewind.storage.checkpoint import samples_of


def check_sizes(labels):
    for rows in (labels._waiting, labels._accepted):
        assert rows._bytes == sum(late_labels._size(id, row) for id, (_, row) in rows.items())


def learn_all(served):
    deadline = time.monotonic() + 20
    while served.learned < served.accepted and time.monotonic() < deadline:
        time.sleep(0.001)
    assert served.learned == served.accepted


@every_place
def test_a_row_is_accepted_or_waits(run, every):
    served = Service(run)
    try:
        served.labels.add("first", {"wind": 0.5})
        for number in places(lambda: served.learn([{"power": 1.0}], ["first"]), every):
            id, before = str(number), served.accepted
            served.labels.add(id, {"wind": 0.5})
            with Interrupted(number) as place, suppress(KeyboardInterrupt):
                served.learn([{"power": 1.0}], [id])
            is_accepted, waits = served.accepted == before + 1, id in served.labels._waiting
            assert is_accepted != waits, place.where
            assert is_accepted == (id in served.labels._accepted), place.where
            assert served.accepted - before in (0, 1), place.where
            learn_all(served)
            check_sizes(served.labels)
    finally:
        served.close()
    assert served.durable == served.accepted == samples_of(latest(run))


@every_place
def test_a_row_that_waits_is_replaced_or_not(tmp_path, every):
    labels = late_labels.LateLabels(tmp_path, ["wind"], most=5, durable=0)
    for number in places(lambda: labels.add("a", {"wind": 0.0}), every):
        before = labels._waiting["a"]
        with Interrupted(number) as place, suppress(KeyboardInterrupt):
            labels.add("a", {"wind": float(number)})
        assert labels._waiting.get("a") in (before, (None, b'{"wind": %.1f}' % number)), place.where
        check_sizes(labels)


@every_place
def test_a_file_of_rows_that_wait_is_complete(tmp_path, every):
    """And a save that was interrupted is made up for."""
    labels = late_labels.LateLabels(tmp_path, ["wind"], most=1000, durable=0)
    labels.add("0", {"wind": 0.0})
    for number in places(labels.save, every):
        labels.add(str(number), {"wind": 1.0})
        with Interrupted(number) as place, suppress(KeyboardInterrupt):
            labels.save()
        kept = late_labels.read_waiting(labels.path)
        assert kept.keys() in (labels._waiting.keys(), labels._waiting.keys() - {str(number)}), place.where
        labels.save()
        assert late_labels.read_waiting(labels.path).keys() == labels._waiting.keys(), place.where


@every_place
def test_a_predicted_row_waits_for_its_label_or_not(run, every):
    served, loop = Service(run), asyncio.new_event_loop()

    def predict(id):
        loop.run_until_complete(served.predict([{"wind": 0.5}], [id]))

    try:
        for number in places(lambda: predict("first"), every):
            id = str(number)
            with Interrupted(number) as place, suppress(KeyboardInterrupt):
                predict(id)
            assert set(served.labels._waiting) <= {"first", *map(str, range(number + 1))}, place.where
            check_sizes(served.labels)
            served._queue._unanswered.clear()  # a process that is interrupted here ends, and answers nothing more
        waiting = set(served.labels._waiting)
        assert len(waiting) > 1
        served.labels.add("last", {"wind": 0.5})
    finally:
        served.close()
        loop.close()
    assert set(late_labels.read_waiting(served.labels.path)) == {*waiting, "last"}
    assert served.accepted == 300


@every_place
def test_a_line_of_a_stream_is_accepted_or_not(run, every):
    served, loop = Service(run), asyncio.new_event_loop()
    row = {"wind": 0.5, "power": 1.0}
    try:
        for number in places(lambda: loop.run_until_complete(served.follow(row)), every):
            before = served.accepted
            with Interrupted(number) as place, suppress(KeyboardInterrupt):
                loop.run_until_complete(served.follow(row))
            assert served.accepted - before in (0, 1), place.where
            learn_all(served)
    finally:
        served.close()
        loop.close()
    assert served.durable == served.accepted == samples_of(latest(run))


@every_place
def test_another_thread_saves_while_a_row_is_accepted(run, every):
    """At every place of `learn`, a checkpoint is written: the file holds the row once, waiting or with its number."""
    served = Service(run)
    try:
        served.labels.add("first", {"wind": 0.5})
        for number in places(lambda: served.learn([{"power": 1.0}], ["first"]), every):
            id, before = str(number), served.accepted
            served.labels.add(id, {"wind": 0.5})

            def write(before=before):
                served.labels.forget(before)
                served.labels.save()

            switch, thread = switch_to(write)
            with Interrupted(number, switch) as place:
                served.learn([{"power": 1.0}], [id])
            thread.join()
            kept = late_labels.read_waiting(served.labels.path)
            assert kept[id] in ((None, {"wind": 0.5}), (before + 1, {"wind": 0.5})), place.where
            assert served.accepted == before + 1, place.where
            assert served.labels._accepted[id][0] == before + 1, place.where
            served.labels.save()
            assert late_labels.read_waiting(served.labels.path)[id][0] == before + 1, place.where
            check_sizes(served.labels)
    finally:
        served.close()
    assert served.durable == served.accepted == samples_of(latest(run))


@every_place
def test_a_row_is_accepted_while_another_thread_saves(run, every):
    """At every place of `save`, a row is accepted: it is in this file or in the next one."""
    labels = late_labels.LateLabels(run, ["wind"], most=1000, durable=0)
    labels.add("0", {"wind": 0.0})
    for number in places(labels.save, every):
        labels.add(str(number), {"wind": 1.0})

        switch, thread = switch_to(lambda number=number: labels.accept(str(number), number))
        with Interrupted(number, switch) as place:
            labels.save()
        thread.join()
        labels.save()
        kept = late_labels.read_waiting(labels.path)
        assert kept[str(number)] == (number, {"wind": 1.0}), place.where
        check_sizes(labels)
