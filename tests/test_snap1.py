"""SnAp-1 is exact for elementwise recurrences, and masked RTRL for others; both to 1e-10."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import structured
from jax.flatten_util import ravel_pytree

from norewind import bptt, cells, declare, snap1, window
from norewind.estimator import Estimator
from norewind.testing import check_estimator, check_exact, check_structure
from norewind.testing.oracles import run_estimator, windows
from norewind.traces import cut_product, linearise_state, unit_by_unit

ELEMENTWISE = [structured.turning, structured.spinning]


def windowed(transition, loss):
    return snap1(*window(transition, loss))


def worst_error(estimator, example, steps=1):
    """The largest difference to RTRL with a mask, over all gradients and the last traces."""
    wanted, influence = structured.masked_rtrl(example, steps)
    data = windows(example, steps) if steps > 1 else example

    @jax.jit
    def run():
        carry = estimator.init(example.params, example.state, jax.random.key(0))
        _, carry, estimates = run_estimator(estimator, data, carry)
        return carry, jax.vmap(lambda grad: ravel_pytree(grad)[0])(estimates.grad)

    carry, grads = run()
    # Of the entries of a weight's influence on one leaf of the state, its own unit has one, the others are zero.
    rows = influence.reshape(len(carry), -1, influence.shape[-1]).sum(axis=1)
    traces = [jax.tree.map(lambda p, g: np.zeros(p.shape) if g is None else g, example.params, t) for t in carry]
    traces = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(trace)]) for trace in traces]
    return max(np.max(np.abs(grads - wanted)), np.max(np.abs(np.stack(traces) - rows)))


def test_conformance():
    check_estimator(snap1, models=[structured.dense("lstm", 2)])
    check_estimator(snap1, claims="exact", models=[structured.turning(4)])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("model", ELEMENTWISE, ids=lambda model: model.__name__)
def test_it_is_exact_for_elementwise_recurrences(model):
    example = model()
    check_exact(snap1, models=[example])
    check_exact(windowed, window=4, models=[example])
    with pytest.raises(AssertionError, match="not exact"):
        check_exact(bptt, models=[example])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["lru", "rtu", "elstm", "mingru", "diagonal_gru"])
def test_it_is_exact_for_the_elementwise_cells(name):
    example = structured.from_cell(name, getattr(cells, name)(3, 3, 3))
    check_exact(snap1, models=[example])
    check_exact(windowed, window=2, models=[example])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", [name for name in structured.DENSE if name != "gru"])
def test_for_other_models_it_is_rtrl_with_a_mask(name):
    example = structured.dense(name, length=6)
    check_structure(example.transition, example.params, example.state, example.xs[0])
    assert worst_error(snap1(example.transition, example.loss), example) < 1e-10
    assert worst_error(windowed(example.transition, example.loss), example, steps=3) < 1e-10
    with pytest.raises(AssertionError, match="not exact"):
        check_exact(snap1, models=[example])


def gru_by_hand(example):
    """The recipe for the authors' GRU, whose reset gate reaches other units: J_kk = (1 − z) + Σ_g A_g U_g[k, k]."""
    p, h = jax.tree.map(np.asarray, example.params), np.asarray(example.state)
    n = h.size
    (u_r, u_z), u_c = np.split(p["gates"], 2), p["candidate"]
    influence = dict.fromkeys(("input", "gates", "candidate", "bias"), 0.0)
    for x in example.xs:
        drive = p["input"][x] + p["bias"]
        r, z = (1 / (1 + np.exp(-part)) for part in (drive[:n] + u_r @ h, drive[n : 2 * n] + u_z @ h))
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
    example = structured.dense("gru", length=5)
    estimator = snap1(example.transition, example.loss)
    run = jax.jit(
        lambda: run_estimator(estimator, example, estimator.init(example.params, example.state, jax.random.key(0)))
    )
    (trace,) = run()[1]
    for name, wanted in gru_by_hand(example).items():
        assert np.max(np.abs(trace[name] - wanted)) < 1e-10, name


def test_false_declarations_are_caught():
    example = structured.from_cell("rnn", cells.rnn(3, 4, 3))
    told = example.transition.structure

    def check(**wrong):
        false = declare(example.transition.transition, **{"units": told.units, "mixing": told.mixing} | wrong)
        check_structure(false, example.params, example.state, example.xs[0])

    with pytest.raises(AssertionError, match="other derivatives"):
        check(mixing=lambda product: cells.elman(3, 4, 3).transition.structure.mixing(product))
    with pytest.raises(AssertionError, match="elementwise: state of one unit reaches state of another"):
        check(mixing=lambda product: told.mixing(jnp.matmul))
    with pytest.raises(AssertionError, match="must declare units"):
        check(units=None)


def test_it_refuses_models_without_units():
    structured.check_it_refuses_models_without_units(snap1)


def mutated(monkeypatch, mutation, transition):
    module = sys.modules["norewind.estimators.snap1"]
    along, further = module.along_traces, module.next_traces

    def without(which):
        def changed(own, units, traces, params):
            zero = jax.tree.map(jnp.zeros_like, traces)
            base = further(own, units, zero, params)
            return base if which == "carried" else jax.tree.map(jnp.subtract, further(own, units, traces, params), base)

        return changed

    def of_new_traces(transition, loss):
        estimator = snap1(transition, loss)

        def step(params, state, carry, x, target):
            after = estimator.step(params, state, carry, x, target)[1]
            grad = estimator.step(params, state, after, x, target)[2].grad
            new, carry, estimate = estimator.step(params, state, carry, x, target)
            return new, carry, estimate._replace(grad=grad)

        return Estimator(estimator.init, step, estimator.model)

    change = {
        "own weight cut": ("unit_by_unit", lambda who, transition: unit_by_unit(who, transition, cut_product)),
        "units mixed": ("linearise_state", lambda alone, *rest: linearise_state(transition, *rest)),
        "immediate influence dropped": ("next_traces", without("immediate")),
        "past dropped": ("next_traces", without("carried")),
        "components swapped": ("along_traces", lambda u, row, traces, p: along(u, row, traces[::-1], p)),
    }.get(mutation)
    if change:
        monkeypatch.setattr(module, *change)
    return of_new_traces if mutation == "gradient from the new traces" else snap1


MUTATIONS = [
    "own weight cut",
    "units mixed",
    "immediate influence dropped",
    "past dropped",
    "components swapped",
    "gradient from the new traces",
]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_mutants_are_caught(monkeypatch, mutation):
    example = structured.dense("lstm")
    make = mutated(monkeypatch, mutation, example.transition)
    assert worst_error(make(example.transition, example.loss), example) > 1e-4
