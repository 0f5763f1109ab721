"""SnAp-1 is exact for elementwise recurrences, and masked RTRL for others; both to 1e-10."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import structured
from jax.flatten_util import ravel_pytree
from quick import slow_but

from norewind import bptt, cells, declare, window
from norewind.core.estimator import Estimate, linearise, linearise_state, model_of
from norewind.estimators import snap1
from norewind.estimators.traces import (
    along_traces,
    cut_product,
    next_traces,
    own_product,
    units_of,
    without_cross_terms,
)
from norewind.testing import check_exact, check_structure
from norewind.testing.oracles import run_estimator, windows


def windowed(transition, loss):
    return snap1(*window(transition, loss))


def worst_error(estimator, example, steps=1):
    """Return the largest difference from RTRL with a mask, over all gradients and the last traces."""
    wanted, influence = structured.masked_rtrl(example, steps)
    data = windows(example, steps) if steps > 1 else example

    @jax.jit
    def run():
        carry = estimator.init(example.params, example.state, jax.random.key(0))
        _, carry, estimates = run_estimator(estimator, data, carry)
        return carry, jax.vmap(lambda grad: ravel_pytree(grad)[0])(estimates.grad)

    carry, grads = run()
    # Of a weight's influence on a leaf of the state, only the entry of its own unit is not zero.
    rows = influence.reshape(len(carry), -1, influence.shape[-1]).sum(axis=1)
    traces = [jax.tree.map(lambda p, g: np.zeros(p.shape) if g is None else g, example.params, t) for t in carry]
    traces = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(trace)]) for trace in traces]
    return max(np.max(np.abs(grads - wanted)), np.max(np.abs(np.stack(traces) - rows)))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", slow_but(structured.ELEMENTWISE, "lru", "elstm"))
def test_it_is_exact_for_the_elementwise_cells(name):
    check_exact(snap1, models=[structured.of_cell(name)])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("model", [structured.turning, structured.spinning], ids=lambda model: model.__name__)
def test_it_is_exact_for_other_elementwise_recurrences(model):
    check_exact(snap1, models=[model()])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name", ["lru", *(pytest.param(name, marks=pytest.mark.slow) for name in structured.ELEMENTWISE if name != "lru")]
)
def test_it_is_exact_in_windows(name):
    check_exact(windowed, window=2, models=[structured.of_cell(name)])


@pytest.mark.usefixtures("x64")
def test_without_traces_it_is_not_exact():
    with pytest.raises(AssertionError, match="not exact"):
        check_exact(bptt, models=[structured.turning()])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name", ["lstm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("elman", "rnn", "reservoir"))]
)
def test_for_other_models_it_is_rtrl_with_a_mask(name):
    example = structured.of_cell(name, 3)
    assert worst_error(snap1(example.transition, example.loss), example) < 1e-10


@pytest.mark.usefixtures("x64")
def test_in_windows_only_what_is_carried_is_masked():
    example = structured.of_cell("gru_after", 3, 6)
    check_structure(example.transition, example.params, example.state, example.xs[0])
    assert worst_error(windowed(example.transition, example.loss), example, steps=3) < 1e-10


def gru_by_hand(example):
    """The recipe for the authors' GRU, whose reset gate reaches other units: J_kk = (1 − z) + Σ_g A_g U_g[k, k]."""
    p, h = jax.tree.map(np.asarray, example.params), np.asarray(example.state)
    n = h.size
    (u_r, u_z), u_c = np.split(p["gates"], 2), p["candidate"]
    influence = dict.fromkeys(("input", "gates", "candidate", "bias"), 0.0)
    for x in example.xs:
        drive = p["input"][x] + p["bias"]
        r, z = (structured.sigmoid(part) for part in (drive[:n] + u_r @ h, drive[n : 2 * n] + u_z @ h))
        c = np.tanh(drive[2 * n :] + u_c @ (r * h))
        a_c = z * (1 - c**2)
        a_r, a_z = a_c * np.diag(u_c) * h * r * (1 - r), (c - h) * z * (1 - z)
        own = (1 - z) + a_r * np.diag(u_r) + a_z * np.diag(u_z) + a_c * r * np.diag(u_c)
        rows, keep = np.concatenate([a_r, a_z, a_c]), np.tile(own, 3)
        new = {
            "input": np.outer(np.eye(3)[x], rows),
            "gates": np.outer(rows[: 2 * n], h),
            "candidate": np.outer(a_c, r * h),
            "bias": rows,
        }
        factor = {"input": keep, "gates": keep[: 2 * n, None], "candidate": own[:, None], "bias": keep}
        influence = {name: factor[name] * influence[name] + new[name] for name in new}
        h = z * c + (1 - z) * h
    return influence


@pytest.mark.usefixtures("x64")
def test_for_the_authors_gru_it_is_the_recipe():
    example = structured.of_cell("gru", 3)
    estimator = snap1(example.transition, example.loss)
    run = jax.jit(
        lambda: run_estimator(estimator, example, estimator.init(example.params, example.state, jax.random.key(0)))
    )
    (trace,) = run()[1]
    for name, wanted in gru_by_hand(example).items():
        assert np.max(np.abs(trace[name] - wanted)) < 1e-10, name


def test_false_declarations_are_caught():
    example = structured.of_cell("rnn", 4)
    told = example.transition.structure

    def check(**wrong):
        false = declare(example.transition.transition, **{"units": told.units, "mixing": told.mixing} | wrong)
        check_structure(false, example.params, example.state, example.xs[0])

    with pytest.raises(AssertionError, match="different derivatives"):
        check(mixing=lambda product: cells.elman(3, 4, 3).transition.structure.mixing(product))
    with pytest.raises(AssertionError, match="elementwise: state of one unit reaches state of another"):
        check(mixing=lambda product: told.mixing(jnp.matmul))
    with pytest.raises(AssertionError, match="must declare units"):
        check(units=None)


def test_it_rejects_models_without_units():
    structured.check_it_rejects_models_without_units(snap1)


MUTATIONS = [
    "own weight cut",
    "units mixed",
    "immediate influence dropped",
    "past dropped",
    "components swapped",
    "gradient from the new traces",
]


def mutant(number, transition, loss):
    """A plain SnAp-1 with one mistake, or none for number 0."""
    model, alone, cut = (
        model_of(transition, loss),
        *(without_cross_terms("", transition, p) for p in (own_product, cut_product)),
    )

    def step(params, state, carry, x, target):
        units = units_of(alone, params)
        point = linearise(model, params, state, x, target)
        views = [linearise_state(view, params, state, x) for view in (alone, cut, transition)]
        right, own_cut, mixed = (next_traces(view, units, carry, params) for view in views)
        fresh = next_traces(views[0], units, jax.tree.map(jnp.zeros_like, carry), params)
        carried = jax.tree.map(jnp.subtract, right, fresh)
        new = structured.choose(number, [right, own_cut, mixed, carried, fresh, right, right])
        seen = structured.choose(number, [*[carry] * 5, carry[::-1], right])
        state_grad, direct = point.loss_grads()
        grad = jax.tree.map(jnp.add, direct, along_traces(units, state_grad, seen, params))
        return point.state, new, Estimate(point.loss, grad, point.output)

    return snap1(transition, loss)._replace(step=step)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_mutants_are_caught():
    example = structured.of_cell("lstm", 3)
    wanted, _ = structured.masked_rtrl(example)

    def error(number):
        estimator = mutant(number, example.transition, example.loss)
        carry = estimator.init(example.params, example.state, jax.random.key(0))
        grads = run_estimator(estimator, example, carry)[2].grad
        return jnp.max(jnp.abs(jax.vmap(lambda grad: ravel_pytree(grad)[0])(grads) - wanted))

    right, *wrong = np.asarray(jax.jit(jax.vmap(error))(jnp.arange(len(MUTATIONS) + 1)))
    assert right < 1e-10
    for name, error in zip(MUTATIONS, wrong, strict=True):
        assert error > 1e-4, f"not caught: {name}"
