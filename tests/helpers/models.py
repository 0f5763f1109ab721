"""Models of other libraries and unusual models, as examples for the proofs."""

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from norewind import cells
from norewind.core import losses
from norewind.testing import Example

LENGTH = 4


def _symbols(name, cell):
    symbols = np.random.default_rng(5).integers(0, 3, LENGTH + 1).astype(np.int32)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, float), jax.jit(cell.init)(jax.random.key(6)))
    state = jax.tree.map(lambda leaf: np.asarray(leaf, float) + 0.2, cell.initial_state())
    return Example(name, params, state, cell.transition, losses.cross_entropy, symbols[:-1], symbols[1:])


def equinox_gru():
    return _symbols("equinox_gru", cells.from_equinox(lambda key: eqx.nn.GRUCell(3, 2, key=key), 3, 3))


def equinox_lstm():
    return _symbols("equinox_lstm", cells.from_equinox(lambda key: eqx.nn.LSTMCell(3, 1, key=key), 3, 3))


def flax_gru():
    return _symbols("flax_gru", cells.from_flax(lambda rngs: nnx.GRUCell(3, 2, rngs=rngs, param_dtype=float), 3, 3))


def flax_lstm():
    make = lambda rngs: nnx.OptimizedLSTMCell(3, 1, rngs=rngs, param_dtype=float)  # noqa: E731
    return _symbols("flax_lstm", cells.from_flax(make, 3, 3))


def haiku_gru():
    return _symbols("haiku_gru", cells.from_haiku(lambda: hk.GRU(2), 3, 3))


def haiku_lstm():
    return _symbols("haiku_lstm", cells.from_haiku(lambda: hk.LSTM(1), 3, 3))


def complex_recurrence():
    """A complex diagonal recurrence with complex parameters, not holomorphic: conjugates and moduli inside."""

    def transition(params, state, x):
        z = params["decay"] * state["z"] + params["gain"] * x * jnp.conj(state["z"])[::-1] + 0.5 * x
        z = z / jnp.sqrt(1 + jnp.abs(z) ** 2)
        return {"z": z, "count": state["count"] + 1}, jnp.real(params["out"] @ z)

    params = {
        "decay": jnp.array([0.9 + 0.2j]),
        "gain": jnp.array([0.3 - 0.4j]),
        "out": jnp.array([0.6 + 0.8j]),
    }
    state = {"z": jnp.array([0.2 + 0.1j]), "count": jnp.array(0)}
    xs = jnp.sin(1.0 + jnp.arange(LENGTH))
    return Example("complex", params, state, transition, lambda o, t: (o - t) ** 2, xs, jnp.cos(xs))


@jax.custom_vjp
def _spike(v):
    return jnp.where(v > 0, 1.0, 0.0)


_spike.defvjp(lambda v: (_spike(v), v), lambda v, c: (c / (1 + 10 * v**2),))


def surrogate_spikes():
    """A spiking unit with a surrogate gradient: its reverse rule is not the derivative of what it computes."""

    def transition(params, v, x):
        spikes = _spike(v - 0.3)
        v = 0.8 * v - spikes * params["reset"] + params["mix"] @ spikes + params["gain"] * x
        return v, params["out"] @ _spike(v - 0.3)

    params = {
        "reset": jnp.array(0.4),
        "mix": jnp.array([[0.1, 0.5], [-0.4, 0.2]]),
        "gain": jnp.array([0.7, 0.5]),
        "out": jnp.array([1.0, 0.6]),
    }
    xs = jnp.array([0.5, 0.9, 0.1, 0.7])
    return Example("surrogate", params, jnp.array([0.1, 0.4]), transition, lambda o, t: (o - t) ** 2, xs, xs[::-1])


def checkpointed():
    """A model that recomputes its activations instead of storing them."""
    cell = cells.gru(3, 2, 3)
    return _symbols("checkpointed", cell._replace(transition=jax.checkpoint(cell.transition)))


LIBRARIES = [equinox_gru, equinox_lstm, flax_gru, flax_lstm, haiku_gru, haiku_lstm]
ODD = [complex_recurrence, surrogate_spikes, checkpointed]
