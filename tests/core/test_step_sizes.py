"""ObGD, intentional updates and IDBD against their recursions in plain Python, and what each of them promises."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import structured
from hypothesis import given, settings
from hypothesis import strategies as st

from norewind import cells, losses, online, rtrl, td
from norewind.core import Outcome, idbd, intentional, obgd

STEPS, SIZE = 30, 4


def stream(seed=0):
    rng = np.random.default_rng(seed)
    xs = rng.normal(size=(STEPS, SIZE)) * 2.0 ** rng.integers(-3, 4, SIZE)
    return xs, xs @ rng.normal(size=SIZE) + 0.1 * rng.normal(size=STEPS)


def fit(optimizer, xs, targets):
    """Least squares on the stream: the weights after every sample."""

    def loss(w, x, target):
        return 0.5 * (target - w @ x) ** 2

    @jax.jit
    def step(w, state, x, target):
        value, grad = jax.value_and_grad(loss)(w, x, target)
        updates, state = optimizer.update(grad, state, w, value=value, grad=grad, value_grad=None)
        return optax.apply_updates(w, updates), state

    w = jnp.zeros(SIZE)
    state, history = optimizer.init(w), []
    for x, target in zip(xs, targets, strict=True):
        w, state = step(w, state, x, target)
        history.append(np.asarray(w))
    return np.array(history)


def obgd_by_hand(xs, targets, rate=1.0, kappa=2.0):
    w, history = [0.0] * SIZE, []
    for x, target in zip(xs, targets, strict=True):
        error = target - sum(a * b for a, b in zip(w, x, strict=True))
        bound = kappa * rate * max(abs(error), 1) * sum(abs(a) for a in x)
        step = rate / bound if bound > 1 else rate
        w = [a + step * error * b for a, b in zip(w, x, strict=True)]
        history.append(w)
    return np.array(history)


def idbd_by_hand(xs, targets, rate=0.01, meta=0.01):
    """The figure of the paper, line by line."""
    w, h, beta, history = [0.0] * SIZE, [0.0] * SIZE, [math.log(rate)] * SIZE, []
    for x, target in zip(xs, targets, strict=True):
        error = target - sum(a * b for a, b in zip(w, x, strict=True))
        for i in range(SIZE):
            beta[i] = max(beta[i] + min(2, max(-2, meta * error * x[i] * h[i])), -10)
            alpha = math.exp(beta[i])
            w[i] += alpha * error * x[i]
            h[i] = h[i] * max(0.0, 1 - alpha * x[i] ** 2) + alpha * error * x[i]
        history.append(list(w))
    return np.array(history)


def intentional_by_hand(slopes, errors, decay, eta=0.5, normalise=False):
    """The authors' program in scalars: the updates for given slopes and TD errors, with the traces of decay γλ."""
    size = len(slopes[0])
    trace, square, reach, clip, mean, updates = [0.0] * size, [0.0] * size, 0.0, 1.0, 0.0, []
    for t, (slope, error) in enumerate(zip(slopes, errors, strict=True), 1):
        square = [0.999 * v + 0.001 * g * g for v, g in zip(square, slope, strict=True)]
        spread = [math.sqrt(v / (1 - 0.999**t)) + 1e-8 for v in square]
        trace = [decay * e + g for e, g in zip(trace, slope, strict=True)]
        reach += (1 - decay) * (sum(g * g / v for g, v in zip(slope, spread, strict=True)) - reach)
        z = sum(e * e / v for e, v in zip(trace, spread, strict=True))
        step = eta / max(math.sqrt(reach / (1 - decay**t) * z), 1e-8)
        clip = 0.9998 * clip + 0.0002 * error**2
        safe = math.copysign(min(abs(error), 20 * math.sqrt(clip / (1 - 0.9998**t))), error)
        if normalise:
            mean = 0.9998 * mean + 0.0002 * abs(safe)
            safe /= max(mean / (1 - 0.9998**t), 1e-12)
        updates.append([step * safe * e / v for e, v in zip(trace, spread, strict=True)])
    return np.array(updates)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("seed", [0, 1])
def test_obgd_is_its_algorithm(seed):
    xs, targets = stream(seed)
    np.testing.assert_allclose(fit(obgd(), xs, targets), obgd_by_hand(xs, targets), rtol=1e-10)
    wanted = obgd_by_hand(xs, targets, 0.02, 3.0)
    np.testing.assert_allclose(fit(obgd(0.02, kappa=3.0), xs, targets), wanted, rtol=1e-10)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("meta", [0.001, 0.5])
def test_idbd_is_the_recursion_of_the_paper(meta):
    xs, targets = stream()
    wanted = idbd_by_hand(xs, targets, 0.02, meta)
    assert np.all(np.isfinite(wanted))
    np.testing.assert_allclose(fit(idbd(0.02, meta_rate=meta), xs, targets), wanted, rtol=1e-8)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("decay", [0.0, 0.7])
@pytest.mark.parametrize("normalise", [False, True])
def test_intentional_updates_are_those_of_the_authors_program(decay, normalise):
    rng = np.random.default_rng(2)
    slopes, errors = rng.normal(size=(STEPS, SIZE)), rng.standard_t(2, size=STEPS)
    errors[20] = 1e4  # to be clipped
    optimizer = intentional(decay=decay, normalise=normalise, clip=20.0)
    state, trace, got = optimizer.init(jnp.zeros(SIZE)), np.zeros(SIZE), []
    for slope, error in zip(slopes, errors, strict=True):
        trace = decay * trace + slope
        updates, state = optimizer.update(jnp.asarray(-error * trace), state, value=0.5 * error**2, value_grad=slope)
        got.append(np.asarray(updates))
    np.testing.assert_allclose(got, intentional_by_hand(slopes, errors, decay, normalise=normalise), rtol=1e-9)


numbers = st.floats(-100, 100).map(lambda x: round(x, 3))


@settings(deadline=None, max_examples=40)
@given(error=numbers, slope=st.lists(numbers, min_size=3, max_size=3), kappa=st.floats(1.01, 5))
def test_obgd_moves_a_linear_prediction_by_at_most_its_bound(error, slope, kappa):
    """|Δv| ≤ |δ| ‖e‖²/(κ max(|δ|, 1) ‖e‖₁) ≤ max|e|/κ: no overshooting for slopes up to 1."""
    slope = np.array(slope, np.float32)
    optimizer = obgd(kappa=kappa)
    updates, _ = optimizer.update(jnp.asarray(-error * slope), optimizer.init(slope), value=jnp.asarray(0.5 * error**2))
    moved = float(np.dot(updates, slope))
    assert np.all(np.isfinite(updates))
    assert abs(moved) <= np.max(np.abs(slope)) / kappa * (1 + 1e-4) + 1e-6
    if np.max(np.abs(slope)) <= 1:
        assert abs(moved) <= abs(error) * (1 + 1e-4) + 1e-6


@settings(deadline=None, max_examples=40)
@given(error=numbers, slope=st.lists(numbers, min_size=3, max_size=3), fraction=st.floats(0.01, 1))
def test_the_first_intentional_update_removes_the_intended_fraction(error, slope, fraction):
    slope = np.array(slope, np.float32)
    optimizer = intentional(fraction)
    updates, _ = optimizer.update(jnp.asarray(-error * slope), optimizer.init(slope), value=jnp.asarray(0.5 * error**2))
    wanted = fraction * error if np.any(np.abs(slope) > 0.01) else 0.0
    if abs(error) > 1e-3 and (wanted or not np.any(slope)):
        assert float(np.dot(updates, slope)) == pytest.approx(wanted, rel=1e-2, abs=1e-4)


@pytest.mark.parametrize("make", [obgd, intentional, idbd])
def test_without_an_error_nothing_moves_and_without_a_loss_they_say_so(make):
    optimizer = make()
    state = optimizer.init(jnp.ones(2))
    updates, after = optimizer.update(jnp.zeros(2), state, value=jnp.zeros(()))
    assert updates.tolist() == [0.0, 0.0]
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(after))
    with pytest.raises(ValueError, match="needs the loss"):
        optimizer.update(jnp.ones(2), state)


@pytest.mark.parametrize("make", [obgd, intentional, idbd])
def test_in_a_learner_the_loss_and_the_slope_arrive(make):
    """`online` tells them the loss, and with `td` the slope: the same updates as by hand."""
    model = structured.from_cell("value", cells.gru(3, 2, 1, symbols=False), 6, symbols=False)
    estimator = td(rtrl(model.transition, losses.value), decay=0.5)
    optimizer = make(decay=0.45) if make is intentional else make()
    learner = online(estimator, optimizer)
    run = learner.init(model.params, model.state, jax.random.key(0))
    xs = np.asarray(model.xs, np.float32)
    targets = Outcome(np.ones(5, np.float32), np.full(5, 0.9, np.float32), xs[1:])
    got, _, _ = learner.scan(run, xs[:-1], targets)
    params, state, carry, opt_state = run.params, run.state, run.carry, run.opt_state
    for i in range(5):
        part = jax.tree.map(lambda leaf, i=i: leaf[i], targets)
        state, carry, estimate = jax.jit(estimator.step)(params, state, carry, xs[i], part)
        known = {"value": estimate.loss, "value_grad": estimate.value_grad}
        updates, opt_state = optimizer.update(estimate.grad, opt_state, params, **known)
        params = optax.apply_updates(params, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got.params, params)


def test_settings_out_of_range_are_rejected():
    for make, name in ((obgd, "kappa"), (intentional, "fraction"), (idbd, "meta_rate")):
        with pytest.raises(ValueError, match=f"{make.__name__}: {name} must be above 0, not 0"):
            make(**{name: 0.0})
    with pytest.raises(ValueError, match="decay must be at least 0 and below 1"):
        intentional(decay=1.0)
