"""Adam, with fewer divisions than optax's, and learning rates that depend on the number of samples seen."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax

from norewind.core.trees import Tree, square_root

# The optax states that hold the argument of a schedule. (optax does not export the second class by name.) Only a shape
# is evaluated here: to run anything would start JAX before `engines/compilation.py` can configure it.
SCHEDULE_STATES = (
    optax.ScaleByScheduleState,
    type(jax.eval_shape(optax.schedules.WrappedSchedule(lambda count: count).init)),
)


def adam(
    learning_rate: optax.ScalarOrSchedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformationExtraArgs:
    """Adam: `optax.adam` with the same state and, up to rounding, the same result, but faster.

    With t counting updates, m and v the moments, it writes the bias corrections as

        a = √(1 − b2ᵗ) / (1 − b1ᵗ)        θ ← θ − rate · a · m / (√v + eps · √(1 − b2ᵗ))

    while optax divides every element of m and of v by its correction. When the
    parameters change at every sample, these divisions are a good part of the work.

    Reference: Kingma & Ba, Adam (2015), the end of section 2.

    Args:
        learning_rate: a number, or a schedule such as `inverse_sqrt`.
        b1: the decay of the first moment.
        b2: the decay of the second moment.
        eps: keeps the divisor above zero.

    Returns:
        The optimizer, an optax gradient transformation.

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
            return scale.astype(m.dtype) * m / (square_root(v) + shift.astype(v.dtype))

        new = state._replace(count=count, mu=mu, nu=optax.tree.cast_like(nu, state.nu))
        return jax.tree.map(direction, mu, nu), new

    return optax.chain(optax.GradientTransformation(init, update), optax.scale_by_learning_rate(learning_rate))


def inverse_sqrt(rate: float, alpha: float = 1.0) -> optax.Schedule:
    """Return the paper's learning rate, rate / (1 + α √t), with t the number of samples processed.

    Args:
        rate: the learning rate at the first sample.
        alpha: α, the speed of the decay.

    Returns:
        A schedule, a function of the number of samples.

    >>> schedule = inverse_sqrt(1e-3, alpha=0.03)
    >>> round(float(schedule(10_000)), 6)
    0.00025
    """
    return lambda count: rate / (1 + alpha * jnp.sqrt(jnp.asarray(count)))


def scale_members(rates: Sequence[float]) -> optax.GradientTransformation:
    """Multiply the updates of each member of an ensemble by its own learning rate.

    Args:
        rates: one learning rate per member.

    Returns:
        An optax gradient transformation, to be chained after an optimizer.

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


def at_sample(opt_state: Tree, samples: jax.Array) -> Tree:
    """Set the schedules in an optax state to a number of samples.

    optax counts updates, but a window of T samples makes one update and moves time by T.

    Args:
        opt_state: the state of an optax optimizer.
        samples: the number of samples processed so far.

    Returns:
        The same state with the counts of its schedules replaced.
    """

    def is_schedule(node):
        return isinstance(node, SCHEDULE_STATES)

    def move(node):
        return node._replace(count=samples.astype(node.count.dtype)) if is_schedule(node) else node

    return jax.tree.map(move, opt_state, is_leaf=is_schedule)
