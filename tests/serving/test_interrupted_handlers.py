"""A second Ctrl-C at every place where the service accepts rows: a row is accepted and counted, or it still waits."""

import signal
import time
from contextlib import suppress

import pytest

pytest.importorskip("uvicorn")
from interruptions import Interrupted
from run_folders import newest

from norewind.serving import late_labels
from norewind.serving.service import Service
from norewind.storage.checkpoint import samples_of

FEW = 30
every_place = pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["few places", "every place"]
)


@pytest.fixture(autouse=True)
def default_interrupts():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def places(call, every):
    with Interrupted() as counted:
        call()
    assert counted.count > 10
    return range(1, counted.count + 1, 1 if every else max(1, counted.count // FEW))


def check_sizes(labels):
    assert labels._bytes == sum(late_labels._size(id, row) for id, row in labels._waiting.items())


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
            deadline = time.monotonic() + 20
            while served.learned < served.accepted and time.monotonic() < deadline:
                time.sleep(0.001)
            assert served.learned == served.accepted, place.where
            check_sizes(served.labels)
    finally:
        served.close()
    assert served.durable == served.accepted == samples_of(newest(run))


@every_place
def test_a_row_that_waits_is_replaced_or_not(tmp_path, every):
    labels = late_labels.LateLabels(tmp_path, ["wind"], most=5, durable=0)
    for number in places(lambda: labels.add("a", {"wind": 0.0}), every):
        before = labels._waiting["a"]
        with Interrupted(number) as place, suppress(KeyboardInterrupt):
            labels.add("a", {"wind": float(number)})
        assert labels._waiting.get("a") in (before, b'{"wind": %.1f}' % number), place.where
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
