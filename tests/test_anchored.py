"""Anchored UORO is unbiased: the mean over every path of the noise is the exact gradient, to 1e-10."""

import sys

import jax
import pytest
import structured

from norewind import anchored, average, cells, window
from norewind.testing import check_estimator, check_exact, check_unbiased
from norewind.traces import cut_product, unit_by_unit

MODELS = {
    "elman": lambda length: structured.dense("elman", 2, length),
    "lstm": lambda length: structured.dense("lstm", 1, length),
    "embedding": lambda length: structured.from_cell("embedding", cells.lstm(3, 1, 3), length),
}


def test_conformance():
    check_estimator(anchored, claims="unbiased", models=[MODELS["elman"](4)])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["lstm", "embedding"])
def test_it_is_unbiased(name):
    check_unbiased(anchored, models=[MODELS[name](4)])


@pytest.mark.usefixtures("x64")
def test_windows_and_averages_are_unbiased():
    def both(*model, noise):
        return average(anchored(*window(*model), noise=noise), 2)

    check_unbiased(both, window=2, models=[MODELS["lstm"](6)])


@pytest.mark.usefixtures("x64")
def test_it_is_exact_where_nothing_is_left_over():
    check_exact(anchored, models=[structured.turning(4), structured.spinning(4)])


@pytest.mark.usefixtures("x64")
def test_it_is_unbiased_for_other_traces(monkeypatch):
    """Any deterministic D' will do, also that of the 1997 LSTM."""
    monkeypatch.setattr(module(), "unit_by_unit", lambda who, model: unit_by_unit(who, model, cut_product))
    check_unbiased(anchored, models=[MODELS["lstm"](4)])


def module():
    return sys.modules["norewind.estimators.anchored"]


def one_call_changed(monkeypatch, number, change):
    """A step takes a row along the traces three times: for the gradient, before and after."""
    right, calls = module().along_traces, []

    def changed(*arguments):
        calls.append(None)
        result = right(*arguments)
        return change(result) if (len(calls) - 1) % 3 == number else result

    monkeypatch.setattr(module(), "along_traces", changed)


def times(factor):
    return lambda tree: jax.tree.map(lambda leaf: factor * leaf, tree)


WRONG_TRACES = {
    "traces dropped from the gradient": (0, times(0)),
    "old traces not taken on": (1, times(0)),
    "new traces not taken off": (2, times(0)),
    "new traces taken off twice": (2, times(2)),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", WRONG_TRACES)
def test_mutants_of_the_traces_are_caught(monkeypatch, name):
    one_call_changed(monkeypatch, *WRONG_TRACES[name])
    with pytest.raises(AssertionError, match="mean gradient is biased"):
        check_unbiased(anchored, models=[MODELS["lstm"](3)])


WRONG_CARRIES = {
    "same noise at every step": lambda old, new: new._replace(key=old.key),
    "theta~ not rescaled": lambda old, new: new._replace(theta_tilde=times(1.1)(new.theta_tilde)),
    "wrong sign of s~": lambda old, new: new._replace(s_tilde=times(-1)(new.s_tilde)),
    "no noise": lambda old, new: new._replace(s_tilde=times(0)(new.s_tilde)),
    "stale s~": lambda old, new: new._replace(s_tilde=old.s_tilde),
    "stale traces": lambda old, new: new._replace(traces=old.traces),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", WRONG_CARRIES)
def test_mutants_of_the_carry_are_caught(name):
    wrong = structured.with_carry(anchored, WRONG_CARRIES[name])
    with pytest.raises(AssertionError, match="mean gradient is biased"):
        check_unbiased(wrong, models=[MODELS["elman"](4)])
