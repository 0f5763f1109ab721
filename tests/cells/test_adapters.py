"""Adapters of other libraries equal the library's own cells, and every estimator trains them."""

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from alike import assert_same
from flax import nnx
from quick import slow_but

from norewind import cells, online, uoro
from norewind.core.losses import cross_entropy
from norewind.testing import example

ONE_HOT = jnp.eye(3)
EQUINOX = {"gru": eqx.nn.GRUCell, "lstm": eqx.nn.LSTMCell}
FLAX = {"gru": nnx.GRUCell, "lstm": nnx.LSTMCell, "optimised lstm": nnx.OptimizedLSTMCell, "rnn": nnx.SimpleCell}
HAIKU = {"gru": hk.GRU, "lstm": hk.LSTM, "rnn": hk.VanillaRNN}


def states_of(cell, params, symbols):
    state, states = cell.initial_state(), []
    for symbol in symbols:
        state, _ = cell.transition(params, state, jnp.array(symbol))
        states.append(state)
    return states


@pytest.mark.parametrize("name", EQUINOX)
def test_equinox_cells_are_the_library_s_own(name):
    cell = cells.from_equinox(lambda key: EQUINOX[name](3, 4, key=key), 3, 2)
    key = jax.random.key(1)
    params = cell.init(key)
    module = EQUINOX[name](3, 4, key=jax.random.split(key)[0])
    state, expected = cell.initial_state(), []
    for symbol in (0, 2, 1):
        state = module(ONE_HOT[symbol], state)
        expected.append(state)
    assert_same(states_of(cell, params, (0, 2, 1)), expected, 1e-6, absolute=1e-7)


@pytest.mark.parametrize("name", FLAX)
def test_flax_cells_are_the_library_s_own(name):
    cell = cells.from_flax(lambda rngs: FLAX[name](3, 4, rngs=rngs), 3, 2)
    key = jax.random.key(1)
    params = cell.init(key)
    module = FLAX[name](3, 4, rngs=nnx.Rngs(jax.random.split(key)[0]))
    state, expected = module.initialize_carry((3,), rngs=nnx.Rngs(0)), []
    for symbol in (0, 2, 1):
        state, _ = module(state, ONE_HOT[symbol])
        expected.append(state)
    assert_same(states_of(cell, params, (0, 2, 1)), expected, 1e-6, absolute=1e-7)


@pytest.mark.parametrize("name", HAIKU)
def test_haiku_cells_are_the_library_s_own(name):
    cell = cells.from_haiku(lambda: HAIKU[name](4), 3, 2)
    params = cell.init(jax.random.key(1))

    def unroll(xs):
        core = HAIKU[name](4)
        state, states = core.initial_state(None), []
        for x in xs:
            _, state = core(x, state)
            states.append(state)
        return states

    expected = hk.transform(unroll).apply(params["cell"], None, ONE_HOT[jnp.array([0, 2, 1])])
    assert_same(states_of(cell, params, (0, 2, 1)), expected, 1e-6, absolute=1e-7)


@pytest.mark.parametrize("library", slow_but(["equinox", "flax", "haiku", "stack"], "equinox"))
def test_uoro_trains_them_all_unchanged(library):
    cell = {
        "equinox": lambda: cells.from_equinox(lambda key: eqx.nn.GRUCell(3, 8, key=key), 3, 3),
        "flax": lambda: cells.from_flax(lambda rngs: nnx.GRUCell(3, 8, rngs=rngs), 3, 3),
        "haiku": lambda: cells.from_haiku(lambda: hk.GRU(8), 3, 3),
        "stack": lambda: cells.stack(cells.gru(3, 4, 4), cells.lstm(4, 4, 3, symbols=False)),
    }[library]()
    learner = online(uoro(cell.transition, cross_entropy), optax.adam(1e-2))
    run = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    pattern = np.tile([0, 1, 2, 1], 300).astype(np.int32)
    _, losses, _ = learner.scan(run, pattern[:-1], pattern[1:])
    assert losses[-100:].mean() < 0.6 * losses[:100].mean()


def test_uoro_trains_the_user_made_model():
    model = example("user_made")
    learner = online(uoro(model.transition, model.loss), optax.adam(1e-2))
    run = learner.init(model.params, model.state, jax.random.key(0))
    time = np.arange(2000, dtype=np.float32)
    run, losses, _ = learner.scan(run, {"signal": np.sin(time)}, np.cos(time))
    assert losses[-200:].mean() < 0.6 * losses[:200].mean()
    assert int(run.state["clock"]["ticks"]) == 2000


def test_an_equinox_module_of_unknown_state_asks_for_it():
    class Leaky(eqx.Module):
        weight: jax.Array

        def __call__(self, x, state):
            return 0.9 * state + self.weight @ x

    def make(key):
        return Leaky(jax.random.normal(key, (4, 3)))

    with pytest.raises(ValueError, match="does not know the state of a Leaky: pass initial_state="):
        cells.from_equinox(make, 3, 2).initial_state()
    cell = cells.from_equinox(make, 3, 2, initial_state=lambda: jnp.zeros(4))
    state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    assert (state.shape, output.shape) == ((4,), (2,))
