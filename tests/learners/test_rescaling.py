"""Linear models in other units of their targets forecast the same."""

import numpy as np
import pytest

from norewind.learners.linear import Linear, LinearPlan, init_linear, linear_plan, linear_row, model_at
from norewind.learners.rescaling import rescale_model

STEPS, OWN, ROWS = (1, 3), 2, 120


def forecasts_of(model, rows, other, factors, summands, change):
    """Return the forecasts of rows of two targets and one more input, in units that change at a row."""
    plan = linear_plan([model], OWN + 1, OWN, STEPS, own=OWN)
    run = init_linear(plan, [model], OWN + 1, OWN)
    one, made = model_at(LinearPlan(*plan), run, 0), np.zeros((len(rows), OWN * len(STEPS)))
    for t, row in enumerate(rows):
        if t == change:
            rescale_model(plan, 0, one, factors, summands, True)
        now = row * factors + summands if t >= change else row
        targets = np.tile(now, len(STEPS))
        linear_row(plan, 0, one, t, np.append(now, other[t]), targets, made[t])
    return made


@pytest.mark.parametrize("change", [2, 50])
@pytest.mark.parametrize("factors", [[1.0, 1.0], [0.2, 0.2], [3.0, 0.5]])
def test_a_model_in_other_units_forecasts_the_same(factors, change):
    rng = np.random.default_rng(0)
    rows, other = rng.normal(size=(ROWS, OWN)).cumsum(0) / 5, rng.normal(size=ROWS)
    model, factors, summands = Linear(3, 0.99, others=2), np.array(factors), np.array([0.7, -1.3])
    made = forecasts_of(model, rows, other, factors, summands, change)
    same = forecasts_of(model, rows, other, factors, summands, ROWS)
    np.testing.assert_allclose(made[:change], same[:change])
    expected = same[change:] * np.tile(factors, len(STEPS)) + np.tile(summands, len(STEPS))
    np.testing.assert_allclose(made[change:], expected, rtol=1e-9, atol=1e-9)


def test_a_model_that_has_learned_nothing_keeps_its_prior():
    plan = linear_plan([Linear(3)], OWN, OWN, STEPS)
    run = init_linear(plan, [Linear(3)], OWN, OWN)
    before = run.factors.copy()
    rescale_model(plan, 0, model_at(plan, run, 0), np.full(OWN, 0.1), np.ones(OWN), False)
    assert np.array_equal(run.factors, before)
    assert not run.weights.any()
