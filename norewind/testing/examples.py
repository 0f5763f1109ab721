"""Tiny models with a few samples each, small enough to enumerate every path of the noise, and bad models."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from norewind import cells
from norewind.core import losses
from norewind.core.estimator import Loss, Transition
from norewind.core.trees import Tree


class Example(NamedTuple):
    """A model with a few samples.

    Attributes:
        name: the name of the example.
        params: its parameters.
        state: its initial state.
        transition: the model, `transition(params, state, x) -> (new_state, output)`.
        loss: its loss, `loss(output, target)`.
        xs: a few inputs along a leading axis.
        targets: their targets, likewise.
    """

    name: str
    params: Tree
    state: Tree
    transition: Transition
    loss: Loss
    xs: Tree
    targets: Tree


# The models that `check_estimator` uses: three cells, a stack of two, and an unusual user-defined model.
EXAMPLES = ("rnn", "gru", "lstm", "stack", "user_made")


def example(name: str, *, length: int = 4, dtype: DTypeLike = float) -> Example:
    """Return one of `EXAMPLES` by name.

    Args:
        name: one of `EXAMPLES`.
        length: the number of samples.
        dtype: the dtype of parameters and states.

    Raises:
        ValueError: there is no example of this name.

    >>> example("gru").params["bias"].shape
    (6,)
    """
    if name not in EXAMPLES:
        raise ValueError(f"there is no example called {name!r}: choose from {', '.join(EXAMPLES)}.")
    return _example(name, length, jnp.result_type(dtype))


def examples(*, length: int = 4, dtype: DTypeLike = float) -> list[Example]:
    """Return all of `EXAMPLES`.

    Args:
        length: the number of samples of each.
        dtype: the dtype of parameters and states.
    """
    return [example(name, length=length, dtype=dtype) for name in EXAMPLES]


@cache  # the same functions every time, so that compiled programs are reused
def _example(name: str, length: int, dtype) -> Example:
    if name == "user_made":
        return _user_made(length, dtype)
    cell = {
        "rnn": lambda: cells.rnn(3, 2, 3, dtype=dtype),
        "gru": lambda: cells.gru(3, 2, 3, dtype=dtype),
        "lstm": lambda: cells.lstm(3, 1, 3, dtype=dtype),
        "stack": lambda: cells.stack(cells.rnn(3, 1, 2, dtype=dtype), cells.gru(2, 1, 3, symbols=False, dtype=dtype)),
    }[name]()
    symbols = np.random.default_rng(7).integers(0, 3, length + 1).astype(np.int32)
    params = jax.jit(cell.init)(jax.random.key(8))
    # Away from zero, where too many derivatives agree by accident.
    state = jax.jit(lambda: jax.tree.map(lambda leaf: leaf + 0.3, cell.initial_state()))()
    return Example(name, params, state, cell.transition, losses.cross_entropy, symbols[:-1], symbols[1:])


def _user_made(length: int, dtype) -> Example:
    """A model with a nested dict, a counter and a PRNG key in its state, and a scan, a cond and noise inside."""

    def transition(params, state, x):
        fast, slow = state["level"]["fast"], state["level"]["slow"]
        key, draw = jax.random.split(state["clock"]["key"])
        drive = params["in"]["gain"] * x["signal"] + 0.1 * jax.random.normal(draw, (2,), dtype)

        def settle(fast, weight):
            return jnp.tanh(params["mix"] @ fast + weight * drive + slow), None

        fast, _ = jax.lax.scan(settle, fast, jnp.array([1.0, 0.5], dtype))
        slow = jax.lax.cond(
            state["clock"]["ticks"] % 2 == 0,
            lambda: 0.9 * slow + params["leak"] * jnp.sum(fast),
            lambda: jnp.sin(slow) * params["leak"],
        )
        new = {"level": {"fast": fast, "slow": slow}, "clock": {"ticks": state["clock"]["ticks"] + 1, "key": key}}
        return new, {"guess": params["out"] @ fast + slow}

    def loss(output, target):
        return 0.5 * (output["guess"] - target) ** 2

    params = {
        "in": {"gain": jnp.array(0.7, dtype)},
        "mix": jnp.array([[0.8, -0.5], [0.4, 0.6]], dtype),
        "leak": jnp.array(0.5, dtype),
        "out": jnp.array([1.0, -0.8], dtype),
    }
    state = {
        "level": {"fast": jnp.array([0.2, -0.1], dtype), "slow": jnp.array(0.3, dtype)},
        "clock": {"ticks": jnp.array(0, jnp.int32), "key": jax.random.key(3)},
    }
    time = np.arange(length, dtype=dtype)
    return Example("user_made", params, state, transition, loss, {"signal": np.sin(time)}, np.cos(time))


def _squares(output, target):
    return jnp.sum((output - target) ** 2)


# Models that every estimator must reject: (transition, loss, dtype of the parameters, place named by the error).
BAD_MODELS: dict[str, tuple[Callable, Callable, Any, str]] = {
    "state of another shape": (lambda p, s, x: ({"h": jnp.ones(3)}, p["w"]), _squares, float, "['h']"),
    "state of another dtype": (lambda p, s, x: ({"h": s["h"].astype(int)}, p["w"]), _squares, float, "['h']"),
    "state of another structure": (lambda p, s, x: ({"k": s["h"]}, p["w"]), _squares, float, "['h']"),
    "loss that is not a scalar": (lambda p, s, x: (s, p["w"]), lambda o, t: o - t, float, "loss"),
    "loss that is not floating": (lambda p, s, x: (s, p["w"]), lambda o, t: jnp.array(1), float, "loss"),
    "integer parameters": (lambda p, s, x: (s, x), _squares, int, "['w']"),
}
