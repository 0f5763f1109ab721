"""Every estimator passes the conformance suite, and the suite catches what breaks the contract."""

import jax
import jax.numpy as jnp
import pytest

from norewind import (
    Estimator,
    average,
    bptt,
    diffusion,
    dni,
    nobacktrack,
    readout_only,
    rtrl,
    sliding_bptt,
    uoro,
)
from norewind.testing import check_estimator, examples
from norewind.testing.conformance import _check_refusals


def rank_2(transition, loss, **options):
    return average(uoro(transition, loss, **options), 2)


ESTIMATORS = {
    # name: (how it is made, what it claims)
    "uoro": (uoro, {"unbiased": True}),
    "rtrl": (rtrl, {"exact": True}),
    "bptt": (bptt, {}),
    "rank 2": (rank_2, {}),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimator(name):
    make, claims = ESTIMATORS[name]
    check_estimator(make, **claims)


def broken(change):
    """One-step BPTT with something broken in its step."""

    def make(transition, loss):
        good = bptt(transition, loss)

        def init(params, state, key):
            good.init(params, state, key)
            return {"count": jnp.zeros(()), "key": key}

        def step(params, state, carry, x, target):
            new_state, _, estimate = good.step(params, state, (), x, target)
            return change(new_state, carry, estimate, state)

        return Estimator(init, step, good.model)

    return make


calls = []


def impure(state, carry, estimate, _):
    calls.append(None)
    return state, carry, estimate._replace(grad=jax.tree.map(lambda g: g * len(calls), estimate.grad))


BROKEN = {
    "float64 gradient": (
        lambda state, carry, estimate, _: (
            state,
            carry,
            estimate._replace(grad=jax.tree.map(lambda g: g.astype(jnp.float16), estimate.grad)),
        ),
        "gradient at .* has dtype float16",
    ),
    "carry changes": (lambda state, carry, estimate, _: (state, carry["key"], estimate), "carry .* another structure"),
    "state stands still": (lambda state, carry, estimate, old: (old, carry, estimate), "state is not the model's own"),
    "loss is halved": (
        lambda state, carry, estimate, _: (state, carry, estimate._replace(loss=estimate.loss / 2)),
        "loss or output is not the model's own",
    ),
    "impure": (impure, "differ"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_suite_catches_what_breaks_the_contract(name):
    change, message = BROKEN[name]
    with pytest.raises(AssertionError, match=message):
        check_estimator(broken(change), models=examples()[:1])


def test_the_suite_catches_an_estimator_that_accepts_anything():
    def make(transition, loss):
        good = bptt(transition, loss)
        return good._replace(init=lambda params, state, key: ())

    with pytest.raises(AssertionError, match="accepts integer parameters|does not name"):
        check_estimator(make)


def test_the_suite_catches_false_claims():
    with pytest.raises(AssertionError, match="not exact"):
        check_estimator(bptt, exact=True, models=examples()[:1])


def sliding(transition, loss, x):
    return sliding_bptt(transition, loss, length=2, x=x)


def without_x(make):
    return lambda transition, loss, x: make(transition, loss)


FOR_ANY_MODEL = {make.__name__: without_x(make) for make in (nobacktrack, dni, readout_only, diffusion)}
FOR_ANY_MODEL["sliding_bptt"] = sliding


@pytest.mark.parametrize("name", FOR_ANY_MODEL)
def test_methods_for_any_model_refuse_a_bad_one(name):
    _check_refusals(FOR_ANY_MODEL[name])


@pytest.mark.parametrize("name", FOR_ANY_MODEL)
def test_methods_for_any_model_take_plain_numbers(name):
    def transition(params, state, x):
        state = params["a"] * state + x
        return state, params["c"] * state

    estimator = FOR_ANY_MODEL[name](transition, lambda output, target: (output - target) ** 2, 0.5)
    params = {"a": 0.5, "c": 2.0}
    carry = estimator.init(params, 0.1, jax.random.key(0))
    _, after, estimate = jax.jit(estimator.step)(params, 0.1, carry, 0.3, 1.0)
    assert jax.tree.structure(after) == jax.tree.structure(carry)
    assert jnp.isclose(estimate.grad["c"], 2 * (2 * 0.35 - 1) * 0.35)
