"""Learning rates that depend on the number of samples seen."""

import jax
import jax.numpy as jnp
import optax

from norewind.trees import Tree

# The optax states that hold the argument of a schedule.
_SCHEDULE_STATES = {"ScaleByScheduleState", "WrappedScheduleState"}


def inverse_sqrt(rate: float, alpha: float = 1.0) -> optax.Schedule:
    """The paper's learning rate, rate / (1 + α √t), with t the number of samples processed.

    >>> schedule = inverse_sqrt(1e-3, alpha=0.03)
    >>> round(float(schedule(10_000)), 6)
    0.00025
    """
    return lambda count: rate / (1 + alpha * jnp.sqrt(jnp.asarray(count)))


def at_sample(optimizer_state: Tree, samples: jax.Array) -> Tree:
    """An optax state with its schedules set to this number of samples.

    optax counts updates, but a window of T samples makes one update and moves time by T.
    """

    def is_schedule(node):
        return type(node).__name__ in _SCHEDULE_STATES

    def move(node):
        return node._replace(count=samples.astype(node.count.dtype)) if is_schedule(node) else node

    return jax.tree.map(move, optimizer_state, is_leaf=is_schedule)
