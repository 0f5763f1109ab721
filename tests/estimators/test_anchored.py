"""Anchored UORO is unbiased: the mean over every path of the noise is the exact gradient, to 1e-10."""

import sys

import jax
import jax.numpy as jnp
import pytest
import structured

from norewind import average, window
from norewind.estimators import anchored
from norewind.estimators.traces import cut_product, unit_by_unit
from norewind.testing import check_exact, check_unbiased


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["embedding", pytest.param("lstm", marks=pytest.mark.slow)])
def test_it_is_unbiased(name):
    check_unbiased(anchored, models=[structured.of_cell(name, 1)])


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_windows_and_averages_are_unbiased():
    def both(*model, noise):
        return average(anchored(*window(*model), noise=noise), 2)

    check_unbiased(both, window=2, models=[structured.of_cell("lstm", 1, 6)])


@pytest.mark.usefixtures("x64")
def test_it_is_exact_where_nothing_is_left_over():
    check_exact(anchored, models=[structured.turning(), structured.spinning()])


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_it_is_unbiased_for_other_traces(monkeypatch):
    """Any deterministic D' will do, also that of the 1997 LSTM."""
    monkeypatch.setattr(module(), "unit_by_unit", lambda who, model: unit_by_unit(who, model, cut_product))
    check_unbiased(anchored, models=[structured.of_cell("lstm", 1)])


def module():
    return sys.modules["norewind.estimators.anchored"]


# A step takes a row along the traces three times, for the gradient, before and after; these are factors for each.
WRONG_TRACES = {
    "traces dropped from the gradient": (0, 1, 1),
    "old traces not taken on": (1, 0, 1),
    "new traces not taken off": (1, 1, 0),
    "new traces taken off twice": (1, 1, 2),
}


@pytest.mark.usefixtures("x64")
def test_mutants_of_the_traces_are_caught(monkeypatch):
    table = jnp.array([(1, 1, 1), *WRONG_TRACES.values()], float)
    right, factors = module().along_traces, []

    def scaled(*arguments):
        factors.append(factors.pop(0))
        return jax.tree.map(lambda leaf: factors[-1] * leaf, right(*arguments))

    def mutant(number):
        factors[:] = table[number]
        return anchored

    monkeypatch.setattr(module(), "along_traces", scaled)
    true, *wrong = structured.mean_errors(mutant, len(table), structured.of_cell("lstm", 1, 3))
    assert true < 1e-10
    for name, error in zip(WRONG_TRACES, wrong, strict=True):
        assert error > 1e-6, f"not caught: {name}"


WRONG_CARRIES = {
    "same noise at every step": lambda old, new: new._replace(key=old.key),
    "theta~ not rescaled": lambda old, new: new._replace(theta_tilde=structured.scaled(1.1, new.theta_tilde)),
    "wrong sign of s~": lambda old, new: new._replace(s_tilde=structured.scaled(-1, new.s_tilde)),
    "no noise": lambda old, new: new._replace(s_tilde=structured.scaled(0, new.s_tilde)),
    "stale s~": lambda old, new: new._replace(s_tilde=old.s_tilde),
    "stale traces": lambda old, new: new._replace(traces=old.traces),
}


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_mutants_of_the_carry_are_caught():
    structured.check_mutants_of_the_carry(anchored, WRONG_CARRIES, structured.of_cell("elman"))
