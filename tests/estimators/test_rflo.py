"""RFLO is the published recursion for leaky units, and autodiff with the recurrent inputs stopped for others."""

import jax
import numpy as np
import pytest
import structured
from structured import grads_of

from norewind import window
from norewind.core.products import cut_product
from norewind.core.structure import structure_of
from norewind.estimators import rflo, snap1
from norewind.testing import check_exact
from norewind.testing.oracles import windows


def by_hand(example, leak):
    """B ← (1 − α) B + α φ' aᵀ, g = diag(δ) B, for h' = (1 − α) h + α tanh(W a) and cross entropy."""
    p, h = jax.tree.map(np.asarray, example.params), np.asarray(example.state)
    traces = {"recurrent": 0.0, "input": 0.0, "bias": 0.0}
    grads = []
    for x, target in zip(example.xs, example.targets, strict=True):
        phi = np.tanh(p["recurrent"] @ h + p["input"][x] + p["bias"])
        slope = leak * (1 - phi**2)
        new = {"recurrent": np.outer(slope, h), "input": np.outer(np.eye(3)[x], slope), "bias": slope}
        traces = {name: (1 - leak) * traces[name] + new[name] for name in traces}
        h = (1 - leak) * h + leak * phi
        scores = np.exp(p["readout"]["weight"] @ h + p["readout"]["bias"])
        error = scores / scores.sum() - np.eye(3)[target]
        delta = error @ p["readout"]["weight"]
        grads.append(
            {
                "recurrent": delta[:, None] * traces["recurrent"],
                "input": delta * traces["input"],
                "bias": delta * traces["bias"],
                "readout": {"weight": np.outer(error, h), "bias": error},
            }
        )
    return jax.tree.map(lambda *leaves: np.stack(leaves), *grads)


def worst(got, wanted):
    return max(jax.tree.leaves(jax.tree.map(lambda a, b: np.max(np.abs(a - b)), got, wanted)))


@pytest.mark.usefixtures("x64")
def test_it_is_the_published_recursion():
    example = structured.of_cell("reservoir", 3, 6)
    got, wanted = grads_of(rflo(example.transition, example.loss), example), by_hand(example, 0.4)
    assert worst(got, wanted) < 1e-10
    sums = jax.tree.map(lambda leaf: leaf.reshape(2, 3, *leaf.shape[1:]).sum(axis=1), wanted)
    assert worst(grads_of(rflo(*window(example.transition, example.loss)), windows(example, 3)), sums) < 1e-10
    for wrong in (by_hand(example, 0.39), grads_of(snap1(example.transition, example.loss), example)):
        assert worst(got, wrong) > 1e-3


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_it_is_autodiff_with_the_recurrent_inputs_stopped(name):
    example = structured.of_cell(name)
    cut = example._replace(transition=structure_of(example.transition).mixing(cut_product))
    check_exact(lambda *_: rflo(example.transition, example.loss), models=[cut])
    with pytest.raises(AssertionError, match="not exact"):
        check_exact(rflo, models=[example])


def test_it_rejects_models_without_the_structure():
    structured.check_it_rejects_models_without_units(rflo)
