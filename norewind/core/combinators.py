"""Combinators: a window of steps, the average of several carries, many streams at once."""

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp

from norewind.core import checks
from norewind.core.estimator import Estimate, Estimator, Loss, Model, Transition, reset_carry, samples_of
from norewind.core.noise import as_key
from norewind.core.structure import DeclaredTransition, Structure, mixed_by, structure_of
from norewind.core.trees import Tree


@dataclass(frozen=True)
class WindowedTransition:
    """T steps of a transition as one step; T is the length of the leading axis of x."""

    transition: Transition

    def __call__(self, params: Tree, state: Tree, x: Tree) -> tuple[Tree, Tree]:
        if checks.common_length("window", x=x) == 0:
            raise checks.ModelError("window: x has length 0, but a window holds at least one step. Skip empty windows.")

        def body(state, x):
            return checks.transition_result(self.transition(params, state, x), state)

        return jax.lax.scan(body, state, x)

    @property
    def structure(self) -> Structure:
        """The declarations of a single step that also hold for a window."""
        step = structure_of(self.transition)
        mixing = step.mixing and (lambda product: WindowedTransition(mixed_by(self.transition, product)))
        units = step.units if step.elementwise else None
        return Structure(units, elementwise=step.elementwise, mixing=mixing, sizes=step.sizes)

    def samples(self, x: Tree) -> int:
        first = jax.tree.map(lambda leaf: leaf[0], x)
        return checks.common_length("window", x=x) * samples_of(self.transition)(first)


@dataclass(frozen=True)
class WindowLoss:
    """The sum of the losses of the steps of a window."""

    loss: Loss

    def __call__(self, outputs: Tree, targets: Tree) -> jax.Array:
        checks.common_length("window", x=outputs, target=targets)
        return jnp.sum(jax.vmap(lambda o, t: checks.loss_result(self.loss(o, t)))(outputs, targets))


@dataclass(frozen=True)
class StreamsLoss:
    """The mean loss of many streams, or the weighted sum of their losses."""

    loss: Loss
    weights: jax.Array | None = None

    def __call__(self, outputs: Tree, targets: Tree) -> jax.Array:
        losses = jax.vmap(self.loss)(outputs, targets)
        return jnp.mean(losses) if self.weights is None else losses @ self.weights.astype(losses.dtype)


def parallel_model(model: Model, weights: jax.Array | None = None) -> Model:
    """A model of many streams: everything but the parameters gets a leading axis with one entry per stream.

    Args:
        model: the model of one stream.
        weights: one weight per stream for the sum of the losses; by default the loss is their mean.

    Returns:
        The model of all streams.
    """

    def transition(params, state, x):
        return jax.vmap(model.transition, in_axes=(None, 0, 0))(params, state, x)

    def samples(x):
        return model.samples(jax.tree.map(lambda leaf: leaf[0], x))

    told = Structure(sizes=structure_of(model.transition).sizes)
    return Model(DeclaredTransition(transition, told), StreamsLoss(model.loss, weights), samples)


def one_step_of(transition: Transition) -> Transition:
    """The single-step transition inside a windowed one; any other transition is returned as it is."""
    return transition.transition if isinstance(transition, WindowedTransition) else transition


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

    checks.model(transition, loss)

    return WindowedTransition(transition), WindowLoss(loss)


# Of r estimates from one evaluation of the model, only the gradients differ.
_ONLY_GRADIENTS: Any = Estimate(loss=cast(Any, None), grad=0, output=None)


def average(estimator: Estimator, r: int) -> Estimator:
    """The mean gradient of r independent carries of an estimator.

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
    checks.estimator("average", estimator)
    checks.at_least_one("average: r", r)
    if estimator.perturbs_state:
        raise checks.ModelError(
            "average: this estimator's state depends on its carry, so r carries cannot share one evaluation of the "
            "model. Average the gradients of several streams instead, with parallel."
        )

    def init(params, state, key):
        return jax.vmap(estimator.init, in_axes=(None, None, 0))(params, state, jax.random.split(as_key(key), r))

    def step(params, state, carry, x, target):
        over_carries = jax.vmap(
            estimator.step,
            in_axes=(None, None, 0, None, None),
            out_axes=(None, 0, _ONLY_GRADIENTS),
            axis_size=r,
        )
        state, carry, estimate = over_carries(params, state, carry, x, target)
        return state, carry, estimate._replace(grad=_mean(estimate.grad))

    def reset(params, state, carry, when):
        return jax.vmap(lambda one: reset_carry(estimator, params, state, one, when), axis_size=r)(carry)

    return Estimator(init, estimator.mean_step or step, estimator.model, reset)


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
    checks.estimator("parallel", estimator)
    checks.at_least_one("parallel: streams", streams)

    def has_stream_axis(**trees):
        remedy = "Each needs one entry per stream; a scan takes x and target as (time, streams, ...)."
        length = checks.common_length("parallel", entries="stream", remedy=remedy, **trees)
        if length != streams:
            raise checks.ModelError(
                f"parallel: the leading axis of {' and '.join(trees)} has length {length}, but there are {streams} "
                "streams. Stack one entry per stream."
            )

    def init(params, state, key):
        has_stream_axis(state=state)
        return jax.vmap(estimator.init, in_axes=(None, 0, 0))(params, state, jax.random.split(as_key(key), streams))

    def step(params, state, carry, x, target):
        has_stream_axis(state=state, x=x, target=target)
        if estimator.streams_step is not None:
            return estimator.streams_step(params, state, carry, x, target)
        over_streams = jax.vmap(estimator.step, in_axes=(None, 0, 0, 0, 0), axis_size=streams)
        state, carry, estimate = over_streams(params, state, carry, x, target)
        return state, carry, Estimate(jnp.mean(estimate.loss), _mean(estimate.grad), estimate.output)

    def reset(params, state, carry, when):
        when = jnp.broadcast_to(when, (streams,))
        one_stream = jax.vmap(lambda *stream: reset_carry(estimator, params, *stream), axis_size=streams)
        return one_stream(state, carry, when)

    model = estimator.model and parallel_model(estimator.model)
    return Estimator(init, step, model, reset)


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
    checks.estimator("ensemble", estimator)
    checks.at_least_one("ensemble: members", members)

    def init(params, state, key):
        return jax.vmap(estimator.init)(params, state, jax.random.split(as_key(key), members))

    def step(params, state, carry, x, target):
        over_members = jax.vmap(estimator.step, in_axes=(0, 0, 0, None, None), axis_size=members)
        state, carry, estimate = over_members(params, state, carry, x, target)
        return state, carry, estimate._replace(loss=jnp.sum(estimate.loss))

    def reset(params, state, carry, when):
        return jax.vmap(partial(reset_carry, estimator), in_axes=(0, 0, 0, None))(params, state, carry, when)

    def transition(params, state, x):
        assert estimator.model is not None
        return jax.vmap(estimator.model.transition, in_axes=(0, 0, None))(params, state, x)

    def loss(outputs, target):
        assert estimator.model is not None
        return jnp.sum(jax.vmap(estimator.model.loss, in_axes=(0, None))(outputs, target))

    model = estimator.model and Model(transition, loss, estimator.model.samples)
    return Estimator(init, step, model, reset)


def _mean(grads: Tree) -> Tree:
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), grads)
