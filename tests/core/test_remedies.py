"""L2 to the initialisation and continual backprop, against their recursions written out slowly."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from norewind import adam, cells, losses, online
from norewind.core import structure_of
from norewind.core.remedies import continual_backprop, l2_to_start
from norewind.estimators import snap1

SIZE, STEPS = 3, 40
ROW = np.arange(SIZE)
CELL = cells.mingru(2, SIZE, 2)


def reads(params):
    return {**dict.fromkeys(params), "readout": {"weight": ROW, "bias": None}}


def fresh(key):
    return jax.tree.map(lambda leaf: leaf + jax.random.uniform(key), CELL.init(jax.random.key(3)))


@pytest.mark.usefixtures("x64")
def test_without_a_gradient_the_weights_return_to_their_start():
    optimizer = optax.chain(l2_to_start(0.5), optax.sgd(0.1))
    start, moved = {"w": jnp.array([1.0, -2.0])}, {"w": jnp.array([3.0, 0.5])}
    state, params = optimizer.init(start), moved
    for _ in range(10):
        updates, state = optimizer.update({"w": jnp.zeros(2)}, state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(params["w"], start["w"] + 0.95**10 * (moved["w"] - start["w"]), rtol=1e-12)


def slow_continual(grads, hiddens, key, rate, maturity, decay):
    """The published procedure with SGD and momentum, unit by unit."""
    params = jax.tree.map(np.array, CELL.init(jax.random.key(0)))
    momentum = jax.tree.map(np.zeros_like, params)
    utility, age, due, replaced = [0.0] * SIZE, [0] * SIZE, 0.0, []
    for grad, hidden in zip(grads, hiddens, strict=True):
        for i in range(SIZE):
            outgoing = np.abs(params["readout"]["weight"][:, i]).sum()
            utility[i] = decay * utility[i] + (1 - decay) * abs(hidden[i]) * outgoing
            age[i] += 1
        mature = [i for i in range(SIZE) if age[i] > maturity]
        due += rate * len(mature)
        key, draw = jax.random.split(key)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grad)
        params = jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum)
        if due >= 1 and mature:
            worst = min(mature, key=lambda i: utility[i])
            new = fresh(draw)
            for name in ("input", "bias"):
                for column in (worst, SIZE + worst):  # gate and candidate
                    params[name][..., column] = np.asarray(new[name])[..., column]
                    momentum[name][..., column] = 0
            params["readout"]["weight"][:, worst] = 0
            momentum["readout"]["weight"][:, worst] = 0
            utility[worst], age[worst], due = 0.0, 0, due - 1
            replaced.append(worst)
    return params, replaced


@pytest.mark.usefixtures("x64")
def test_continual_backprop_is_the_published_procedure():
    rng, settings = np.random.default_rng(0), {"rate": 0.1, "maturity": 15, "decay": 0.8}
    hiddens = rng.normal(size=(STEPS, SIZE)) * [1.0, 0.1, 2.0]
    start = CELL.init(jax.random.key(0))
    grads = [jax.tree.map(lambda leaf: 0.1 * rng.normal(size=leaf.shape), start) for _ in range(STEPS)]
    key = jax.random.key(7)
    wanted, replaced = slow_continual(grads, hiddens, key, **settings)
    assert len(replaced) > 2
    assert len(set(replaced)) > 1
    optimizer = continual_backprop(
        optax.sgd(0.1, momentum=0.9),
        fresh=fresh,
        feeds=structure_of(CELL.transition).units,
        reads=reads,
        key=key,
        **settings,
    )

    def step(loop, inputs):
        params, state = loop
        grad, hidden = inputs
        updates, state = optimizer.update(grad, state, params, model_state=hidden)
        return (optax.apply_updates(params, updates), state), None

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *grads)
    (got, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), (stacked, hiddens))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), got, wanted)


def test_in_a_learner_it_sees_the_state_and_replaces_the_dead_unit():
    """A unit that nobody reads is the least useful: it is the one replaced."""
    optimizer = continual_backprop(
        adam(1e-3),
        fresh=fresh,
        feeds=structure_of(CELL.transition).units,
        reads=reads,
        key=jax.random.key(1),
        rate=0.01,
        maturity=20,
    )
    learner = online(snap1(CELL.transition, losses.cross_entropy), optimizer)
    params = CELL.init(jax.random.key(2))
    params["readout"]["weight"] = params["readout"]["weight"].at[:, 1].set(1e-6)
    run = learner.init(params, CELL.initial_state(), jax.random.key(1))
    symbols = np.random.default_rng(0).integers(0, 2, 60)
    run, _, _ = learner.scan(run, symbols[:-1], symbols[1:])
    ages = run.opt_state.age
    assert int(jnp.argmin(ages)) == 1
    assert int(ages[1]) < 59 == int(ages[0]) == int(ages[2])


def test_what_they_need_is_named():
    with pytest.raises(ValueError, match="l2_to_start needs the parameters"):
        l2_to_start(0.1).update(jnp.zeros(2), jnp.zeros(2))
    optimizer = continual_backprop(
        optax.sgd(0.1), fresh=fresh, feeds=lambda p: {"w": ROW}, reads=lambda p: {"w": None}, key=jax.random.key(0)
    )
    with pytest.raises(ValueError, match="needs the parameters and model_state="):
        optimizer.update({"w": ROW}, optimizer.init({"w": jnp.zeros(3)}))
