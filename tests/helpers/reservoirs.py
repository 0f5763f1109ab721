"""Small reservoirs on a short signal."""

import jax
import jax.numpy as jnp
import numpy as np

from norewind import cells
from norewind.core import losses
from norewind.testing import Example


def signal(cell, name, length=4):
    xs = np.sin(1.0 + np.arange(length))[:, None]
    params = jax.jit(cell.init)(jax.random.key(2))
    # A readout that starts at zero would hide mistakes.
    params = jax.tree.map(
        lambda leaf: leaf + 0.1 * jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape), params
    )
    state = jax.tree.map(lambda leaf: leaf + jnp.asarray(0.3).astype(leaf.dtype), cell.initial_state())
    return Example(
        name,
        params,
        state,
        cell.transition,
        losses.squared_error,
        xs.astype(params["bias"].dtype),
        np.cos(2 * xs).astype(params["bias"].dtype),
    )


def reservoir():
    return signal(cells.reservoir(1, 6, 1, sparsity=0.5, leak=0.7), "reservoir")


def liquid():
    return signal(cells.liquid(1, 8, 1, sparsity=0.5, input_scaling=2.0), "liquid")


def feedback():
    example = signal(cells.feedback_reservoir(1, 4, 2, sparsity=0.5, leak=0.7, feedback=0.5), "feedback")
    return example._replace(targets=np.concatenate([example.targets, np.sin(3 * example.xs)], axis=1))
