"""Every estimator passes the conformance suite, and the suite catches what breaks the contract."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import structured
from jax.experimental import io_callback
from quick import slow_but

from norewind import average, bptt, rtrl, unbiased, uoro
from norewind.core import Estimator
from norewind.estimators import (
    diffusion,
    dni,
    eprop,
    kf_rtrl,
    kronecker,
    nobacktrack,
    readout_only,
    rflo,
    shrunk,
    sketched,
    sliding_bptt,
    snap1,
    snapn,
)
from norewind.testing import check_estimator, example, yield_checks


def rank_2(transition, loss, **options):
    return average(uoro(transition, loss, **options), 2)


def kronecker_1(transition, loss, **options):
    return kronecker(transition, loss, terms=1, **options)


def completed(transition, loss, **options):
    return unbiased(snap1(transition, loss), **options)


def shrunk_traces(transition, loss):
    return shrunk(snap1(transition, loss))


def sketched_fully(transition, loss):
    return sketched(transition, loss, terms=2)


ESTIMATORS = {
    # name: (constructor, claim)
    "uoro": (uoro, "unbiased"),
    "rtrl": (rtrl, "exact"),
    "bptt": (bptt, None),
    "rank 2": (rank_2, None),
}
LONG = ("rtrl", "rank 2")
SLOW = pytest.mark.slow


@pytest.mark.parametrize("name", slow_but(ESTIMATORS, "bptt"))
def test_estimator(name):
    make, claims = ESTIMATORS[name]
    check_estimator(make, claims=claims)


WITH_STRUCTURE = [
    # methods for models with declarations: (method, model, claim)
    pytest.param(snap1, "mingru", "exact"),
    pytest.param(snap1, "gru", None, marks=SLOW),
    *(pytest.param(snap1, name, "exact", marks=SLOW) for name in structured.ELEMENTWISE if name != "mingru"),
    pytest.param(completed, "elman", "unbiased", marks=SLOW),
    pytest.param(completed, "mingru", "exact", marks=SLOW),
    pytest.param(shrunk_traces, "elman", None, marks=SLOW),
    pytest.param(sketched_fully, "elman", "exact", marks=SLOW),
    pytest.param(snapn, "elman", "exact", marks=SLOW),  # all units read one another
    pytest.param(eprop, "alif", None, marks=SLOW),
    pytest.param(kf_rtrl, "elman", "unbiased", marks=SLOW),
    pytest.param(kronecker_1, "elman", "unbiased", marks=SLOW),
    pytest.param(rflo, "reservoir", None),
    pytest.param(rflo, "diagonal_gru", "exact", marks=SLOW),
]


@pytest.mark.parametrize(("make", "model", "claims"), WITH_STRUCTURE)
def test_estimator_for_models_with_structure(make, model, claims):
    check_estimator(make, claims=claims, models=[structured.of_cell(model)])


@pytest.mark.parametrize("check", list(yield_checks(bptt, models=[example("rnn")])))
def test_checks_can_be_run_one_by_one(check):
    check()


def test_checks_have_names_of_their_own_and_proofs_come_first():
    names = [check.__name__ for check in yield_checks(uoro, claims="unbiased")]
    assert len(set(names)) == len(names)
    assert names[:5] == ["unbiased-rnn", "unbiased-gru", "unbiased-lstm", "unbiased-stack", "unbiased-user_made"]
    assert not any(name.startswith("unbiased") for name in names[5:])
    assert "resume-gru" in names
    assert "rejects-state_of_another_shape" in names
    with pytest.raises(ValueError, match="claims must be .* not 'sure'"):
        list(yield_checks(uoro, claims="sure"))


def broken(change):
    """One-step BPTT with a broken step."""

    def make(transition, loss):
        good = bptt(transition, loss)

        def init(params, state, key):
            good.init(params, state, key)
            return {"count": jnp.zeros(()), "key": key}

        def step(params, state, carry, x, target):
            new_state, _, estimate = good.step(params, state, (), x, target)
            return change(new_state, carry, estimate, state)

        return Estimator.build(init, step, good.model)

    return make


calls = []


def impure(state, carry, estimate, _):
    calls.append(None)
    return state, carry, scaled(estimate, len(calls))


def depends_on_what_is_not_saved(state, carry, estimate, _):
    def count():
        calls.append(None)
        return np.float32(len(calls))

    number = io_callback(count, jax.ShapeDtypeStruct((), jnp.float32))
    return state, carry | {"count": carry["count"] + number}, estimate


def scaled(estimate, factor):
    return estimate._replace(grad=jax.tree.map(lambda g: g * factor, estimate.grad))


def cast(estimate, dtype):
    return estimate._replace(grad=jax.tree.map(lambda g: g.astype(dtype), estimate.grad))


BROKEN = {
    # mistake: (change, checks that must notice it, their message)
    "float16 gradient": (
        lambda state, carry, estimate, _: (state, carry, cast(estimate, jnp.float16)),
        ["shapes"],
        "gradient at .* has dtype float16",
    ),
    "float64 gradient": (
        lambda state, carry, estimate, _: (state, carry, cast(estimate, float)),
        ["float32_stays"],
        "gradient at .* has dtype float64",
    ),
    "carry changes": (
        lambda state, carry, estimate, _: (state, carry["key"], estimate),
        ["shapes", "float32_stays"],
        "carry .* different structure",
    ),
    "state stands still": (
        lambda state, carry, estimate, old: (old, carry, estimate),
        ["states_and_losses"],
        "state is not the model's own",
    ),
    "loss is halved": (
        lambda state, carry, estimate, _: (state, carry, estimate._replace(loss=estimate.loss / 2)),
        ["states_and_losses"],
        "loss or output is not the model's own",
    ),
    "impure": (impure, ["scan_under_vmap", "uncompiled_steps"], "differ"),
    "depends on what is not saved": (
        depends_on_what_is_not_saved,
        ["same_key_same_run", "resume"],
        "does not give the same run|does not continue exactly",
    ),
    "carry becomes weakly typed": (
        lambda state, carry, estimate, _: (state, carry | {"count": jnp.asarray(1.0)}, estimate),
        ["one_trace"],
        "was traced again",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_every_check_catches_its_mistake(name):
    change, which, message = BROKEN[name]
    checks = {check.__name__: check for check in yield_checks(broken(change), models=[example("rnn")])}
    for check in which:
        with pytest.raises(AssertionError, match=message):
            checks[f"{check}-rnn"]()


def test_the_suite_catches_an_estimator_that_accepts_anything():
    def make(transition, loss):
        return bptt(transition, loss)._replace(init=lambda params, state, key: ())

    with pytest.raises(AssertionError, match="accepts a model with integer parameters|does not name"):
        check_estimator(make)


def test_the_suite_catches_false_claims():
    with pytest.raises(AssertionError, match="not exact"):
        check_estimator(bptt, claims="exact", models=[example("rnn")])


@pytest.mark.parametrize("name", ["state stands still", "loss is halved", "impure"])
def test_a_wrong_gradient_is_reported_before_anything_else(name):
    """One-step BPTT is not exact; this one also has a less important mistake."""
    change, _, message = BROKEN[name]
    make = broken(change)
    with pytest.raises(AssertionError, match="rnn: gradient is not exact"):
        check_estimator(make, claims="exact", models=[example("rnn")])
    with pytest.raises(AssertionError, match=message):
        check_estimator(make, models=[example("rnn")])


def sliding(transition, loss, x):
    return sliding_bptt(transition, loss, length=2, x=x)


def without_x(make):
    return lambda transition, loss, x: make(transition, loss)


FOR_ANY_MODEL = {make.__name__: without_x(make) for make in (nobacktrack, dni, readout_only, diffusion)}
FOR_ANY_MODEL["sliding_bptt"] = sliding


@pytest.mark.parametrize("name", FOR_ANY_MODEL)
def test_methods_for_any_model_reject_a_bad_one(name):
    rejections = [c for c in yield_checks(FOR_ANY_MODEL[name], example_x=True) if c.__name__.startswith("rejects-")]
    assert len(rejections) == 6
    for check in rejections:
        check()


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
