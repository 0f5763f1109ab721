"""Models compute in the precision of their settings, and leave that of the process as it was."""

import pickle

import jax
import numpy as np
import pytest

from norewind import AnomalyDetector, Classifier, Forecaster, load

ROWS = [{"a": float(a), "b": float(b)} for a, b in np.random.default_rng(0).normal(size=(150, 2))]


def used(model, folder):
    """Return everything that a model can predict, as plain numbers."""
    model.fit(ROWS[:100])
    for row in ROWS[100:120]:
        model.learn_one(row)
    model.save(folder)
    answers = [repr(model), model.lines[-1]["loss"]]
    for one in (model, pickle.loads(pickle.dumps(model)), load(folder)):
        ask = one.score_one if isinstance(one, AnomalyDetector) else one.predict_one
        one.learn_one(ROWS[120])
        answers += [ask(ROWS[121]), *(one.forecast(30) if isinstance(one, Forecaster) else ())]
    return answers


@pytest.mark.parametrize(
    "make",
    [
        Forecaster,
        lambda: Forecaster(method="uoro", hidden=3),
        lambda: Forecaster(method="uoro", hidden=3, precision="double"),
        AnomalyDetector,
        lambda: Classifier("b"),
    ],
)
def test_the_precision_of_the_process_stays_unchanged(make, tmp_path):
    found = []
    for x64 in (False, True):
        with jax.enable_x64(x64):
            found.append(used(make(), tmp_path / str(x64)))
            assert jax.config.jax_enable_x64 == x64
            assert jax.numpy.zeros(1).dtype == (np.float64 if x64 else np.float32)
    assert found[0] == found[1]
