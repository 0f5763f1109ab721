"""Forecasts of numbers, mixed by how well each expert did recently."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from norewind.chunks import scan_some
from norewind.compilation import compiled_loop

REMEMBERED = 0.99
"""How much of an expert's record is kept from row to row: about the last hundred rows count."""
TRUST = 0.1
"""The weight of a row. Below one, since the errors of overlapping forecasts are similar."""
SLOWEST = 0.01
LEAST_VARIANCE = 1e-6
LARGEST = 100.0


class Weighing(NamedTuple):
    """For every expert and target the variance of its errors, and its record: the lower, the better."""

    variances: jax.Array
    records: jax.Array
    known: jax.Array


def fresh(experts: int, targets: int) -> Weighing:
    parts = np.ones((experts, targets)), np.zeros((experts, targets)), np.zeros(targets, np.int32)
    return Weighing(*map(jax.device_put, parts))


def learned(weighing: Weighing, due: jax.Array, target: jax.Array) -> Weighing:
    """The weighing after a target, which the experts had forecast as `due`. An unknown target is NaN.

    An expert is a Gaussian density with the variance of its errors so far.
    """
    is_known = ~jnp.isnan(target)
    errors = (usable(due) - jnp.where(is_known, target, 0)) ** 2
    known = jnp.minimum(weighing.known + is_known, 1_000_000)
    share = jnp.maximum(1 / (known + 1), SLOWEST)
    variances = jnp.maximum(weighing.variances + share * (errors - weighing.variances), LEAST_VARIANCE)
    records = REMEMBERED * weighing.records + TRUST * (errors / variances + jnp.log(variances))
    new = Weighing(variances, records, known)
    return jax.tree.map(lambda after, before: jnp.where(is_known, after, before), new, weighing)


def mixed(weighing: Weighing, forecasts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of the experts' densities, each with the weight of its record."""
    forecasts = usable(forecasts)
    weights = jax.nn.softmax(-weighing.records / 2, axis=0)
    mean = jnp.sum(weights * forecasts, axis=0)
    return mean, jnp.sum(weights * (weighing.variances + (forecasts - mean) ** 2), axis=0)


def usable(forecasts: jax.Array) -> jax.Array:
    """Forecasts clipped to possible values: an expert that fails must not spoil the others."""
    return jnp.clip(jnp.nan_to_num(forecasts, nan=0.0), -LARGEST, LARGEST)


def row(weighing: Weighing, one: tuple) -> tuple[Weighing, tuple[jax.Array, jax.Array]]:
    """`scan` of one row, `(due, target, forecasts)`."""
    due, target, forecasts = one
    if due is None:
        return learned(weighing, forecasts, target), mixed(weighing, forecasts)
    weighing = learned(weighing, due, target)
    return weighing, mixed(weighing, forecasts)


def _chunk(weighing, due, targets, forecasts, count):
    return scan_some(row, weighing, (due, targets, forecasts), count)


scan = compiled_loop(_chunk)
"""Learn from each row's targets, then mix the forecasts made there: `(weighing, (means, variances))`.

`due` are the forecasts of these targets. If it is None, they are those made at the same
row, and are mixed before anything is learned from it.
"""

forward = jax.jit(lambda weighing, forecasts: jax.vmap(mixed, in_axes=(None, 0))(weighing, forecasts))
