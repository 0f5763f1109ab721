"""Ctrl-C and switches of threads at every place inside the Python models: a row is learned from once, or not at all."""

import copy
import os
import pickle
import signal
import sys
import threading
from contextlib import suppress

import numpy as np
import pytest
from interruptions import Interrupted, default_interrupts, every_place, lock_is_free, places, switch_to  # noqa: F401
from run_folders import comparable

import norewind
from norewind.errors import NorewindError
from norewind.forecasting.uninterruptible_lock import UninterruptibleLock
from norewind.streams.position import fingerprint
from norewind.training.folder import RunFolder

VALUES = np.random.default_rng(0).normal(size=(130, 2)).cumsum(axis=0).round(3).tolist()
ROWS = [{"x": x, "y": y, "c": x > 0} for x, y in VALUES]
SMALL = {"inputs": "x", "method": "snap1", "cell": "rnn", "hidden": 2, "metrics_every": 20}
MODELS = {
    "forecaster": lambda: norewind.Forecaster("y", horizon=2, **SMALL),
    "auto": lambda: norewind.Forecaster("y", inputs="x", metrics_every=20),
    "classifier": lambda: norewind.Classifier("c", **SMALL),
    "detector": lambda: norewind.AnomalyDetector(targets=("x", "y"), **{**SMALL, "inputs": ("x", "y")}),
}
PROBE = ROWS[120]


@pytest.fixture(scope="module")
def learned():
    """Models that have learned from a few rows."""
    made = {}

    def model(name, rows=50):
        if (name, rows) not in made:
            made[name, rows] = MODELS[name]()
            for row in ROWS[:rows]:
                made[name, rows].learn_one(row)
        return copy.deepcopy(made[name, rows])

    return model


def answer(model):
    ask = next(
        getattr(model, name) for name in ("predict_proba_one", "predict_one", "score_one") if hasattr(model, name)
    )
    return ask(PROBE)


def state_of(model):
    """All that a model is, without the clock."""
    saved = model._saved()
    lines = [{**line, "seconds": None} for line in model.lines]
    entries = {} if saved is None else {**saved.entries, "seconds": None}
    return {
        "samples": model.samples,
        "answer": repr(answer(model)),
        "arrays": None if saved is None else comparable(saved.arrays),
        "entries": fingerprint({name: entry for name, entry in entries.items() if name != "seconds"}),
        "lines": lines,
        "labels": dict(model.labels),
        "rows": list(model._first_rows),
    }


def check_interrupted(model_of, act, every, next_row=ROWS[60]):
    """An interrupted `act` has either happened or not; the model also continues like one to which that applies."""
    before, after = model_of(), model_of()
    act(after)
    states = [state_of(before), state_of(after)]
    assert states[0] != states[1]
    for model in (before, after):
        model.learn_one(next_row)
    later = [state_of(before), state_of(after)]
    counted = model_of()
    outcomes = set()
    for number in places(lambda: act(counted), every):
        model = model_of()
        with Interrupted(number) as place:
            try:
                act(model)
                assert place.count < number or "uninterruptible_lock" in place.where, place.where
            except KeyboardInterrupt:
                pass
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, place.where
        assert lock_is_free(model._lock), place.where
        found = state_of(model)
        assert found in states, place.where
        which = states.index(found)
        outcomes.add(which)
        model.learn_one(next_row)
        assert state_of(model) == later[which], place.where
    assert 0 in outcomes


@every_place
@pytest.mark.parametrize("name", ["forecaster", *[pytest.param(n, marks=pytest.mark.slow) for n in list(MODELS)[1:]]])
def test_learn_one(learned, name, every, monkeypatch):
    monkeypatch.setattr("norewind.training.training_loop.SCORED_TOGETHER", 1)  # the row is scored at once
    check_interrupted(lambda: learned(name), lambda model: model.learn_one(ROWS[50]), every)


@every_place
def test_the_row_with_which_learning_begins(every):
    def almost():
        model = norewind.Forecaster("y", **{**SMALL, "inputs": ()})
        for row in ROWS[:99]:
            model.learn_one({"x": row["x"], "y": row["y"]})
        return model

    few = {"x": 1.0, "y": 2.0}
    before = almost()
    made = [copy.deepcopy(before) for _ in range(2)]
    made[1].learn_one(few)
    for number in places(lambda: copy.deepcopy(before).learn_one(few), every):
        model = copy.deepcopy(before)
        with Interrupted(number) as place, suppress(KeyboardInterrupt):
            model.learn_one(few)
        assert lock_is_free(model._lock), place.where
        assert model.samples in (99, 100), place.where
        if model.samples == 99:
            model.learn_one(few)
        assert state_of(model) == state_of(made[1]), place.where


@every_place
@pytest.mark.parametrize(
    "name", ["classifier", *[pytest.param(n, marks=pytest.mark.slow) for n in MODELS if n != "classifier"]]
)
def test_fit(learned, name, every):
    check_interrupted(lambda: learned(name), lambda model: model.fit(ROWS[50:58]), every)


@every_place
@pytest.mark.parametrize("name", ["forecaster", pytest.param("auto", marks=pytest.mark.slow)])
def test_predicting_changes_nothing(learned, name, every):
    expected = state_of(learned(name))
    counted = learned(name)
    for number in places(lambda: answer(counted), every):
        model = learned(name)
        with Interrupted(number) as place, suppress(KeyboardInterrupt):
            answer(model)
        assert lock_is_free(model._lock), place.where
        assert state_of(model) == expected, place.where


@every_place
@pytest.mark.parametrize("again", [False, True], ids=["new", "again"])
def test_save(learned, tmp_path, every, again):
    """The folder holds the model as it was saved before, as it is, or no model; and it can be saved there again."""
    expected = state_of(learned("classifier", 60))
    for rows in (50, 60):
        learned("classifier", rows).save(tmp_path / f"after {rows}")
    older, newer = (state_of(norewind.load(tmp_path / f"after {rows}")) for rows in (50, 60))
    counted = learned("classifier", 60)
    for number in places(lambda: counted.save(tmp_path / "counted"), every):
        folder, model = tmp_path / str(number), learned("classifier")
        if again:
            model.save(folder)
        for row in ROWS[50:60]:
            model.learn_one(row)
        with Interrupted(number) as place, suppress(KeyboardInterrupt):
            model.save(folder)
        assert lock_is_free(model._lock), place.where
        assert state_of(model) == expected, place.where
        try:
            assert state_of(norewind.load(folder)) in ([older, newer] if again else [newer]), place.where
        except NorewindError:
            assert not again, place.where
        with RunFolder(folder):  # which nobody holds
            pass


@every_place
@pytest.mark.parametrize("name", ["forecaster", *[pytest.param(n, marks=pytest.mark.slow) for n in list(MODELS)[1:]]])
def test_another_thread_at_every_place(learned, name, every):
    """Another thread learns from a row at every place of `learn_one`: both rows are learned from, in one order."""
    check_threads(lambda: learned(name), lambda model: model.learn_one(ROWS[50]), every)


@every_place
def test_another_thread_at_every_place_of_fit(learned, every):
    check_threads(lambda: learned("classifier"), lambda model: model.fit(ROWS[50:53]), every)


def check_threads(model_of, act, every, other=ROWS[60]):
    """Another thread learns from a row at every place of `act`: both happen, in one order."""
    expected = []
    for acts in ((act, lambda model: model.learn_one(other)), (lambda model: model.learn_one(other), act)):
        model = model_of()
        for one in acts:
            one(model)
        expected.append(state_of(model))
    assert expected[0] != expected[1]
    counted = model_of()
    for number in places(lambda: act(counted), every):
        model = model_of()
        switch, thread = switch_to(lambda model=model: model.learn_one(other))
        with Interrupted(number, switch) as place:
            act(model)
        if not place.where:  # caches and the clock: a run can have fewer places than the one that was counted
            switch()
        thread.join()
        assert state_of(model) in expected, place.where


def test_threads_wait_for_each_other(learned):
    """Four threads learn from rows and read the model at the same time."""
    model, switch, errors = learned("forecaster"), sys.getswitchinterval(), []

    def use(rows):
        try:
            for row in rows:
                model.learn_one(row)
                model.predict_one(row)
                model.forecast(2)
                assert model.lines is not None
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(ROWS[start::4],)) for start in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert not errors
    assert model.samples == model.training.snapshot().entries["position"]["stream"]["lines"] == 50 + len(ROWS)


def test_the_lock_holds_back_ctrl_c_until_the_end_of_the_outer_block():
    lock, reached = UninterruptibleLock(), []
    with pytest.raises(KeyboardInterrupt), lock:
        with lock:
            signal.raise_signal(signal.SIGINT)
        reached.append("the rest of the outer block")
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with lock:
        pass  # and only once
    assert not copy.deepcopy(lock)._blocks
    assert not pickle.loads(pickle.dumps(lock))._blocks


def test_the_lock_leaves_ignored_interrupts_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with UninterruptibleLock():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_ctrl_c_is_handled_at_once_while_another_thread_holds_the_lock():
    lock, begun, ends, ended = UninterruptibleLock(), threading.Event(), threading.Event(), []

    def hold():
        with lock:
            begun.set()
            ends.wait(3)
            ended.append(True)

    other = threading.Thread(target=hold)
    other.start()
    begun.wait()
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt), lock:
            pass
        assert not ended
    finally:
        timer.cancel()
        ends.set()
        other.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with lock:
        pass
    assert lock_is_free(lock)
