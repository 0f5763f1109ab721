"""A mixture of experts that is never much worse than the best of them, on any stream."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from norewind.checks import ModelError
from norewind.chunks import scan_some
from norewind.compilation import compiled_loop
from norewind.trees import library


class MixRun(NamedTuple):
    """The logarithms of the experts' weights, each as the sum of two 32-bit numbers, a larger and what it leaves."""

    large: jax.Array
    small: jax.Array


class Mix(NamedTuple):
    """What `mix` returns: pure functions from run to run."""

    init: Callable[[], MixRun]
    scan: Callable[..., tuple[MixRun, np.ndarray]]
    distribution: Callable[[MixRun, jax.Array], np.ndarray]
    distributions: Callable[..., np.ndarray]
    weights: Callable[[MixRun], np.ndarray]


def mix(experts: int, *, switching: float = 0.0) -> Mix:
    """Bayes' mixture of experts who predict the same stream: p(y) = Σᵢ wᵢ pᵢ(y), then wᵢ ← wᵢ pᵢ(y) / p(y).

    All it needs to learn is how much each expert lost, in nats.

    - `init() -> run` starts with equal weights.
    - `scan(run, losses) -> (run, mixed)` takes the experts' losses (samples, experts) and
      gives the mixture's. With `count=k`, of the first k samples only, the rest zeros.
    - `distribution(run, log_probabilities)` mixes the experts' log-probabilities
      (experts, symbols) of the next symbol. A coder that works bit by bit goes by sums of
      it, Σᵢ wᵢ pᵢ(prefix and bit) / Σᵢ wᵢ pᵢ(prefix), so that its code is as long.
    - `distributions(run, losses, log_probabilities)` does so for all samples of a chunk
      (samples, experts, symbols), each before anything is learned from it.
    - `weights(run)` are the weights.

    **The guarantee**, for K experts and every stream whatever: the total loss is at most
    that of the best expert + log K. With `switching` = α > 0 every expert passes a share
    α of its weight on to the others after each sample (Herbster and Warmuth's fixed
    share), so that the mixture can follow a change: its total is at most that of any
    sequence of experts with m switches in T samples + log K + m log((K − 1)/α) +
    (T − 1 − m) log(1/(1 − α)). A mixture's losses may be an expert's in another mixture.

    Weights are kept as logarithms with 48 bits and computed with 64, whatever JAX's own
    setting, so rounding adds at most 2⁻⁴⁴ (1 + the largest loss or logarithm of a weight)
    a sample. A loss that is not a number counts as infinite; without switching, such an
    expert never comes back.

    >>> import numpy as np
    >>> from norewind.learners.mix import mix
    >>> losses = np.log(2) * np.array([[1, 5], [1, 5], [1, 5]])
    >>> mixture = mix(2)
    >>> run, mixed = mixture.scan(mixture.init(), losses)
    >>> (mixed / np.log(2)).round(3), mixture.weights(run).round(3)
    (array([1.913, 1.082, 1.005]), array([1., 0.]))
    """
    if experts < 1:
        raise ModelError(f"mix: there must be at least one expert, not {experts}.")
    if not 0 <= switching < 1:
        raise ModelError(f"mix: switching is {switching}, but it is a share: from 0 to less than 1.")

    def init():
        return fresh(experts)

    def one(run, losses):
        return learned(run, losses, switching)

    compiled = compiled_loop(lambda run, losses, count: scan_some(one, run, losses, count))

    def scan(run, losses, *, count=None):
        losses = np.asarray(losses, np.float64)
        if losses.ndim != 2 or losses.shape[1] != experts:
            raise ModelError(f"mix: losses has shape {losses.shape}, but it must be (samples, {experts}).")
        with jax.enable_x64(True):
            run, total = compiled(run, losses, len(losses) if count is None else count)
        return run, np.asarray(total)

    def distribution(run, log_probabilities):
        with jax.enable_x64(True):
            return np.asarray(compiled_mixed(run, np.asarray(log_probabilities, np.float64)))

    compiled_mixed = jax.jit(mixed)

    @jax.jit
    def mixed_chunk(run, losses, log_probabilities):
        def body(run, inputs):
            return one(run, inputs[0])[0], mixed(run, inputs[1])

        return jax.lax.scan(body, run, (losses, log_probabilities))[1]

    def distributions(run, losses, log_probabilities):
        with jax.enable_x64(True):
            return np.asarray(mixed_chunk(run, np.asarray(losses, np.float64), np.asarray(log_probabilities)))

    def weights(run):
        return np.exp(np.asarray(run.large, np.float64) + np.asarray(run.small, np.float64))

    return Mix(init, scan, distribution, distributions, weights)


def fresh(experts: int) -> MixRun:
    """Equal weights."""
    with jax.enable_x64(True):
        return _equal(experts)


def _equal(experts: int) -> MixRun:
    return _split(jnp.full(experts, -jnp.log(experts)))


def learned(run: MixRun, losses: Any, switching: float) -> tuple[MixRun, Any]:
    """The weights after a sample on which the experts lost `losses`, and the loss of the mixture.

    In NumPy, or to be traced with 64 bits, as `mixed`.
    """
    log_weights, like = _joined(run), library(losses)
    joint = log_weights - like.where(like.isnan(losses), np.inf, losses)
    log_probability = _log_sum(joint)
    # Where every expert is infinitely wrong there is nothing to learn from.
    posterior = like.where(log_probability == -np.inf, log_weights, joint - log_probability)
    return _split(_shared(like.minimum(posterior, 0), switching)), -log_probability


def mixed(run: MixRun, log_probabilities: Any) -> Any:
    """The mixture's log-probabilities of the next symbol, from those of the experts (experts, symbols)."""
    like = library(log_probabilities)
    known = like.where(like.isnan(log_probabilities), -np.inf, log_probabilities)
    return _log_sum(_joined(run)[:, None] + known)


def _log_sum(logarithms: Any) -> Any:
    """The logarithm of the sum over the experts."""
    return (np.logaddexp.reduce if library(logarithms) is np else jax.nn.logsumexp)(logarithms, axis=0)


def _shared(log_weights: Any, switching: float) -> Any:
    experts, like = len(log_weights), library(log_weights)
    if switching == 0 or experts == 1:
        return log_weights
    passed_on = switching / (experts - 1) * -like.expm1(log_weights)
    return like.log((1 - switching) * like.exp(log_weights) + passed_on)


def _split(log_weights: Any) -> MixRun:
    if library(log_weights) is np:
        large = log_weights.astype(np.float32).astype(np.float64)
    else:
        # Not astype there and back, which XLA takes for nothing at all.
        large = jax.lax.reduce_precision(log_weights, exponent_bits=8, mantissa_bits=23)
    with np.errstate(invalid="ignore"):
        rest = library(large).where(large == -np.inf, 0, log_weights - large)
    return MixRun(large.astype(np.float32), rest.astype(np.float32))


def _joined(run: MixRun) -> Any:
    return run.large.astype(np.float64) + run.small
