"""Ctrl-C and other threads at every place inside the models for River: a row is learned from once, or not at all."""

import copy
from contextlib import suppress

import numpy as np
import pytest

pytest.importorskip("river")
from interruptions import (  # noqa: F401
    Interrupted,
    default_interrupts,
    every_place,
    lock_is_free,
    places,
    switch_to,
)

from norewind.forecasting import river

ROWS = [{"x": x, "z": z} for x, z in np.random.default_rng(0).normal(size=(50, 2)).round(3).tolist()]
SMALL = {"method": "snap1", "settings": {"cell": "rnn", "hidden": 2}}
# How each of them learns from a row, and what it answers.
KINDS = {
    river.RiverRegressor: (lambda model, x: model.learn_one(x, x["z"]), lambda model, x: model.predict_one(x)),
    river.RiverForecaster: (lambda model, x: model.learn_one(x["z"], x), lambda model, x: model.forecast(2)),
    river.RiverClassifier: (
        lambda model, x: model.learn_one(x, x["z"] > 0),
        lambda model, x: model.predict_proba_one(x),
    ),
    river.RiverAnomalyDetector: (lambda model, x: model.learn_one(x), lambda model, x: model.score_one(x)),
}
every_kind = pytest.mark.parametrize(
    "kind", [next(iter(KINDS)), *[pytest.param(kind, marks=pytest.mark.slow) for kind in list(KINDS)[1:]]]
)


@pytest.fixture(scope="module")
def learned():
    """Models that have learned from a few rows."""
    made = {}

    def model(kind):
        if kind not in made:
            made[kind] = kind(**SMALL)
            for row in ROWS[:30]:
                KINDS[kind][0](made[kind], row)
        return copy.deepcopy(made[kind])

    return model


def state_of(model, ask):
    """All that an answer depends on."""
    weights = model._hedge.errors, model._hedge.gap, model._latest
    return repr((model._model.samples, weights, ask(model, ROWS[40])))


@every_place
@every_kind
def test_learn_one(learned, kind, every):
    learn, ask = KINDS[kind]
    before, after = learned(kind), learned(kind)
    learn(after, ROWS[30])
    states = [state_of(model, ask) for model in (before, after)]
    assert states[0] != states[1]
    counted = learned(kind)
    for number in places(lambda: learn(counted, ROWS[30]), every):
        model = learned(kind)
        with Interrupted(number) as place, suppress(KeyboardInterrupt):
            learn(model, ROWS[30])
        assert lock_is_free(model._lock), place.where
        assert state_of(model, ask) in states, place.where


@every_place
@every_kind
def test_an_answer_is_that_before_or_after_a_row_of_another_thread(learned, kind, every):
    learn, ask = KINDS[kind]
    before, after = learned(kind), learned(kind)
    learn(after, ROWS[30])
    answers = [ask(model, ROWS[40]) for model in (before, after)]
    assert answers[0] != answers[1]
    counted = learned(kind)
    for number in places(lambda: ask(counted, ROWS[40]), every):
        model = learned(kind)
        switch, thread = switch_to(lambda model=model: learn(model, ROWS[30]))
        with Interrupted(number, switch) as place:
            found = ask(model, ROWS[40])
        thread.join()
        assert found in answers, place.where
        assert state_of(model, ask) == state_of(after, ask), place.where
