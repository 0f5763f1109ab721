"""A mixture of experts that is never much worse than the best of them, on any stream."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from norewind.checks import ModelError
from norewind.kernels import kernel


class MixRun(NamedTuple):
    """The logarithms of the experts' weights, with 64 bits."""

    log_weights: np.ndarray


class Mix(NamedTuple):
    """What `mix` returns: pure functions from run to run."""

    init: Callable[[], MixRun]
    scan: Callable[..., tuple[MixRun, np.ndarray]]
    distribution: Callable[[MixRun, Any], np.ndarray]
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

    Weights are kept as logarithms with 64 bits, so rounding adds at most
    2⁻⁴⁴ (1 + the largest loss or logarithm of a weight) a sample. A loss that is not a
    number counts as infinite; without switching, such an expert never comes back.

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

    def scan(run, losses, *, count=None):
        losses = _losses(losses, experts)
        log_weights, mixed = run.log_weights.copy(), np.zeros(len(losses))
        mix_rows(log_weights, losses, switching, len(losses) if count is None else count, mixed)
        return MixRun(log_weights), mixed

    def distribution(run, log_probabilities):
        made = np.ascontiguousarray(log_probabilities, np.float64)
        out = np.zeros(made.shape[1])
        mix_log_probabilities(run.log_weights, made, out)
        return out

    def distributions(run, losses, log_probabilities):
        made = np.ascontiguousarray(log_probabilities, np.float64)
        out = np.zeros((len(made), made.shape[2]))
        _mix_chunk(run.log_weights.copy(), _losses(losses, experts), made, switching, out)
        return out

    return Mix(
        lambda: MixRun(equal_log_weights(experts)), scan, distribution, distributions, lambda run: np.exp(run[0])
    )


def equal_log_weights(experts: int) -> np.ndarray:
    """The logarithms of equal weights."""
    return np.full(experts, -np.log(experts))


@kernel
def mix_row(log_weights, losses, switching):
    """Learn from what each expert lost on one sample, in place, and return the mixture's loss."""
    experts = len(log_weights)
    largest = -np.inf
    for i in range(experts):
        if not np.isnan(losses[i]):
            largest = max(largest, log_weights[i] - losses[i])
    loss = np.inf
    # Where every expert is infinitely wrong there is nothing to learn from.
    if largest > -np.inf:
        total = 0.0
        for i in range(experts):
            if not np.isnan(losses[i]):
                total += np.exp(log_weights[i] - losses[i] - largest)
        loss = -(largest + np.log(total))
        for i in range(experts):
            log_weights[i] = -np.inf if np.isnan(losses[i]) else min(log_weights[i] - losses[i] + loss, 0.0)
    if switching > 0 and experts > 1:
        for i in range(experts):
            passed_on = switching / (experts - 1) * -np.expm1(log_weights[i])
            log_weights[i] = np.log((1 - switching) * np.exp(log_weights[i]) + passed_on)
    return loss


@kernel
def mix_log_probabilities(log_weights, log_probabilities, out):
    """Write the mixture's log-probabilities of the next symbol, from those of the experts (experts, symbols)."""
    experts, symbols = log_probabilities.shape
    for symbol in range(symbols):
        largest = -np.inf
        for i in range(experts):
            if not np.isnan(log_probabilities[i, symbol]):
                largest = max(largest, log_weights[i] + log_probabilities[i, symbol])
        total = 0.0
        if largest > -np.inf:
            for i in range(experts):
                if not np.isnan(log_probabilities[i, symbol]):
                    total += np.exp(log_weights[i] + log_probabilities[i, symbol] - largest)
        out[symbol] = largest + np.log(total) if total > 0 else -np.inf


@kernel
def mix_rows(log_weights, losses, switching, count, mixed):
    """Learn from the first `count` rows of losses, in place, and write the mixture's."""
    for t in range(count):
        mixed[t] = mix_row(log_weights, losses[t], switching)


@kernel
def _mix_chunk(log_weights, losses, log_probabilities, switching, out):
    for t in range(len(losses)):
        mix_log_probabilities(log_weights, log_probabilities[t], out[t])
        mix_row(log_weights, losses[t], switching)


def _losses(losses: Any, experts: int) -> np.ndarray:
    losses = np.ascontiguousarray(losses, np.float64)
    if losses.ndim != 2 or losses.shape[1] != experts:
        raise ModelError(f"mix: losses has shape {losses.shape}, but it must be (samples, {experts}).")
    return losses
