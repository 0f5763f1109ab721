"""Adam, with fewer divisions than optax's, and learning rates that depend on the number of samples seen."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax

from norewind.trees import Tree


def adam(
    learning_rate: optax.ScalarOrSchedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformationExtraArgs:
    """`optax.adam`, the same to rounding and with the same state, and faster.

    With t counting updates, m and v the moments, it writes the bias corrections as

        a = √(1 − b2ᵗ) / (1 − b1ᵗ)        θ ← θ − rate · a · m / (√v + eps · √(1 − b2ᵗ))

    while optax divides every element of m and of v by its correction. When the
    parameters change at every sample, these divisions are a good part of the work.
    `learning_rate` is a number or a schedule, `b1` and `b2` are the decays of the moments,
    and `eps` keeps the divisor above zero.

    Reference: Kingma & Ba, Adam (2015), the end of section 2.

    >>> import jax.numpy as jnp
    >>> optimizer = adam(0.1)
    >>> updates, state = optimizer.update(jnp.array([3.0, -2.0]), optimizer.init(jnp.zeros(2)))
    >>> updates.round(3).tolist()
    [-0.10000000149011612, 0.10000000149011612]
    """
    init = optax.scale_by_adam().init

    def update(updates, state, params=None):
        del params
        mu = optax.tree.update_moment(updates, state.mu, b1, 1)
        nu = optax.tree.update_moment_per_elem_norm(updates, state.nu, b2, 2)
        count = optax.safe_increment(state.count)
        correction = jnp.sqrt(1 - b2**count)
        scale, shift = correction / (1 - b1**count), eps * correction

        def direction(m, v):
            return scale.astype(m.dtype) * m / (jnp.sqrt(v) + shift.astype(v.dtype))

        new = state._replace(count=count, mu=mu, nu=optax.tree.cast_like(nu, state.nu))
        return jax.tree.map(direction, mu, nu), new

    return optax.chain(optax.GradientTransformation(init, update), optax.scale_by_learning_rate(learning_rate))


def inverse_sqrt(rate: float, alpha: float = 1.0) -> optax.Schedule:
    """The paper's learning rate, rate / (1 + α √t), with t the number of samples processed.

    >>> schedule = inverse_sqrt(1e-3, alpha=0.03)
    >>> round(float(schedule(10_000)), 6)
    0.00025
    """
    return lambda count: rate / (1 + alpha * jnp.sqrt(jnp.asarray(count)))


def scale_members(rates: Sequence[float]) -> optax.GradientTransformation:
    """Multiply the updates of each member of an ensemble by a learning rate of its own.

    >>> import jax.numpy as jnp, optax
    >>> optimizer = optax.chain(adam(1.0), scale_members([0.1, 0.01]))
    >>> updates, _ = optimizer.update(jnp.ones((2, 1)), optimizer.init(jnp.zeros((2, 1))))
    >>> [round(update, 3) for update in updates.ravel().tolist()]
    [-0.1, -0.01]
    """

    def scaled(leaf):
        real = jnp.finfo(leaf.dtype).dtype
        return jnp.asarray(rates, real).reshape(-1, *(1,) * (leaf.ndim - 1)) * leaf

    return optax.stateless(lambda updates, params: jax.tree.map(scaled, updates))


def at_sample(optimizer_state: Tree, samples: jax.Array) -> Tree:
    """An optax state with its schedules set to this number of samples.

    optax counts updates, but a window of T samples makes one update and moves time by T.
    """

    def is_schedule(node):
        # The optax states that hold the argument of a schedule.
        return type(node).__name__ in ("ScaleByScheduleState", "WrappedScheduleState")

    def move(node):
        return node._replace(count=samples.astype(node.count.dtype)) if is_schedule(node) else node

    return jax.tree.map(move, optimizer_state, is_leaf=is_schedule)
