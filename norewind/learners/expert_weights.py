"""Kernels that mix forecasts of numbers by the recent performance of each expert."""

from typing import NamedTuple

import numpy as np

from norewind.engines.kernels import kernel
from norewind.engines.vector_math import exp_each, log_each

# The share of an expert's recent_loss that is kept from row to row, so that about the last hundred rows count.
LOSS_DECAY = 0.99
# The weight of a row in a recent_loss. It is below one because the errors of overlapping forecasts are similar.
ROW_WEIGHT = 0.1
# The least weight of a row in the variance of errors, so that the variance can follow changes.
MIN_RATE = 0.01
MIN_VARIANCE = 1e-6
MAX_FORECAST = 100.0
FIRST_HANDICAP = 2.0
# A larger error, in standard deviations of the expert's earlier errors, counts as this large.
MAX_ERROR = 5.0


class Performance(NamedTuple):
    """The performance of every expert, by expert and output.

    Attributes:
        variances: the variances of its errors.
        recent_losses: its recent log-loss; lower is better.
        known: the number of known targets that it had forecast.
    """

    variances: np.ndarray
    recent_losses: np.ndarray
    known: np.ndarray


def init_performance(experts: int, outputs: int) -> Performance:
    """Return the performance of experts before the first target, which gives them equal weights.

    Args:
        experts: the number of experts.
        outputs: the number of outputs.
    """
    return Performance(np.ones((experts, outputs)), np.zeros((experts, outputs)), np.zeros((experts, outputs)))


@kernel
def update_performance(performance, due, targets):
    """Update the experts' variances and recent_losses from targets.

    An expert is a Gaussian density with the variance of its errors so far. Its errors are limited, since after an
    outlier all experts would otherwise seem equally bad for a thousand rows. An expert that has made no forecast is
    as good as the first one, whose forecasts are never NaN.

    Args:
        performance: the performance of the experts, changed in place.
        due: the experts' forecasts of these targets (experts, outputs); NaN means none.
        targets: the targets; NaN means unknown.
    """
    experts, outputs = due.shape
    values, kept, weight = np.zeros(outputs), np.zeros(outputs), np.zeros(outputs)
    ratios, logarithms = np.empty((experts, outputs)), np.empty((experts, outputs))
    for i in range(outputs):
        kept[i] = 1.0
        if np.isfinite(targets[i]):
            values[i], kept[i], weight[i] = targets[i], LOSS_DECAY, ROW_WEIGHT
    for e in range(experts):
        variance, forecast, ratio, logarithm = performance.variances[e], due[e], ratios[e], logarithms[e]
        known = performance.known[e]
        for i in range(outputs):
            made = forecast[i] == forecast[i]
            error = (forecast[i] - values[i]) * (forecast[i] - values[i])
            error = min(error, MAX_ERROR * MAX_ERROR * variance[i])
            known[i] += 1.0 if weight[i] > 0 else 0.0
            rate = max(1 / (known[i] + 1), MIN_RATE) if weight[i] > 0 else 0.0
            learned = max(variance[i] + rate * (error - variance[i]), MIN_VARIANCE)
            variance[i] = learned if made else performance.variances[0, i]
            known[i] = known[i] if made else 0.0
            ratio[i] = error / variance[i]
            logarithm[i] = variance[i]
    log_each(logarithms.reshape(-1), np.empty(experts * outputs))
    best = np.full(outputs, np.inf)
    for e in range(experts):
        recent_loss, ratio, logarithm = performance.recent_losses[e], ratios[e], logarithms[e]
        for i in range(outputs):
            if due[e, i] == due[e, i]:
                recent_loss[i] = kept[i] * recent_loss[i] + weight[i] * (ratio[i] + logarithm[i])
                best[i] = min(best[i], recent_loss[i])
    for e in range(experts):
        recent_loss = performance.recent_losses[e]
        for i in range(outputs):
            if not due[e, i] == due[e, i]:
                recent_loss[i] = best[i] + 2 * FIRST_HANDICAP


@kernel
def mix_densities(performance, forecasts, mean, variance, weights):
    """Write the mean and variance of the mixture of the experts' densities, weighted by their recent_losses.

    Args:
        performance: the performance of the experts.
        forecasts: their forecasts (experts, outputs); NaN means none, but the first expert always has one.
        mean: where to write the mean of each output.
        variance: where to write its variance.
        weights: where to write the weights (experts, outputs), which add up to 1.
    """
    experts, outputs = forecasts.shape
    scratch = np.empty(experts * outputs)
    least, total = np.full(outputs, np.inf), np.zeros(outputs)
    for e in range(experts):
        recent_loss, forecast = performance.recent_losses[e], forecasts[e]
        for i in range(outputs):
            least[i] = min(least[i], recent_loss[i]) if forecast[i] == forecast[i] else least[i]
    for e in range(experts):
        recent_loss, weight = performance.recent_losses[e], weights[e]
        for i in range(outputs):
            weight[i] = min(max((least[i] - recent_loss[i]) / 2, -700.0), 0.0)
    exp_each(weights.reshape(-1), scratch)
    mean[:], variance[:] = 0.0, 0.0
    for e in range(experts):
        weight, forecast = weights[e], forecasts[e]
        for i in range(outputs):
            weight[i] = weight[i] if forecast[i] == forecast[i] else 0.0
            total[i] += weight[i]
            mean[i] += weight[i] * forecast[i] if forecast[i] == forecast[i] else 0.0
    for i in range(outputs):
        mean[i] /= total[i]
    for e in range(experts):
        weight, forecast, spread = weights[e], forecasts[e], performance.variances[e]
        for i in range(outputs):
            distance = forecast[i] - mean[i] if forecast[i] == forecast[i] else 0.0
            variance[i] += weight[i] * (spread[i] + distance * distance)
    for i in range(outputs):
        variance[i] /= total[i]
    for e in range(experts):
        weight = weights[e]
        for i in range(outputs):
            weight[i] /= total[i]


@kernel
def average_weights(weights, shares):
    """Write the mean weight of each expert over all outputs.

    Args:
        weights: the weights (experts, outputs).
        shares: where to write the means.
    """
    experts, outputs = weights.shape
    for e in range(experts):
        total = 0.0
        for i in range(outputs):
            total += weights[e, i]
        shares[e] = total / outputs


@kernel
def clip_forecasts(forecasts, may_be_absent):
    """Clip forecasts to a possible range, so that an expert that fails cannot spoil the mixture.

    Args:
        forecasts: the forecasts of an expert, changed in place.
        may_be_absent: whether NaN means that there is no forecast; otherwise it becomes 0.
    """
    for i in range(len(forecasts)):
        value = forecasts[i]
        absent = np.nan if may_be_absent else 0.0
        forecasts[i] = min(max(value, -MAX_FORECAST), MAX_FORECAST) if value == value else absent


@kernel
def encode_variances(variances):
    """Replace variances by the numbers from which `losses.log_variance` computes their logarithms."""
    scratch = np.empty(len(variances))
    for i in range(len(variances)):
        variances[i] = max(variances[i], MIN_VARIANCE)
    log_each(variances, scratch)
    for i in range(len(variances)):
        # 10 artanh(x / 10) is 5 log((10 + x) / (10 - x)).
        logarithm = min(max(variances[i], -9.9), 9.9)
        variances[i] = (10 + logarithm) / (10 - logarithm)
    log_each(variances, scratch)
    for i in range(len(variances)):
        variances[i] *= 5


@kernel
def known_loss(outputs, targets):
    """Compute ½ Σ (mean − target)² over the known targets or, with variances, −log of the density.

    Args:
        outputs: the means, and optionally the coded variances (1 or 2, outputs).
        targets: the targets; NaN means unknown.
    """
    total = 0.0
    for i in range(len(targets)):
        if np.isfinite(targets[i]):
            error = outputs[0, i] - targets[i]
            if len(outputs) == 1:
                total += 0.5 * error * error
            else:
                spread = 10 * np.tanh(outputs[1, i] / 10)
                total += 0.5 * (error * error * np.exp(-spread) + spread + np.log(2 * np.pi))
    return total
