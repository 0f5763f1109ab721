"""Recursive least squares on features of the past: linear, exact, in one pass."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from norewind import checks
from norewind.chunks import scan_some
from norewind.compilation import compiled_loop
from norewind.trees import Tree

LARGEST_INPUT = 10.0
"""In standard deviations. A larger input is most likely a fault, which a linear model would only amplify."""
LARGEST = 1e4
"""Forgetting stops while the mean variance of the weights, relative to the prior's, is above this."""


class Features(NamedTuple):
    """Numbers that a linear model sees: `transition(state, x) -> (state, features)`, and how it starts.

    `prior` is the variance that the weight of each feature is expected to have.
    """

    transition: Callable[[Tree, jax.Array], tuple[Tree, jax.Array]]
    state: Tree
    prior: np.ndarray


class LeastSquaresRun(NamedTuple):
    """Weights (features, targets), a square root of their covariance, its size, and the state of the features.

    `spread` is the variance of the errors so far.
    """

    weights: jax.Array
    root: jax.Array
    size: jax.Array
    spread: jax.Array
    state: Tree
    initial_state: Tree
    ahead: Tree = None


class LeastSquares:
    """Recursive least squares with forgetting, as a learner.

    Every step is the exact solution of ridge regression in which a sample that is k steps
    old counts `forgetting`ᵏ. What is updated is a square root of the covariance (Potter's
    form), so that rounding cannot make it indefinite. A target that is NaN is unknown.
    With a `limit`, an error beyond this many standard deviations of earlier errors counts
    as one of that size: a single outlier does not spoil what was learned.

    Args:
        features: what the linear model sees, e.g. `lags(inputs, 24)`.
        targets: the number of targets.
        forgetting: the weight of the past after each sample, from 0 to 1.
        limit: the largest error, in standard deviations; infinite for the exact solution.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> xs = rng.normal(size=(500, 2)).astype(np.float32)
    >>> learner = LeastSquares(lags(2, 1), targets=1)
    >>> run, losses = learner.scan(learner.init(), xs, xs @ np.array([[2.0], [-1.0]], np.float32))
    >>> [round(weight, 1) for weight in run.weights[1:].ravel().tolist()]
    [2.0, -1.0]
    """

    def __init__(self, features: Features, targets: int, forgetting: float = 1.0, limit: float = np.inf):
        if not 0 < forgetting <= 1:
            raise checks.ModelError(f"LeastSquares: forgetting is {forgetting}, but it must be above 0 and at most 1.")
        self.features, self.targets, self.forgetting, self.limit = features, targets, forgetting, limit

    def init(self) -> LeastSquaresRun:
        # With NumPy: each of these would be a program to compile.
        prior, state = self.features.prior, self.features.state
        weights, spread = np.zeros((len(prior), self.targets), prior.dtype), np.ones(self.targets)
        root, size = np.diag(np.sqrt(prior)), np.ones((), prior.dtype)
        parts = map(jax.device_put, (weights, root, size, spread, state, state))
        return LeastSquaresRun(*parts)

    def scan(
        self,
        run: LeastSquaresRun,
        xs: Any,
        targets: Any,
        *,
        newest: Any = None,
        count: Any = None,
        outputs: bool = False,
    ) -> tuple[LeastSquaresRun, Any]:
        """Learn from a chunk; see `Learner.scan`. The losses are squared errors, ½ Σ (output − target)²."""
        length = checks.common_length("scan", xs=xs, targets=targets)
        inputs = xs, targets, newest
        return self._learn(compiled_learn, run, inputs, length if count is None else count, outputs)

    def forward(self, run: LeastSquaresRun, xs: Any, *, count: Any = None) -> tuple[LeastSquaresRun, jax.Array]:
        """Answer a chunk of inputs without learning; see `Learner.forward`."""
        length = len(xs) if count is None else count
        return compiled_answer(run, xs, length, transition=self.features.transition)

    def pure_scan(self, run: LeastSquaresRun, inputs: tuple, count: Any, outputs: bool) -> tuple[LeastSquaresRun, Any]:
        """What `scan` compiles, for other programs; `inputs` are its `(xs, targets, newest)`."""
        return self._learn(learn_some, run, inputs, count, outputs)

    def pure_forward(self, run: LeastSquaresRun, xs: Any, count: Any) -> tuple[LeastSquaresRun, jax.Array]:
        """What `forward` compiles, for other programs."""
        return answer_some(run, xs, count, transition=self.features.transition)

    def _learn(self, function: Callable, run: LeastSquaresRun, inputs: tuple, count: Any, outputs: bool):
        rates = self.forgetting, self.forgetting**-0.5
        model = {"transition": self.features.transition, "prior": np.sum(self.features.prior), "limit": self.limit}
        return function(run, inputs, count, rates, **model, outputs=outputs)

    def reset(self, run: LeastSquaresRun) -> LeastSquaresRun:
        return run._replace(state=run.initial_state)

    def carry(self, run: LeastSquaresRun) -> Tree:
        return ()

    def one(self, run: LeastSquaresRun, x: Any, target: Any, newest: Any = None) -> tuple[LeastSquaresRun, Any, Any]:
        """`scan` of one sample inside a compiled function: the run, the loss and the output."""
        rates, prior = (self.forgetting, self.forgetting**-0.5), np.sum(self.features.prior)
        return learn_one(run, (x, target, newest), rates, self.features.transition, prior, self.limit)

    def answer(self, run: LeastSquaresRun, x: Any) -> tuple[LeastSquaresRun, jax.Array]:
        """`forward` of one sample inside a compiled function."""
        state, features = self.features.transition(run.state if run.ahead is None else run.ahead, x)
        return run._replace(**{"state" if run.ahead is None else "ahead": state}), features @ run.weights


def learn_one(run, inputs, rates, transition, prior, limit):
    """Learn from one sample: the run, the loss and the output."""
    x, target, newest = inputs
    state, features = transition(run.state, x)
    output = features @ run.weights
    run = _learned(run, features, target - output, rates, prior, limit)._replace(state=state)
    loss = 0.5 * jnp.sum(jnp.where(jnp.isnan(target), 0, target - output) ** 2)
    if newest is not None:
        ahead, features = transition(run.ahead, newest)
        run, output = run._replace(ahead=ahead), features @ run.weights
    return run, loss, output


def learn_some(run, inputs, count, rates, *, transition, prior, limit, outputs):
    """Learn from the first `count` samples. Learners that differ only in their rates share this program."""

    def body(run, inputs):
        run, loss, output = learn_one(run, inputs, rates, transition, prior, limit)
        return run, (loss, output) if outputs else loss

    return scan_some(body, run, inputs, count)


def _learned(run: LeastSquaresRun, features: jax.Array, error: jax.Array, rates, prior, limit) -> LeastSquaresRun:
    """The run after one error; `rates` are the forgetting and its inverse root, `prior` is the sum of the prior."""
    forgetting, faster = rates
    unknown = jnp.isnan(error)
    largest = limit * jnp.sqrt(run.spread)
    error = jnp.where(unknown, 0, jnp.clip(error, -largest, largest))
    spread = jnp.where(unknown, run.spread, run.spread + 0.01 * (error**2 - run.spread))
    # Without a known target the features teach nothing, and nothing is forgotten.
    features = jnp.where(unknown.all(), 0, features)
    inner = features @ run.root
    outer = run.root @ inner
    total = forgetting + inner @ inner
    weights = run.weights + jnp.outer(outer / total, error)
    share = 1 / (total + jnp.sqrt(forgetting * total))
    growth = jnp.where(unknown.all() | (run.size > LARGEST), 1, faster).astype(run.root.dtype)
    root = (run.root - jnp.outer(share * outer, inner)) * growth
    return run._replace(weights=weights, root=root, size=jnp.sum(root * root) / prior, spread=spread)


def answer_some(run, xs, count, *, transition):
    def body(state, x):
        state, features = transition(state, x)
        return state, features @ run.weights

    if run.ahead is None:
        state, outputs = scan_some(body, run.state, xs, count)
        return run._replace(state=state), outputs
    ahead, outputs = scan_some(body, run.ahead, xs, count)
    return run._replace(ahead=ahead), outputs


compiled_learn = compiled_loop(learn_some, static_argnames=("transition", "prior", "limit", "outputs"))
compiled_answer = jax.jit(answer_some, static_argnames="transition")


def lags(inputs: int, count: int) -> Features:
    """A constant and the newest `count` inputs, cut off at ±10. Old ones are expected to matter less."""
    expected = 0.1 / (1 + np.arange(count))

    def transition(state, x):
        # Without a barrier, XLA computes the shifted row again in everything that uses it.
        state = jax.lax.optimization_barrier(jnp.concatenate([_cut(x)[None], state[:-1]]))
        return state, jnp.concatenate([jnp.ones(1, x.dtype), state.reshape(-1)])

    prior = np.concatenate([[0.01], np.repeat(expected, inputs)]).astype(np.float32)
    return Features(transition, np.zeros((count, inputs), np.float32), prior)


def oscillators(inputs: int, count: int) -> Features:
    """Each input seen by `count` damped oscillators, which remember 1 to 1000 steps: a fixed linear recurrence."""
    times = np.geomspace(1, 1000, count)
    # Phases that fill the circle evenly in whatever order they are taken; slow ones turn slowly.
    phases = np.arange(count) * 0.6180339887 % 1 * np.minimum(np.pi, 60 * np.pi / times)
    factors = np.exp(-1 / times + 1j * phases).astype(np.complex64)
    scales = np.sqrt(1 - np.exp(-2 / times)).astype(np.float32)

    def transition(state, x):
        state = factors * state + _cut(x)[:, None]
        return state, jnp.concatenate([(state.real * scales).reshape(-1), (state.imag * scales).reshape(-1)])

    return Features(transition, np.zeros((inputs, count), np.complex64), np.full(2 * inputs * count, 0.01, np.float32))


def together(*parts: Features) -> Features:
    """Several kinds of features side by side."""

    def transition(states, x):
        pairs = [part.transition(state, x) for part, state in zip(parts, states, strict=True)]
        return tuple(state for state, _ in pairs), jnp.concatenate([features for _, features in pairs])

    return Features(transition, tuple(part.state for part in parts), np.concatenate([part.prior for part in parts]))


def _cut(x: jax.Array) -> jax.Array:
    return jnp.clip(x, -LARGEST_INPUT, LARGEST_INPUT)
