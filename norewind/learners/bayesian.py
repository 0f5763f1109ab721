"""Bayes' mixture of experts, which is never much worse than the best of them, on any stream."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from norewind.core.checks import ModelError
from norewind.engines.kernels import kernel


class BayesMixtureRun(NamedTuple):
    """The state of a `BayesMixture`.

    Attributes:
        log_weights: the logarithms of the experts' weights, with 64 bits.
    """

    log_weights: np.ndarray


class BayesMixture(NamedTuple):
    """The functions of a mixture, as returned by `bayes_mixture`. All are pure functions of a run.

    Attributes:
        init: `init() -> run` starts with equal weights.
        scan: `scan(run, losses) -> (run, mixed)` takes the experts' losses (samples, experts) and returns the
            mixture's. With `count=k`, it uses the first k samples only; the rest are zeros.
        distribution: `distribution(run, log_probabilities)` mixes the experts' log-probabilities (experts, symbols) of
            the next symbol. A coder that works bit by bit uses sums of it, Σᵢ wᵢ pᵢ(prefix and bit) / Σᵢ wᵢ pᵢ(prefix),
            so its code has the same length.
        distributions: `distributions(run, losses, log_probabilities)` does so for all samples of a chunk (samples,
            experts, symbols), each before anything is learned from it.
        weights: `weights(run)` returns the weights.
    """

    init: Callable[[], BayesMixtureRun]
    scan: Callable[..., tuple[BayesMixtureRun, np.ndarray]]
    distribution: Callable[[BayesMixtureRun, Any], np.ndarray]
    distributions: Callable[..., np.ndarray]
    weights: Callable[[BayesMixtureRun], np.ndarray]


def bayes_mixture(experts: int, *, switching: float = 0.0) -> BayesMixture:
    """Create Bayes' mixture of experts that predict the same stream: p(y) = Σᵢ wᵢ pᵢ(y), then wᵢ ← wᵢ pᵢ(y) / p(y).

    To learn, it needs only the loss of each expert, in nats.

    **The guarantee**, for K experts and every possible stream: the total loss is at most
    that of the best expert + log K. With `switching` = α > 0 every expert passes a share
    α of its weight on to the others after each sample (Herbster and Warmuth's fixed
    share), so that the mixture can follow a change: its total is at most that of any
    sequence of experts with m switches in T samples + log K + m log((K − 1)/α) +
    (T − 1 − m) log(1/(1 − α)). The losses of a mixture can be those of an expert in another mixture.

    Weights are kept as logarithms with 64 bits, so rounding adds at most
    2⁻⁴⁴ (1 + the largest loss or logarithm of a weight) per sample. A loss that is NaN
    counts as infinite; without switching, such an expert never recovers.

    Args:
        experts: the number of experts.
        switching: the share α of its weight that each expert passes on after a sample, from 0 to less than 1.

    Returns:
        The functions `init`, `scan`, `distribution`, `distributions` and `weights`; see `BayesMixture`.

    Raises:
        ModelError: there is no expert, or `switching` is out of range.

    >>> import numpy as np
    >>> from norewind.learners.bayesian import bayes_mixture
    >>> losses = np.log(2) * np.array([[1, 5], [1, 5], [1, 5]])
    >>> mixture = bayes_mixture(2)
    >>> run, mixed = mixture.scan(mixture.init(), losses)
    >>> (mixed / np.log(2)).round(3), mixture.weights(run).round(3)
    (array([1.913, 1.082, 1.005]), array([1., 0.]))
    """
    if experts < 1:
        raise ModelError(f"bayes_mixture: there must be at least one expert, not {experts}.")
    if not 0 <= switching < 1:
        raise ModelError(f"bayes_mixture: switching is {switching}, but it must be from 0 to less than 1.")

    def scan(run, losses, *, count=None):
        losses = _checked_losses(losses, experts)
        log_weights, mixed = run.log_weights.copy(), np.zeros(len(losses))
        _learn_chunk(log_weights, losses[:count], switching, mixed)
        return BayesMixtureRun(log_weights), mixed

    def distribution(run, log_probabilities):
        log_probabilities = np.ascontiguousarray(log_probabilities, np.float64)
        out = np.zeros(log_probabilities.shape[1])
        _mix_log_probabilities(run.log_weights, log_probabilities, out)
        return out

    def distributions(run, losses, log_probabilities):
        log_probabilities = np.ascontiguousarray(log_probabilities, np.float64)
        out = np.zeros((len(log_probabilities), log_probabilities.shape[2]))
        _predict_chunk(run.log_weights.copy(), _checked_losses(losses, experts), log_probabilities, switching, out)
        return out

    return BayesMixture(
        init=lambda: BayesMixtureRun(np.full(experts, -np.log(experts))),
        scan=scan,
        distribution=distribution,
        distributions=distributions,
        weights=lambda run: np.exp(run.log_weights),
    )


@kernel
def learn_weights(log_weights, losses, switching):
    """Learn the experts' weights from their losses on one sample.

    Args:
        log_weights: the logarithms of the weights, changed in place.
        losses: the loss of each expert; NaN counts as infinite.
        switching: the share of its weight that each expert passes on.

    Returns:
        The mixture's loss.
    """
    experts = len(log_weights)
    largest = -np.inf
    for i in range(experts):
        if not np.isnan(losses[i]):
            largest = max(largest, log_weights[i] - losses[i])
    loss = np.inf
    # If every expert is infinitely wrong, there is nothing to learn.
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
def _mix_log_probabilities(log_weights, log_probabilities, out):
    """Write the mixture's log-probabilities of the next symbol.

    Args:
        log_weights: the logarithms of the weights.
        log_probabilities: those of the experts (experts, symbols).
        out: where to write the mixture's.
    """
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
def _learn_chunk(log_weights, losses, switching, mixed):
    for t in range(len(losses)):
        mixed[t] = learn_weights(log_weights, losses[t], switching)


@kernel
def _predict_chunk(log_weights, losses, log_probabilities, switching, out):
    for t in range(len(losses)):
        _mix_log_probabilities(log_weights, log_probabilities[t], out[t])
        learn_weights(log_weights, losses[t], switching)


def _checked_losses(losses: Any, experts: int) -> np.ndarray:
    losses = np.ascontiguousarray(losses, np.float64)
    if losses.ndim != 2 or losses.shape[1] != experts:
        raise ModelError(f"bayes_mixture: losses has shape {losses.shape}, but it must be (samples, {experts}).")
    return losses
