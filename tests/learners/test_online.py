"""The online learner: steps and scans, chunks, noise, schedules, resets and late targets."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from alike import assert_same
from quick import slow_but

import norewind
from norewind import average, bptt, cells, inverse_sqrt, online, parallel, rtrl, uoro, window
from norewind.core.losses import cross_entropy, squared_error

CELL = cells.gru(3, 4, 3)
TEXT = np.random.default_rng(0).integers(0, 3, 41).astype(np.int32)
XS, TARGETS = TEXT[:-1], TEXT[1:]


def start(learner, seed=0):
    return learner.init(CELL.init(jax.random.key(8)), CELL.initial_state(), jax.random.key(seed))


@pytest.fixture(scope="module")
def learner():
    return online(uoro(CELL.transition, cross_entropy), optax.adam(inverse_sqrt(1e-2, 0.03)))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", slow_but(["uoro", "rank 2", "rtrl", "bptt"], "uoro", "bptt"))
def test_steps_and_scan_agree(name):
    make = {"uoro": uoro, "rtrl": rtrl, "bptt": bptt, "rank 2": lambda *model: average(uoro(*model), 2)}[name]
    learner = online(make(CELL.transition, cross_entropy), optax.adam(1e-2))
    run, losses = start(learner), []
    for x, target in zip(XS, TARGETS, strict=True):
        run, estimate = learner.step(run, x, target)
        losses.append(estimate.loss)
    scanned, scanned_losses, _ = learner.scan(start(learner), XS, TARGETS)
    assert_same(scanned, run, tolerance=1e-9)
    np.testing.assert_allclose(scanned_losses, losses, rtol=1e-9)
    assert int(run.steps) == int(run.samples) == 40


@pytest.mark.usefixtures("x64")
def test_other_chunks_change_nothing_but_rounding():
    learner = online(uoro(CELL.transition, cross_entropy), optax.adam(1e-2))
    whole, losses, _ = learner.scan(start(learner), XS, TARGETS)
    run, pieces = start(learner), []
    for a, b in ((0, 10), (10, 30), (30, 40)):
        run, piece, _ = learner.scan(run, XS[a:b], TARGETS[a:b])
        pieces.append(piece)
    assert_same(run, whole, tolerance=1e-9)
    np.testing.assert_allclose(np.concatenate(pieces), losses, rtol=1e-9)


def test_the_same_chunks_give_the_same_run_bit_for_bit(learner):
    def train(seed):
        run = start(learner, seed)
        for a in (0, 20):
            run, _, _ = learner.scan(run, XS[a : a + 20], TARGETS[a : a + 20])
        return run

    assert_same(train(0), train(0))
    with pytest.raises(AssertionError):
        assert_same(train(0).params, train(1).params)


@pytest.mark.usefixtures("x64")
def test_a_count_learns_from_the_first_steps_and_leaves_zeros(learner):
    first, losses, outputs = learner.scan(start(learner), XS[:7], TARGETS[:7], outputs=True)
    run, some_losses, some_outputs = learner.scan(start(learner), XS[:20], TARGETS[:20], count=7, outputs=True)
    assert_same(run, first, tolerance=1e-9)
    np.testing.assert_allclose(some_losses[:7], losses, rtol=1e-9)
    np.testing.assert_allclose(some_outputs[:7], outputs, rtol=1e-9)
    assert (some_losses.shape, some_outputs.shape) == ((20,), (20, 3))
    assert not np.any(some_losses[7:])
    assert not np.any(some_outputs[7:])
    none, nothing, _ = learner.scan(start(learner), XS[:20], TARGETS[:20], count=0)
    assert_same(none, start(learner))
    assert not np.any(nothing)


@pytest.mark.parametrize("count", [-1, 21])
def test_a_count_beyond_the_chunk_is_rejected(learner, count):
    with pytest.raises(ValueError, match=f"scan: count is {count}, but the length of the chunk is 20"):
        learner.scan(start(learner), XS[:20], TARGETS[:20], count=count)


def test_the_noise_of_a_step_depends_on_the_key_and_the_step_alone(learner):
    """With other data and other chunks, the keys after 40 steps are the same."""
    a, _, _ = learner.scan(start(learner), XS, TARGETS)
    b = start(learner)
    for i in (0, 20):
        b, _, _ = learner.scan(b, TARGETS[i : i + 20], XS[i : i + 20])
    assert_same(a.carry.key, b.carry.key)
    with pytest.raises(AssertionError):
        assert_same(a.carry.s_tilde, b.carry.s_tilde)


def test_a_run_learns(learner):
    pattern = jnp.asarray(np.tile([0, 1, 2, 1], 500), jnp.int32)
    _, losses, _ = learner.scan(start(learner), pattern[:-1], pattern[1:])
    assert losses[-100:].mean() < 0.3 * losses[:100].mean()


def test_a_run_is_one_pytree_that_goes_through_bytes(learner):
    run, _, _ = learner.scan(start(learner), XS[:20], TARGETS[:20])
    leaves, structure = jax.tree.flatten(run)
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    is_key = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    raw = [np.asarray(jax.random.key_data(a) if key else a).copy() for a, key in zip(leaves, is_key, strict=True)]
    back = [jax.random.wrap_key_data(a) if key else jnp.asarray(a) for a, key in zip(raw, is_key, strict=True)]
    straight = learner.scan(run, XS[20:], TARGETS[20:])
    assert_same(learner.scan(jax.tree.unflatten(structure, back), XS[20:], TARGETS[20:]), straight)


def test_old_style_keys_are_accepted(learner):
    run = learner.init(CELL.init(jax.random.key(8)), CELL.initial_state(), jax.random.PRNGKey(0))
    assert_same(learner.scan(run, XS, TARGETS), learner.scan(start(learner), XS, TARGETS))
    for make in (lambda e: average(e, 2), lambda e: parallel(e, 1)):
        estimator = make(uoro(CELL.transition, cross_entropy))
        carry = estimator.init(CELL.init(jax.random.key(8)), CELL.initial_state()[None], jax.random.PRNGKey(0))
        assert jnp.issubdtype(carry.key.dtype, jax.dtypes.prng_key)


# Schedules


def recorded_rates(make_optimizer, windowed):
    """The learning rates of three updates of plain SGD on a loss whose gradient is 1 per sample."""

    def transition(params, state, x):
        return state, params

    model = (transition, lambda output, target: output)
    learner = online(bptt(*window(*model)) if windowed else bptt(*model), make_optimizer(lambda t: 1.0 + t))
    run = learner.init(jnp.zeros(()), jnp.zeros(()), jax.random.key(0))
    x = np.zeros(4) if windowed else np.zeros(())
    rates = []
    for _ in range(3):
        before = run.params
        run, estimate = learner.step(run, x, x)
        rates.append(float((before - run.params) / estimate.grad))
    return rates, run


@pytest.mark.parametrize(
    "make_optimizer",
    [optax.sgd, optax.inject_hyperparams(optax.sgd), lambda rate: optax.chain(optax.clip(1e9), optax.sgd(rate))],
)
def test_schedules_see_samples_not_updates(make_optimizer):
    rates, run = recorded_rates(make_optimizer, windowed=False)
    assert rates == [1.0, 2.0, 3.0]
    assert (int(run.steps), int(run.samples)) == (3, 3)
    rates, run = recorded_rates(make_optimizer, windowed=True)
    assert rates == [1.0, 5.0, 9.0]
    assert (int(run.steps), int(run.samples)) == (3, 12)


def test_without_windows_it_is_plain_optax():
    optimizer = optax.adam(inverse_sqrt(1e-2, 0.5))
    estimator = bptt(CELL.transition, cross_entropy)
    learner = online(estimator, optimizer)
    run, _, _ = learner.scan(start(learner), XS[:10], TARGETS[:10])
    params, state = CELL.init(jax.random.key(8)), CELL.initial_state()
    optimizer_state, step = optimizer.init(params), jax.jit(estimator.step)
    for x, target in zip(XS[:10], TARGETS[:10], strict=True):
        state, _, estimate = step(params, state, (), x, target)
        updates, optimizer_state = optimizer.update(estimate.grad, optimizer_state, params)
        params = optax.apply_updates(params, updates)
    assert_same(run.params, params, tolerance=1e-5)


def test_the_schedule_of_the_paper():
    schedule = inverse_sqrt(1e-3, alpha=0.03)
    assert float(schedule(0)) == pytest.approx(1e-3)
    assert float(schedule(10_000)) == pytest.approx(1e-3 / 4)


def test_counts_stay_at_their_limit(learner):
    run = start(learner)
    limit = np.iinfo(np.int32).max
    run = run._replace(steps=jnp.array(limit - 1, jnp.int32), samples=jnp.array(limit, jnp.int32))
    run, losses, _ = learner.scan(run, XS, TARGETS)
    assert int(run.steps) == int(run.samples) == limit
    assert np.all(np.isfinite(losses))


# Resets


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("make", [rtrl, bptt, uoro])
def test_a_reset_begins_a_new_sequence(make):
    """State and carry are those of a new run; parameters, optimizer and noise continue."""
    estimator = make(CELL.transition, cross_entropy)
    learner = online(estimator, optax.sgd(0.0))
    run, _, _ = learner.scan(start(learner), XS[:5], TARGETS[:5])
    again = learner.reset(run)
    assert_same(again.state, CELL.initial_state())
    fresh = start(learner)
    if make is uoro:
        assert_same(again.carry.key, run.carry.key)  # the noise continues
        assert not any(np.any(leaf) for leaf in jax.tree.leaves((again.carry.s_tilde, again.carry.theta_tilde)))
    else:
        assert_same(again.carry, fresh.carry)
    assert_same(again.params, run.params)
    assert_same(again.opt_state, run.opt_state)
    assert int(again.steps) == 5
    assert_same(learner.reset(run, when=False), run)


@pytest.mark.usefixtures("x64")
def test_resets_inside_a_chunk():
    learner = online(uoro(CELL.transition, cross_entropy), optax.adam(1e-2))
    run, _, _ = learner.scan(start(learner), XS[:7], TARGETS[:7])
    by_hand, losses, _ = learner.scan(learner.reset(run), XS[7:20], TARGETS[7:20])
    resets = np.arange(20) == 7
    inside, all_losses, _ = learner.scan(start(learner), XS[:20], TARGETS[:20], resets=resets)
    assert_same(inside, by_hand, tolerance=1e-9)
    np.testing.assert_allclose(all_losses[7:], losses, rtol=1e-9)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name",
    [
        "parallel of average",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("parallel", "average of parallel")),
    ],
)
def test_resets_per_stream(name):
    base = uoro(CELL.transition, cross_entropy)
    estimator, axis = {
        "parallel": (parallel(base, 2), 0),
        "parallel of average": (parallel(average(base, 3), 2), 0),
        "average of parallel": (average(parallel(base, 2), 3), 1),
    }[name]
    learner = online(estimator, optax.adam(1e-2))
    state = jnp.stack([CELL.initial_state()] * 2)
    run = learner.init(CELL.init(jax.random.key(8)), state, jax.random.key(0))
    xs, targets = XS.reshape(-1, 2)[:6], TARGETS.reshape(-1, 2)[:6]
    run, _, _ = learner.scan(run, xs, targets)
    after = learner.reset(run, when=np.array([False, True]))
    assert_same(after.state[0], run.state[0])
    assert_same(after.state[1], CELL.initial_state())
    kept, gone = (jax.tree.map(lambda leaf, i=i: leaf.take(i, axis), after.carry.theta_tilde) for i in (0, 1))
    assert_same(kept, jax.tree.map(lambda leaf: leaf.take(0, axis), run.carry.theta_tilde))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gone))
    resets = np.zeros((6, 2), bool)
    resets[0] = [False, True]
    inside, _, _ = learner.scan(run, xs, targets, resets=resets)
    by_hand, _, _ = learner.scan(after, xs, targets)
    assert_same(inside, by_hand, tolerance=1e-9)


# Late targets


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("delay", [0, 3])
def test_targets_may_come_late(delay):
    learner = online(uoro(CELL.transition, cross_entropy), optax.adam(1e-2))
    late, outputs, estimates = start(learner), [], []
    for i, x in enumerate(XS[:12]):
        late, output = learner.predict(late, x)
        outputs.append(output)
        if i >= delay:
            late, estimate = learner.learn(late, TARGETS[i - delay])
            estimates.append(estimate)
        assert len(late.pending) == min(i + 1, delay)
    for i in range(12 - delay, 12):
        late, estimate = learner.learn(late, TARGETS[i])
        estimates.append(estimate)
    prompt, losses, _ = learner.scan(start(learner), XS[:12], TARGETS[:12])
    assert_same(late, prompt, tolerance=1e-9)
    np.testing.assert_allclose([estimate.loss for estimate in estimates], losses, rtol=1e-9)
    if delay == 0:
        np.testing.assert_allclose(outputs, [estimate.output for estimate in estimates], rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_predictions_see_every_input_at_once(learner):
    """Predictions made while targets are missing are the model's, after all inputs so far."""
    run = start(learner)
    state = run.state
    for x in XS[:5]:
        run, output = learner.predict(run, x)
        state, expected = CELL.transition(run.params, state, x)
        np.testing.assert_allclose(output, expected, rtol=1e-12)
    assert int(run.steps) == 0


# Compilation and composition


def test_one_compilation_per_shape():
    traces = []

    def counted(params, state, x):
        traces.append(None)
        return CELL.transition(params, state, x)

    learner = online(uoro(counted, cross_entropy), optax.adam(inverse_sqrt(1e-2)))

    def traced_by(run, call, *inputs):
        """Return how often the model is traced in the first call, and in three more calls with the same shapes."""
        traces.clear()
        run, *_ = call(run, *inputs)
        first = len(traces)
        for _ in range(3):
            run, *_ = call(run, *inputs)
        return run, first, len(traces) - first

    run, first, later = traced_by(start(learner), learner.scan, XS[:10], TARGETS[:10])
    assert (first, later) == (1, 0)
    run, first, later = traced_by(run, learner.step, XS[0], TARGETS[0])
    assert (first, later) == (1, 0)
    run, first, later = traced_by(learner.reset(run), learner.scan, XS[:20], TARGETS[:20])
    assert first <= 1  # JAX may have cached the body of the loop
    assert later == 0
    run, first, later = traced_by(run, learner.predict, XS[0])
    assert (first, later) == (1, 0)
    run, first, later = traced_by(run, learner.learn, TARGETS[0])
    assert (first, later) == (0, 0)
    run, first, later = traced_by(run, learner.scan, XS[:10], TARGETS[:10])
    assert (first, later) == (0, 0)


def test_weakly_typed_initial_states_compile_once():
    traces = []

    def counted(params, state, x):
        traces.append(None)
        return params["w"] * state + x, params["w"] * 1.0

    learner = online(uoro(counted, squared_error), optax.sgd(0.1))
    run = learner.init({"w": jnp.asarray(0.5)}, jnp.asarray(0.0), jax.random.key(0))
    for _ in range(3):
        run, _ = learner.step(run, 1.0, 1.0)
    assert len(traces) == 1


def test_learners_can_be_vmapped_over_seeds(learner):
    params = CELL.init(jax.random.key(8))
    runs = jax.vmap(lambda key: learner.init(params, CELL.initial_state(), key))(jax.random.split(jax.random.key(1), 3))
    _, losses, _ = jax.vmap(lambda run: learner.scan(run, XS, TARGETS))(runs)
    assert losses.shape == (3, 40)
    second = jax.tree.map(lambda leaf: leaf[1], runs)
    assert_same(losses[1], learner.scan(second, XS, TARGETS)[1], tolerance=1e-4)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.sgd(0.1),
        optax.adagrad(0.1),
        optax.adamw(1e-2),
        optax.lion(1e-3),
        optax.chain(optax.clip_by_global_norm(1.0), optax.rmsprop(1e-2)),
    ],
    ids=["sgd", "adagrad", "adamw", "lion", "clipped rmsprop"],
)
def test_any_optax_optimizer(optimizer):
    learner = online(bptt(CELL.transition, cross_entropy), optimizer)
    run, losses, _ = learner.scan(start(learner), XS, TARGETS)
    assert np.all(np.isfinite(losses))
    with pytest.raises(AssertionError):
        assert_same(run.params, start(learner).params)


def test_an_estimator_needs_its_model():
    full = bptt(CELL.transition, cross_entropy)
    with pytest.raises(TypeError, match="model"):
        norewind.core.Estimator(full.init, full.step)  # pyright: ignore[reportCallIssue]
