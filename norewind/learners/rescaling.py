"""The units in which a mixture of forecasts learns: how they change, and what changes with them.

A stream standardises every row by the statistics so far. Experts that compare rows need units that stay the same.
"""

import numpy as np

from norewind.engines.kernels import kernel
from norewind.engines.vector_math import VECTOR_WIDTH
from norewind.learners.linear import MAX_INPUT, model_at
from norewind.learners.past_values import clip_to_past

# The units change when the deviation has changed by this factor, or the mean by so many deviations.
MOST_GROWTH, MOST_SHIFT = 1.5, 0.5


@kernel
def choose_units(past, factors, summands):
    """Let the experts standardise by the scales of the latest row, if theirs are far from these.

    If the deviation has become smaller, the largest of the earlier values may be outliers that were in the old units,
    as among the first rows of a stream. They are cut to what a linear model sees of them.

    Args:
        past: the past values, changed in place.
        factors: where to write what multiplies each target in the old units.
        summands: where to write what is then added to it.

    Returns:
        Whether there are other units now.
    """
    scales, moved = past.scales, False
    factors[:], summands[:] = 1.0, 0.0
    for i in range(len(factors)):
        mean, deviation, old_mean, old_deviation = scales[:4, i]
        grown, shifted = deviation / old_deviation, abs(mean - old_mean) / old_deviation
        if grown > MOST_GROWTH or grown * MOST_GROWTH < 1 or shifted > MOST_SHIFT:
            factors[i], summands[i] = old_deviation / deviation, (old_mean - mean) / deviation
            scales[2:4, i] = scales[:2, i]
            moved = True
            if grown < 1:
                lowest, highest = mean - MAX_INPUT * deviation, mean + MAX_INPUT * deviation
                for part in (past.values, past.ends):
                    for row in range(len(part)):
                        part[row, i] = min(max(part[row, i], lowest), highest)
    return moved


@kernel
def convert(forecasts, scales):
    """Convert forecasts from the units of the rows to those of the experts.

    Args:
        forecasts: the forecasts (steps × targets), changed in place.
        scales: the means and deviations (5, targets); see `PastValues`.
    """
    columns = scales.shape[1]
    for i in range(len(forecasts)):
        k = i % columns
        forecasts[i] = (forecasts[i] * scales[1, k] + (scales[0, k] - scales[2, k])) / scales[3, k]


@kernel
def convert_back(moments, scales):
    """Convert means and variances from the units of the experts to those of the rows.

    Args:
        moments: the means and the variances (2, steps × targets), changed in place.
        scales: the means and deviations (5, targets); see `PastValues`.
    """
    columns = scales.shape[1]
    for i in range(moments.shape[1]):
        k = i % columns
        moments[0, i] = (moments[0, i] * scales[3, k] + (scales[2, k] - scales[0, k])) / scales[1, k]
        moments[1, i] *= (scales[3, k] / scales[1, k]) ** 2


@kernel
def write_values(scales, x, known, targets):
    """Write the values of a row in place of its targets that are known, in the units of the experts.

    Args:
        scales: the means and deviations (5, targets); see `PastValues`.
        x: the inputs of the row.
        known: which of the inputs are the targets.
        targets: its targets, changed in place; NaN means unknown.
    """
    for i in range(len(targets)):
        k = i % scales.shape[1]
        if np.isfinite(targets[i]):
            targets[i] = (scales[0, k] + scales[1, k] * np.float64(x[known[k]]) - scales[2, k]) / scales[3, k]


@kernel
def rescale_model(plan, number, model, factors, summands, learned):
    """Convert a model to other units of the targets, which are its own first inputs: to factor · value + summand.

    Its forecasts stay the same, and so does what it learns later. Before there is anything to learn, a model keeps
    its prior, which is then one in the new units.

    Args:
        plan: the constants of the models.
        number: the number of the model.
        model: its arrays, changed in place.
        factors: the factor of each target.
        summands: the summand of each target; 0 if the model is of changes.
        learned: whether there is anything to learn from a row that it has seen.
    """
    count, own, last, size = plan.sizes[number, 0], plan.own, plan.sizes[number, 5], len(model.factors) // plan.groups
    units, shifts = np.ones(count), np.zeros(count)
    for j in range(1, last):
        units[j], shifts[j] = factors[(j - 1) % own], summands[(j - 1) % own]
    # What is too large as soon as there are units is an outlier.
    largest = MAX_INPUT if learned else 0.0
    for row in range(len(model.past)):
        for j in range(1, last):
            value = model.past[row, 0, j] * units[j] + shifts[j] * model.past[row, 0, 0]
            too_large = abs(value) > MAX_INPUT
            model.past[row, 0, j] = min(max(value, -largest), largest) if too_large else value
        for group in range(plan.groups):
            gain = model.past[row, 1 + group]
            gain[:count] /= units
            for j in range(1, last):
                gain[0] -= shifts[j] * gain[j]
    if not learned:
        return
    for output in range(len(model.weights)):
        weights, i = model.weights[output], output % own
        weights[:count] *= factors[i] / units
        for j in range(1, last):
            weights[0] -= weights[j] * shifts[j]
        weights[0] += summands[i]
        model.spreads[output] *= factors[i] * factors[i]
    for group in range(plan.groups):
        start = group * size
        for j in range(count):
            for i in range(j):
                model.factors[start + i] *= units[j] / units[i]
            for i in range(1, min(j + 1, last)):
                model.factors[start] -= shifts[i] * model.factors[start + i]
            start += (j // VECTOR_WIDTH + 1) * VECTOR_WIDTH
        model.factors[start : start + count] /= units * units


@kernel
def rescale(plan, run, factors, summands):
    """Convert everything that a mixture has learned and forecast to other units: to factor · value + summand.

    Args:
        plan: the constants of the mixture.
        run: its state, changed in place.
        factors: the factor of each target.
        summands: the summand of each target.
    """
    own, none = len(factors), np.zeros(len(factors))
    # Whether a forecast has been made whose target can be known. Steps learn from it at different rows.
    learned = run.past.scales[4].max() > 1
    for i in range(len(plan.sizes)):
        of_model = summands if plan.bases[i] < 0 else none
        rescale_model(plan, i, model_at(plan, run.linear, i), factors, of_model, learned)
    for k in range(own):
        run.waiting[:, :, k::own] = factors[k] * run.waiting[:, :, k::own] + summands[k]
        if learned:
            run.performance.variances[:, k::own] *= factors[k] * factors[k]
            run.regrets.totals[:, k::own] *= factors[k] ** 2
            run.regrets.squares[:, k::own] *= factors[k] ** 4
    for row in range(len(run.waiting)):
        for expert in range(run.waiting.shape[1]):
            clip_to_past(run.past, run.waiting[row, expert])
