"""TD(λ): the update over an episode is that of the λ-return, for any cell, with resets, and on every path of noise."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import structured
from alike import assert_same

from norewind import cells, losses, online, parallel, rtrl, td, uoro
from norewind.core import ModelError, Outcome
from norewind.testing import path_signs, sign_paths

STEPS, DECAY = 7, 0.8


def episode(cell, steps=STEPS, actions=0):
    """A cell with one value (and logits), inputs, rewards, and discounts that end the episode after the last one."""
    model = structured.from_cell("value", cell, steps, symbols=False)
    rng = np.random.default_rng(5)
    xs, rewards = rng.normal(size=(steps + 1, 3)), rng.normal(size=steps)
    discounts = np.append(rng.uniform(0.6, 1, steps - 1), 0)
    chosen = rng.integers(0, actions, steps) if actions else None
    return model, xs, Outcome(rewards, discounts, xs[1:], chosen)


def updates_of(estimator, model, xs, targets, carry=None):
    """δ_t e_t for frozen parameters."""

    def body(loop, inputs):
        state, carry, estimate = estimator.step(model.params, *loop, *inputs)
        return (state, carry), jax.tree.map(jnp.negative, estimate.grad)

    if carry is None:
        carry = estimator.init(model.params, model.state, jax.random.key(0))
    return jax.jit(lambda carry: jax.lax.scan(body, (model.state, carry), (xs, targets))[1])(carry)


def by_lambda_returns(model, xs, targets, decay, slope_of=lambda outputs: outputs[..., 0]):
    """Σ (G_t^λ − v_t) ∂v_t/∂θ: each return by its definition, from the values that follow, and BPTT for the slopes."""

    def outputs(params):
        return jax.lax.scan(lambda s, x: model.transition(params, s, x), model.state, xs)[1]

    values = np.asarray(outputs(model.params)[:, 0])
    slopes = jax.jacrev(lambda params: slope_of(outputs(params)[:-1]))(model.params)
    rewards, discounts = np.asarray(targets.reward), np.asarray(targets.discount)
    steps = len(rewards)
    errors = []
    for t in range(steps):
        weighted, reward, factor, weight = 0.0, 0.0, 1.0, 1.0
        for n in range(t, steps):  # the return after n − t + 1 rewards
            reward += factor * rewards[n]
            factor *= discounts[n]
            share = weight if n == steps - 1 else weight * (1 - decay)
            weighted += share * (reward + factor * values[n + 1])
            weight *= decay
        errors.append(weighted - values[t])
    return jax.tree.map(lambda slope: jnp.tensordot(np.array(errors), slope, 1), slopes)


CELLS = {
    "gru": lambda: cells.gru(3, 3, 1, symbols=False),
    "lstm": lambda: cells.lstm(3, 2, 1, symbols=False),
    "lru": lambda: cells.lru(3, 2, 1, symbols=False),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "decay"),
    [
        ("gru", DECAY),
        *(pytest.param("gru", decay, marks=pytest.mark.slow) for decay in (0.0, 1.0)),
        *(pytest.param(name, decay, marks=pytest.mark.slow) for name in ("lstm", "lru") for decay in (0.0, DECAY, 1.0)),
    ],
)
def test_the_updates_of_an_episode_add_up_to_those_of_the_lambda_return(name, decay):
    model, xs, targets = episode(CELLS[name]())
    estimator = td(rtrl(model.transition, losses.value), decay=decay)
    got = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), updates_of(estimator, model, xs[:-1], targets))
    assert_same(got, by_lambda_returns(model, xs, targets, decay), absolute=1e-10)


@pytest.mark.usefixtures("x64")
def test_an_episode_that_does_not_end_is_completed_by_the_last_value():
    model, xs, targets = episode(CELLS["gru"]())
    targets = targets._replace(discount=np.full(STEPS, 0.9))
    estimator = td(rtrl(model.transition, losses.value), decay=DECAY)
    got = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), updates_of(estimator, model, xs[:-1], targets))
    assert_same(got, by_lambda_returns(model, xs, targets, DECAY), absolute=1e-10)


@pytest.mark.usefixtures("x64")
def test_with_uoro_the_mean_over_every_path_of_the_noise_is_exact():
    model, xs, targets = episode(cells.rnn(3, 2, 1, symbols=False), 4)
    exact = updates_of(td(rtrl(model.transition, losses.value), decay=DECAY), model, xs[:-1], targets)
    estimator = td(uoro(model.transition, losses.value, noise=path_signs), decay=DECAY)
    carry = estimator.init(model.params, model.state, jax.random.key(0))
    paths = sign_paths(carry, 2 * 3)
    every = jax.vmap(lambda carry: updates_of(estimator, model, xs[:-1], targets, carry))(paths)
    assert_same(jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), every), exact, absolute=1e-10)
    one = jax.tree.map(lambda leaf: leaf[0], every)
    assert not np.allclose(one["recurrent"], exact["recurrent"])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("entropy", [0.0, 0.3])
def test_the_actor_follows_the_policy_gradient_and_the_critic_td(entropy):
    """By hand: δ_t times the sums of γλ-decayed gradients of v, log π(a) and, with the sign of δ, the entropy."""
    model, xs, targets = episode(cells.gru(3, 2, 4, symbols=False), actions=3)
    estimator = td(rtrl(model.transition, losses.actor_critic(entropy)), decay=DECAY)
    got = updates_of(estimator, model, xs[:-1], targets)

    def outputs(params):
        return jax.lax.scan(lambda s, x: model.transition(params, s, x), model.state, xs)[1]

    values = np.asarray(outputs(model.params)[:, 0])
    deltas = targets.reward + targets.discount * values[1:] - values[:-1]

    def parts(params):
        out = outputs(params)[:-1]
        policy = jax.nn.softmax(out[:, 1:])
        chosen = jnp.log(policy)[jnp.arange(STEPS), targets.action]
        return out[:, 0] + chosen - entropy * np.sign(deltas) * jnp.sum(policy * jnp.log(policy), axis=1)

    slopes = jax.jacrev(parts)(model.params)
    trace, wanted = jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:]), slopes), []
    for t in range(STEPS):
        factor = DECAY * targets.discount[t - 1] if t else 0.0
        trace = jax.tree.map(lambda e, slope, t=t, factor=factor: factor * e + slope[t], trace, slopes)
        wanted.append(jax.tree.map(lambda e, t=t: deltas[t] * e, trace))
    assert_same(got, jax.tree.map(lambda *leaves: np.stack(leaves), *wanted), absolute=1e-10)


def sample_run(estimator, state_of=lambda state: state):
    model, xs, targets = episode(CELLS["gru"](), 12)
    learner = online(estimator(model.transition), optax.sgd(0.05))
    run = learner.init(model.params, state_of(model.state), jax.random.key(1))
    return learner, run, xs[:-1], targets


def test_chunks_single_steps_and_late_targets_learn_the_same():
    learner, run, xs, targets = sample_run(lambda transition: td(uoro(transition, losses.value), decay=DECAY))
    whole, values, _ = learner.scan(run, xs, targets)
    part = lambda i: jax.tree.map(lambda leaf: leaf[i], targets)  # noqa: E731
    single = late = run
    for i, x in enumerate(xs):
        single, estimate = learner.step(single, x, part(i))
        late, prediction = learner.predict(late, x)
        late, _ = learner.learn(late, part(i))
        np.testing.assert_allclose(estimate.output, prediction, rtol=1e-5)
        np.testing.assert_allclose(estimate.loss, values[i], rtol=1e-4, atol=1e-7)
    for other in (single, late):
        assert_same(other.params, whole.params, absolute=1e-5)
    assert not np.allclose(whole.params["readout"]["weight"], run.params["readout"]["weight"])


def test_a_reset_clears_the_trace_and_the_inner_carry():
    estimator = td(uoro(CELLS["gru"]().transition, losses.value), decay=DECAY)
    learner, run, xs, targets = sample_run(lambda transition: estimator)
    after, _, _ = learner.scan(run, xs[:5], jax.tree.map(lambda leaf: leaf[:5], targets))
    assert any(np.any(leaf) for leaf in jax.tree.leaves(after.carry.trace))
    again = learner.reset(after)
    for tree in (again.carry.trace, again.carry.carry.s_tilde, again.carry.carry.theta_tilde):
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(tree))


def test_each_stream_has_its_own_trace():
    """Two streams side by side move the parameters by the mean of what each alone would."""
    model, xs, targets = episode(CELLS["gru"](), 4)
    single = td(rtrl(model.transition, losses.value), decay=DECAY)
    both = parallel(single, 2)
    state = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), model.state)
    carry = both.init(model.params, state, jax.random.key(0))
    twice = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf], axis=1), (xs[:-1], targets))
    got = updates_of(both, model._replace(state=state), *twice, carry)
    alone = [updates_of(single, model._replace(state=sign * model.state), xs[:-1], targets) for sign in (1, -1)]
    assert_same(got, jax.tree.map(lambda a, b: (a + b) / 2, *alone), absolute=1e-4)


def test_invalid_targets_and_estimators_are_rejected():
    cell = CELLS["gru"]()
    estimator = td(uoro(cell.transition, losses.value), decay=0.9)
    params, state = cell.init(jax.random.key(0)), cell.initial_state()
    carry = estimator.init(params, state, jax.random.key(0))
    with pytest.raises(ModelError, match=r"td: the target is a float, but it must be an Outcome\(reward"):
        estimator.step(params, state, carry, jnp.ones(3), 0.5)
    with pytest.raises(ValueError, match="decay must be between 0 and 1, not 1.5"):
        td(uoro(cell.transition, losses.value), decay=1.5)
    with pytest.raises(ModelError, match="td"):
        td(cell, decay=0.5)
