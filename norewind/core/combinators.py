"""Combinators: a window of steps, the average of several carries, many streams or many models at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp

from norewind.core import checks
from norewind.core.estimator import (
    Estimate,
    Estimator,
    Loss,
    Model,
    ReportFn,
    Transition,
    linearise_state,
    sample_counter,
)
from norewind.core.noise import as_key
from norewind.core.structure import Structure, declare, structure_of, with_product
from norewind.core.trees import Tree, where


@dataclass(frozen=True)
class WindowedTransition:
    """T steps of a transition as one step; T is the length of the leading axis of x."""

    transition: Transition

    def __call__(self, params: Tree, state: Tree, x: Tree) -> tuple[Tree, Tree]:
        if checks.common_length("window", x=x) == 0:
            raise checks.ModelError("window: x has length 0, but a window holds at least one step. Skip empty windows.")

        def body(state, x):
            return checks.check_transition_result(self.transition(params, state, x), state)

        return jax.lax.scan(body, state, x)

    @property
    def structure(self) -> Structure:
        """The declarations of a single step that also hold for a window."""
        step = structure_of(self.transition)
        mixing = step.mixing and (lambda product: WindowedTransition(with_product(self.transition, product)))
        units, reads = (step.units, step.reads) if step.elementwise else (None, None)
        return Structure(units, reads=reads, mixing=mixing, sizes=step.sizes, entries=step.entries)

    def samples(self, x: Tree) -> int:
        first = jax.tree.map(lambda leaf: leaf[0], x)
        return checks.common_length("window", x=x) * sample_counter(self.transition)(first)


@dataclass(frozen=True)
class WindowLoss:
    """The sum of the losses of the steps of a window."""

    loss: Loss

    def __call__(self, outputs: Tree, targets: Tree) -> jax.Array:
        checks.common_length("window", x=outputs, target=targets)
        return jnp.sum(jax.vmap(lambda o, t: checks.check_loss_result(self.loss(o, t)))(outputs, targets))


@dataclass(frozen=True)
class StreamsLoss:
    """The mean loss of many streams."""

    loss: Loss

    def __call__(self, outputs: Tree, targets: Tree) -> jax.Array:
        return jnp.mean(jax.vmap(self.loss)(outputs, targets))


def parallel_model(model: Model) -> Model:
    """Return a model of many streams: everything but the parameters gets a leading axis with one entry per stream.

    Args:
        model: the model of one stream.

    Returns:
        The model of all streams.
    """

    def samples(x):
        return model.samples(jax.tree.map(lambda leaf: leaf[0], x))

    transition = jax.vmap(model.transition, in_axes=(None, 0, 0))
    sizes = structure_of(model.transition).sizes
    return Model(declare(transition, sizes=sizes), StreamsLoss(model.loss), samples)


def _ensemble_model(model: Model) -> Model:
    """Several models that read the same stream. Their loss is the sum of the members' losses."""

    def loss(outputs, target):
        return jnp.sum(jax.vmap(model.loss, in_axes=(0, None))(outputs, target))

    return Model(jax.vmap(model.transition, in_axes=(0, 0, None)), loss, model.samples)


def one_step_of(transition: Transition) -> Transition:
    """Return the single-step transition inside all windows; one without a window is returned as it is."""
    while isinstance(transition, WindowedTransition):
        transition = transition.transition
    return transition


def carry_over_window(transition: Transition, advance: Callable) -> Callable:
    """Return a function that updates a carry step by step inside a window.

    Args:
        transition: a single step, or a window of steps.
        advance: `advance(params, state, carry, x) -> (state, carry)` for a single step.

    Returns:
        The same function for the transition; `advance` itself for a single step.
    """
    if not isinstance(transition, WindowedTransition):
        return advance
    inner = carry_over_window(transition.transition, advance)

    def over_window(params, state, carry, x):
        def body(loop, x):
            return inner(params, *loop, x), None

        return jax.lax.scan(body, (state, carry), x)[0]

    return over_window


def influence_over_window(transition: Transition, advance: Callable) -> Callable:
    """Return a function that updates an approximation of the influence at every step inside a window.

    Args:
        transition: a single step, or a window of steps.
        advance: `Influence.advance` for a single step.

    Returns:
        `Influence.advance` for the transition; `advance` itself for a single step.
    """
    single = one_step_of(transition)
    if single is transition:
        return advance

    def one_step(params, state, carry, x):
        point = linearise_state(single, params, state, x)
        return point.state, advance(params, state, carry, x, point)

    return lambda params, state, carry, x, point: carry_over_window(transition, one_step)(params, state, carry, x)[1]


def window(transition: Transition, loss: Loss) -> tuple[Transition, Loss]:
    """T consecutive steps of a model as one step: the paper's Fᵀ. T is the length of the leading axis of x and target.

    The loss of a window is the sum of the losses of its steps. `uoro(*window(transition, loss))`
    is the paper's memory-T UORO (exact within the window, noisy before it), and
    `bptt(*window(transition, loss))` is T-truncated BPTT.

    Reference: Tallec & Ollivier (2017), section "Memory-T UORO and rank-k UORO".

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`.
        loss: the loss of one step, `loss(output, target)`.

    Returns:
        The transition and the loss of a window, in the order in which estimators take them.

    Raises:
        ModelError: `transition` or `loss` is not a function.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.rnn(inputs=3, hidden=4, outputs=3)
    >>> transition, loss = norewind.window(cell.transition, norewind.losses.cross_entropy)
    >>> params = cell.init(jax.random.key(0))
    >>> state, outputs = transition(params, cell.initial_state(), jnp.array([0, 1, 2, 0]))
    >>> outputs.shape
    (4, 3)
    """
    checks.check_model(transition, loss)
    return WindowedTransition(transition), WindowLoss(loss)


def restarting(transition: Transition, initial_state: Tree) -> Transition:
    """A transition that can begin a new sequence at any step, also inside a window: its input is `(x, begins)`.

    Where `begins` is true, the step starts from `initial_state`, and no derivative passes through the old state.
    The resets are part of the model, so every estimator gives the gradient of the sequences. (`learner.reset` and
    `scan(resets=)` forget the past between steps of an estimator instead, which is faster.)

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`.
        initial_state: the state at the beginning of every sequence.

    Returns:
        A transition with the declarations of the given one.

    Raises:
        ModelError: `transition` is a window. Make windows of the result instead.

    >>> import jax.numpy as jnp
    >>> counting = restarting(lambda params, state, x: (state + x, state + x), jnp.zeros(()))
    >>> counts, _ = window(counting, lambda output, target: output)
    >>> begins = jnp.array([False, False, True, False])
    >>> counts((), jnp.array(5.0), (jnp.ones(4), begins))[1].tolist()
    [6.0, 7.0, 1.0, 2.0]
    """
    if isinstance(transition, WindowedTransition):
        raise checks.ModelError("restarting takes a single step. Use window(restarting(transition, state), loss).")

    def restarted(params, state, x):
        x, begins = x
        return transition(params, where(begins, initial_state, state), x)

    declares = any(part is not None for part in structure_of(transition))
    return declare(restarted, like=transition) if declares else restarted


def _mapped(
    estimator: Estimator, size: int, axes: tuple[Any, ...], join: Callable, model: Model, out_axes: Any = 0
) -> Estimator:
    """Several copies of an estimator, computed side by side with `jax.vmap`.

    Args:
        estimator: the estimator of one copy.
        size: the number of copies. Each has its own carry and its own noise.
        axes: the axes along which the parameters, the state, and x and target hold one entry per copy; None for those
            that all copies share.
        join: makes one estimate of the copies' estimates.
        model: the model of all copies.
        out_axes: the axes of the copies in the results of `step`.

    Returns:
        The estimator of all copies.
    """
    params_axis, state_axis, sample_axis = axes

    def init(params, state, key):
        keys = jax.random.split(as_key(key), size)
        return jax.vmap(estimator.init, in_axes=(params_axis, state_axis, 0))(params, state, keys)

    def step(params, state, carry, x, target):
        in_axes = (params_axis, state_axis, 0, sample_axis, sample_axis)
        every = jax.vmap(estimator.step, in_axes, out_axes, axis_size=size)
        state, carry, estimate = every(params, state, carry, x, target)
        return state, carry, join(estimate)

    def reset(params, state, carry, when):
        in_axes = (params_axis, state_axis, 0, sample_axis)
        return jax.vmap(estimator.reset, in_axes, axis_size=size)(params, state, carry, when)

    return Estimator(init, step, model, reset, report=_mean_report(estimator))


def average(estimator: Estimator, r: int) -> Estimator:
    """Average the gradients of r independent carries of an estimator.

    `average(uoro(transition, loss), r)` is rank-r UORO: its variance is r times smaller.
    Everything that does not depend on the carry (the model itself) is computed once.

    Reference: Tallec & Ollivier (2017), section "Memory-T UORO and rank-k UORO".

    Args:
        estimator: the estimator to average.
        r: the number of carries, the rank.

    Returns:
        An estimator whose carry has a leading axis of length r.

    Raises:
        ModelError: `estimator` is not an estimator, `r` is not a whole number above 0, or the estimator's state
            depends on its carry, so that the carries cannot share one evaluation of the model.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.rnn(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.average(norewind.uoro(cell.transition, norewind.losses.cross_entropy), 8)
    >>> carry = estimator.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    >>> carry.s_tilde.shape
    (8, 4)
    """
    checks.check_estimator("average", estimator)
    checks.check_at_least_one("average: r", r)
    if estimator.perturbs_state:
        raise checks.ModelError(
            "average: this estimator's state depends on its carry, so r carries cannot share one evaluation of the "
            "model. Average the gradients of several streams instead, with parallel."
        )

    # The model is evaluated once: of the r results, only the carries and the gradients differ.
    out_axes = (None, 0, Estimate(loss=cast(Any, None), grad=0, output=None, value_grad=0))
    every = _mapped(estimator, r, (None, None, None), _mean_grad, estimator.model, out_axes)
    return every._replace(step=estimator.fast_means.carries or every.step)


def parallel(estimator: Estimator, streams: int) -> Estimator:
    """Several streams that share one set of parameters: the mean of their losses and gradients.

    State, carry, x, target and output have a leading axis with one entry per stream.
    Every stream has its own noise. A reset takes one boolean per stream.

    Args:
        estimator: the estimator of one stream.
        streams: the number of streams.

    Returns:
        The estimator of all streams.

    Raises:
        ModelError: `estimator` is not an estimator, or `streams` is not a whole number above 0.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.rnn(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.parallel(norewind.uoro(cell.transition, norewind.losses.cross_entropy), 2)
    >>> params, state = cell.init(jax.random.key(0)), jnp.stack([cell.initial_state()] * 2)
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> state, carry, estimate = estimator.step(params, state, carry, jnp.array([0, 1]), jnp.array([1, 2]))
    >>> estimate.output.shape, estimate.loss.shape
    ((2, 3), ())
    """
    checks.check_estimator("parallel", estimator)
    checks.check_at_least_one("parallel: streams", streams)

    def has_stream_axis(**trees):
        remedy = "Each needs one entry per stream; a scan takes x and target as (time, streams, ...)."
        length = checks.common_length("parallel", entries="stream", remedy=remedy, **trees)
        if length != streams:
            raise checks.ModelError(
                f"parallel: the leading axis of {' and '.join(trees)} has length {length}, but there are {streams} "
                "streams. Stack one entry per stream."
            )

    def join(estimate):
        return _mean_grad(estimate)._replace(loss=jnp.mean(estimate.loss))

    model = parallel_model(estimator.model)
    every = _mapped(estimator, streams, (None, 0, 0), join, model)

    def init(params, state, key):
        has_stream_axis(state=state)
        return every.init(params, state, key)

    def step(params, state, carry, x, target):
        has_stream_axis(state=state, x=x, target=target)
        return (estimator.fast_means.streams or every.step)(params, state, carry, x, target)

    def reset(params, state, carry, when):
        return every.reset(params, state, carry, jnp.broadcast_to(when, (streams,)))

    return Estimator(init, step, model, reset, report=every.report)


def ensemble(estimator: Estimator, members: int) -> Estimator:
    """Several models of one kind that learn side by side, independently, from the same stream.

    Parameters, state, carry and output have a leading axis with one entry per member; x and
    target are shared. The loss is the sum of the members' losses. Members differ in their
    initial parameters, or in their learning rates (`norewind.core.scale_members`).

    Args:
        estimator: the estimator of one member.
        members: the number of members.

    Returns:
        The estimator of all members.

    Raises:
        ModelError: `estimator` is not an estimator, or `members` is not a whole number above 0.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.rnn(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.core.ensemble(norewind.uoro(cell.transition, norewind.losses.cross_entropy), 2)
    >>> params, state = jax.vmap(cell.init)(jax.random.split(jax.random.key(0), 2)), jnp.zeros((2, 4))
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> state, carry, estimate = estimator.step(params, state, carry, jnp.array(0), jnp.array(1))
    >>> estimate.output.shape, estimate.loss.shape
    ((2, 3), ())
    """
    checks.check_estimator("ensemble", estimator)
    checks.check_at_least_one("ensemble: members", members)

    def join(estimate):
        return estimate._replace(loss=jnp.sum(estimate.loss))

    return _mapped(estimator, members, (0, 0, None), join, _ensemble_model(estimator.model))


def _mean_report(estimator: Estimator) -> ReportFn | None:
    """The mean of what the copies of an estimator report."""
    one = estimator.report
    return one and (lambda carry: jax.tree.map(jnp.mean, jax.vmap(one)(carry)))


def _mean_grad(estimate: Estimate) -> Estimate:
    grad, value_grad = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), (estimate.grad, estimate.value_grad))
    return estimate._replace(grad=grad, value_grad=value_grad)
