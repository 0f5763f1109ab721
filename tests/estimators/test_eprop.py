"""E-prop is the published recursion for adaptive spiking neurons, and `unbiased` restores what it drops."""

from math import exp

import jax
import numpy as np
import pytest
import structured
from structured import grads_of

from norewind import cells, unbiased
from norewind.cells.spiking import SURROGATE_HEIGHT
from norewind.estimators import eprop, lstm97, snap1
from norewind.testing import check_exact, check_structure, check_unbiased

TIMES, BETA = (3.0, 8.0, 4.0), 0.4
CELL = {size: cells.alif(3, size, 3, times=TIMES, adaptation=BETA) for size in (1, 2, 4)}


def spiking(size, length):
    """Neurons of which some fire at nearly every step."""
    example = structured.from_cell("alif", CELL[size], length)
    return example._replace(params=example.params | {"bias": example.params["bias"] + 0.6})


def by_hand(example):
    """The eligibility traces of Bellec et al. (2020), with the trace of the readout as their low-pass filter."""
    alpha, rho, kappa = (exp(-1 / time) for time in TIMES)
    p, s = jax.tree.map(np.asarray, example.params), jax.tree.map(np.asarray, example.state)
    v, a, z, r = s["voltage"], s["adaptation"], s["spikes"], s["trace"]
    size = len(v)
    of_v = of_a = of_z = filtered = np.zeros((size, size + 3 + 1))
    grads, fired = [], []
    for x, target in zip(example.xs, example.targets, strict=True):
        seen = np.concatenate([z, np.eye(3)[x], [1.0]])
        of_a = rho * of_a + of_z
        of_v = alpha * of_v + seen
        v = alpha * v + p["recurrent"] @ z + p["input"][x] + p["bias"] - z
        a = rho * a + z
        excess = v - 1 - BETA * a
        z = (excess > 0).astype(float)
        of_z = (SURROGATE_HEIGHT * np.maximum(0, 1 - np.abs(excess)))[:, None] * (of_v - BETA * of_a)
        filtered = kappa * filtered + (1 - kappa) * of_z
        r = kappa * r + (1 - kappa) * z
        scores = np.exp(p["readout"]["weight"] @ r + p["readout"]["bias"])
        error = scores / scores.sum() - np.eye(3)[target]
        grad = (error @ p["readout"]["weight"])[:, None] * filtered
        fired.append(z)
        grads.append({
            "recurrent": grad[:, :size], "input": grad[:, size:-1].T, "bias": grad[:, -1],
            "readout": {"weight": np.outer(error, r), "bias": error},
        })  # fmt: skip
    assert 0.1 < np.mean(fired) < 0.9
    return jax.tree.map(lambda *leaves: np.stack(leaves), *grads)


@pytest.mark.usefixtures("x64")
def test_it_is_the_published_recursion():
    example = spiking(4, 12)
    wanted = by_hand(example)
    got = grads_of(eprop(example.transition, example.loss), example)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), got, wanted)
    other = grads_of(snap1(example.transition, example.loss), example)
    assert np.max(np.abs(other["recurrent"] - wanted["recurrent"])) > 1e-3


@pytest.mark.usefixtures("x64")
def test_the_cell_is_what_it_declares():
    example = spiking(4, 4)
    check_structure(example.transition, example.params, example.state, example.xs[0])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("size", "length"), [(1, 4), pytest.param(2, 3, marks=pytest.mark.slow)])
def test_it_can_be_completed(size, length):
    model = spiking(size, length)
    with pytest.raises(AssertionError, match="not exact"):
        check_exact(eprop, models=[model])
    check_unbiased(lambda *parts, noise: unbiased(eprop(*parts), noise=noise), models=[model])


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_on_an_lstm_it_is_the_gradient_of_1997():
    example = structured.of_cell("lstm", 3, 8)
    ours, theirs = (grads_of(method(example.transition, example.loss), example) for method in (eprop, lstm97))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), ours, theirs)


def test_it_rejects_models_without_the_structure():
    structured.check_it_rejects_models_without_units(eprop)


def test_times_must_be_positive():
    with pytest.raises(ValueError, match="alif: times must be above 0"):
        cells.alif(3, 2, 3, times=(20.0, 0.0, 20.0))
