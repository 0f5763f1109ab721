"""Bayes' mixture of experts, which is never much worse than the best of them, on any stream."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from norewind.core.checks import ModelError
from norewind.engines.kernels import kernel


class BayesMixtureRun(NamedTuple):
    """The state of a `BayesMixture`.

    Attributes:
        log_weights: the logarithms of the experts' weights, with 64 bits.
    """

    log_weights: np.ndarray


class BayesMixture:
    """Bayes' mixture of experts that predict the same stream: p(y) = Σᵢ wᵢ pᵢ(y), then wᵢ ← wᵢ pᵢ(y) / p(y).

    It is not a `Learner`: it sees neither inputs nor targets, only the loss of each expert, in nats. Its methods are
    pure functions of a run.

    **The guarantee**, for K experts and every possible stream: the total loss is at most
    that of the best expert + log K. With `switching` = α > 0 every expert passes a share
    α of its weight on to the others after each sample (Herbster and Warmuth's fixed
    share), so that the mixture can follow a change: its total is at most that of any
    sequence of experts with m switches in T samples + log K + m log((K − 1)/α) +
    (T − 1 − m) log(1/(1 − α)). The losses of a mixture can be those of an expert in another mixture.

    Weights are kept as logarithms with 64 bits, so rounding adds at most
    2⁻⁴⁴ (1 + the largest loss or logarithm of a weight) per sample. A loss that is NaN
    counts as infinite; without switching, such an expert never recovers. After a loss of −∞
    (an infinite density), the experts that had it share all the weight, as they shared it before.

    Args:
        experts: the number of experts.
        switching: the share α of its weight that each expert passes on after a sample, from 0 to less than 1.

    Raises:
        ModelError: there is no expert, or `switching` is out of range.

    >>> import numpy as np
    >>> from norewind.learners.bayesian import BayesMixture
    >>> losses = np.log(2) * np.array([[1, 5], [1, 5], [1, 5]])
    >>> mixture = BayesMixture(2)
    >>> run, mixed = mixture.scan(mixture.init(), losses)
    >>> (mixed / np.log(2)).round(3), mixture.weights(run).round(3)
    (array([1.913, 1.082, 1.005]), array([1., 0.]))
    """

    def __init__(self, experts: int, *, switching: float = 0.0):
        if experts < 1:
            raise ModelError(f"BayesMixture: there must be at least one expert, not {experts}.")
        if not 0 <= switching < 1:
            raise ModelError(f"BayesMixture: switching is {switching}, but it must be from 0 to less than 1.")
        self.experts = experts
        self.switching = switching

    def init(self) -> BayesMixtureRun:
        """Start a run with equal weights."""
        return BayesMixtureRun(np.full(self.experts, -np.log(self.experts)))

    def scan(
        self, run: BayesMixtureRun, losses: ArrayLike, *, count: int | None = None
    ) -> tuple[BayesMixtureRun, np.ndarray]:
        """Learn the weights from a chunk of samples.

        Args:
            run: the run to continue.
            losses: the losses of the experts (samples, experts).
            count: use only the first `count` samples; the results of the others are zeros.

        Returns:
            The new run, and the mixture's loss of each sample.
        """
        losses = self._checked(losses)
        log_weights, mixed = run.log_weights.copy(), np.zeros(len(losses))
        _learn_chunk(log_weights, losses[:count], self.switching, mixed)
        return BayesMixtureRun(log_weights), mixed

    def distributions(
        self, run: BayesMixtureRun, log_probabilities: ArrayLike, losses: ArrayLike | None = None
    ) -> np.ndarray:
        """Mix the experts' predictions of a chunk of symbols.

        A coder that works bit by bit uses sums of a distribution, Σᵢ wᵢ pᵢ(prefix and bit) / Σᵢ wᵢ pᵢ(prefix), so its
        code has the same length.

        Args:
            run: the run before the chunk, which stays unchanged.
            log_probabilities: the experts' log-probabilities (samples, experts, symbols).
            losses: the losses of the experts (samples, experts). Weights are learned from each after its symbol is
                predicted; without losses, they stay the same.

        Returns:
            The mixture's log-probabilities (samples, symbols).
        """
        log_probabilities = np.ascontiguousarray(log_probabilities, np.float64)
        losses = np.zeros((0, self.experts)) if losses is None else self._checked(losses)
        out = np.zeros((len(log_probabilities), log_probabilities.shape[2]))
        _predict_chunk(run.log_weights.copy(), log_probabilities, losses, self.switching, out)
        return out

    def weights(self, run: BayesMixtureRun) -> np.ndarray:
        """Return the weights of the experts.

        Args:
            run: the run.
        """
        return np.exp(run.log_weights)

    def _checked(self, losses: ArrayLike) -> np.ndarray:
        losses = np.ascontiguousarray(losses, np.float64)
        if losses.ndim != 2 or losses.shape[1] != self.experts:
            raise ModelError(f"BayesMixture: the shape of losses is {losses.shape}, not (samples, {self.experts}).")
        return losses


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
    posterior = np.empty(experts)
    largest, infinitely_right = -np.inf, False
    for i in range(experts):
        infinitely_right |= losses[i] == -np.inf and log_weights[i] > -np.inf
    for i in range(experts):
        if infinitely_right:
            posterior[i] = log_weights[i] if losses[i] == -np.inf else -np.inf
        else:
            # A weight of 0 stays 0, whatever the loss.
            is_possible = log_weights[i] > -np.inf and not np.isnan(losses[i])
            posterior[i] = log_weights[i] - losses[i] if is_possible else -np.inf
        largest = max(largest, posterior[i])
    loss = np.inf
    # If every expert is infinitely wrong, there is nothing to learn.
    if largest > -np.inf:
        total = 0.0
        for i in range(experts):
            total += np.exp(posterior[i] - largest)
        loss = -(largest + np.log(total))
        for i in range(experts):
            # Not `posterior[i] + loss`, in which a large loss would hide the logarithm of the total.
            log_weights[i] = min(posterior[i] - largest - np.log(total), 0.0)
    if switching > 0 and experts > 1:
        for i in range(experts):
            passed_on = switching / (experts - 1) * -np.expm1(log_weights[i])
            log_weights[i] = np.log((1 - switching) * np.exp(log_weights[i]) + passed_on)
    return -np.inf if infinitely_right else loss


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
def _predict_chunk(log_weights, log_probabilities, losses, switching, out):
    for t in range(len(out)):
        _mix_log_probabilities(log_weights, log_probabilities[t], out[t])
        if len(losses) > 0:
            learn_weights(log_weights, losses[t], switching)
