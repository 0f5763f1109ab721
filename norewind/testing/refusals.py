"""Models that every estimator must refuse."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from norewind.estimator import Estimator


def _squares(output, target):
    return jnp.sum((output - target) ** 2)


BAD_MODELS: dict[str, tuple[Callable, Callable, Any, str]] = {
    # what is wrong: (transition, loss, dtype of the parameters, what the error must name)
    "state of another shape": (lambda p, s, x: ({"h": jnp.ones(3)}, p["w"]), _squares, float, "['h']"),
    "state of another dtype": (lambda p, s, x: ({"h": s["h"].astype(int)}, p["w"]), _squares, float, "['h']"),
    "state of another structure": (lambda p, s, x: ({"k": s["h"]}, p["w"]), _squares, float, "['h']"),
    "loss that is not a scalar": (lambda p, s, x: (s, p["w"]), lambda o, t: o - t, float, "loss"),
    "loss that is not floating": (lambda p, s, x: (s, p["w"]), lambda o, t: jnp.array(1), float, "loss"),
    "integer parameters": (lambda p, s, x: (s, x), _squares, int, "['w']"),
}


def check_refusal(make: Callable[..., Estimator], what: str) -> None:
    """Assert that an estimator refuses one of `BAD_MODELS`; `make(transition, loss, x)` builds it."""
    transition, loss, dtype, place = BAD_MODELS[what]
    x, params, state = jnp.ones(2), {"w": jnp.ones(2, dtype)}, {"h": jnp.ones(2)}
    try:
        estimator = make(transition, loss, x)
        carry = estimator.init(params, state, jax.random.key(0))
        jax.eval_shape(estimator.step, params, state, carry, x, x)
    except (TypeError, ValueError) as error:
        assert place in str(error), f"the error for a model with {what} does not name {place}: {error}"
    else:
        raise AssertionError(f"it accepts a model with {what} without an error")
