"""Kernels of linear models of rows, fitted by recursive least squares for all steps of a horizon."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from norewind.core.checks import ModelError
from norewind.engines.aligned_arrays import aligned_array, aligned_copy
from norewind.engines.kernels import kernel
from norewind.engines.vector_math import (
    SIDE_BY_SIDE,
    VECTOR_WIDTH,
    add_each_other,
    add_each_other_in_turn,
    add_scaled,
    dot,
    dots,
    padded,
)

# The largest input, in standard deviations. A larger one is most likely a fault, which a linear model would amplify.
MAX_INPUT = 10.0
# Forgetting stops while the mean variance of the weights, relative to the prior, is above this.
MAX_VARIANCE = 1e4
# The number of rows between checks of that variance.
CHECK_EVERY = 16
MIN_SPREAD = 1e-6
# In names, models that forget faster than this are called fast, and those with a weaker ridge than usual loose.
FAST, LOOSE = 0.999, 100.0


class Linear(NamedTuple):
    """The settings of a linear model, whose features are a constant and the latest rows of the inputs.

    The last two settings are for a `NumberMixture`, which can let a model forecast a change of a target from changes.

    Attributes:
        lags: the number of latest rows.
        forgetting: the weight of the past after each row, above 0 and at most 1.
        spread: a factor of the prior variances of the weights; the larger, the weaker is the ridge.
        others: the number of latest rows of those inputs that are not the past of the targets.
        differences: whether it sees the changes since the previous row, and forecasts changes.
        season: whether it sees the changes since one period ago: 1 for the short period of the series, 2 for the long
            one, 0 for neither.
    """

    lags: int = 1
    forgetting: float = 1.0
    spread: float = 1.0
    others: int = 1
    differences: bool = False
    season: int = 0

    @property
    def name(self) -> str:
        """A short description, for reports."""
        rows = max(self.lags, self.others)
        text = f"least squares on {rows} row{'s' if rows > 1 else ''}"
        text += " of changes" if self.differences else ""
        text += ("", " since one period ago", " since one long period ago")[self.season]
        text += ", fast" if self.forgetting < FAST else ""
        return text + (", loose" if self.spread >= LOOSE else "")


class LinearPlan(NamedTuple):
    """The constants of linear models on the same rows.

    Attributes:
        steps: the steps, in rows ahead.
        sizes: for each model, the number of its features, that number padded, where its parts of `past`, `factors`
            and `weights` begin, and the number of its features up to the last one of the inputs in `own`.
        rates: for each model, its forgetting, its limit, the sum of its prior variances, and its `spread`.
        groups: how many groups the targets form, each with its own covariance: 1 for all targets together, or as
            many as there are targets.
        own: how many of the inputs come first in the features, with `lags` rows each. The others come after them.
        inputs: the number of inputs.
    """

    steps: np.ndarray
    sizes: np.ndarray
    rates: np.ndarray
    groups: int
    own: int
    inputs: int


class LinearRun(NamedTuple):
    """The state of linear models. The arrays are flat, one model after the other.

    Attributes:
        past: a ring of the features and the gains of the latest rows, which are waiting for their targets. Each group
            of targets has its own gains.
        factors: for each group, the columns of U of the covariance U D Uᵀ of the weights, each up to the diagonal and
            padded, followed by the diagonal of D.
        weights: the weights.
        spreads: the variances of the errors so far.
        variances: the mean variances of the weights, relative to the prior.
        rows: the number of rows in the sequence.
    """

    past: np.ndarray
    factors: np.ndarray
    weights: np.ndarray
    spreads: np.ndarray
    variances: np.ndarray
    rows: np.ndarray


class LinearModel(NamedTuple):
    """The arrays of one model. The number of features is padded.

    Attributes:
        past: features and gains (rows, 1 + groups, features).
        factors: the factors of the covariance of each group (flat).
        weights: the weights (outputs, features).
        spreads: the variances of the errors (outputs).
        variance: the mean variance of the weights, relative to the prior (groups).
    """

    past: np.ndarray
    factors: np.ndarray
    weights: np.ndarray
    spreads: np.ndarray
    variance: np.ndarray


def linear_plan(
    models: Sequence[Linear],
    inputs: int,
    targets: int,
    steps: Sequence[int],
    limit: float = np.inf,
    *,
    together: bool = True,
    own: int | None = None,
) -> LinearPlan:
    """Compute the constants of models.

    Args:
        models: the settings of the models.
        inputs: the number of inputs.
        targets: the number of targets.
        steps: the steps to forecast, in rows ahead.
        limit: the largest error, in standard deviations of earlier errors; larger errors are clipped to it.
        together: whether all targets share one covariance.
        own: how many of the inputs, from the first one, have `lags` rows, while the others have `others`; None for all.

    Raises:
        ModelError: the forgetting of a model is out of range.
    """
    ring, sizes, rates, starts = max(2, steps[-1] + 1), [], [], np.zeros(3, int)
    groups, own = 1 if together else targets, inputs if own is None else own
    for model in models:
        if not 0 < model.forgetting <= 1:
            raise ModelError(f"LeastSquares: forgetting is {model.forgetting}, but it must be above 0 and at most 1.")
        prior = _prior(model, inputs, own)
        features, width = len(prior), padded(len(prior))
        sizes.append([features, width, *starts, 1 + own * model.lags])
        rates.append([model.forgetting, limit, prior.sum(), model.spread])
        starts += ring * (1 + groups) * width, groups * (_triangle(features) + width), len(steps) * targets * width
    tables = np.array(sizes, int).reshape(-1, 6), np.array(rates, float).reshape(-1, 4)
    return LinearPlan(np.array(steps), *tables, groups, own, inputs)


def init_linear(plan: LinearPlan, models: Sequence[Linear], inputs: int, targets: int) -> LinearRun:
    """Create the run that models start from.

    Args:
        plan: their constants, from `linear_plan`.
        models: their settings.
        inputs: the number of inputs.
        targets: the number of targets.
    """
    ring, outputs = max(2, int(plan.steps[-1]) + 1), len(plan.steps) * targets
    widths = plan.sizes[:, 1]
    factors = [np.zeros(0)]
    for model, width in zip(models, widths, strict=True):
        prior = _prior(model, inputs, plan.own)
        one = [np.eye(1, padded(j + 1), j)[0] for j in range(len(prior))]
        factors += plan.groups * [*one, np.pad(prior, (0, width - len(prior)))]
    return LinearRun(
        aligned_array(np.zeros, (ring * (1 + plan.groups) * int(widths.sum()),), np.float64),
        aligned_copy(np.concatenate(factors)),
        aligned_array(np.zeros, (outputs * int(widths.sum()),), np.float64),
        np.ones((len(models), outputs)),
        np.ones((len(models), plan.groups)),
        np.zeros(1, np.int64),
    )


def _triangle(features: int) -> int:
    """Count the numbers in the columns of a triangular matrix, each padded."""
    return sum(padded(j + 1) for j in range(features))


def _prior(model: Linear, inputs: int, own: int) -> np.ndarray:
    """Return the prior variance of the weight of each feature. Older rows are expected to matter less."""
    parts = [np.repeat(0.1 / (1 + np.arange(lags)), n) for lags, n in ((model.lags, own), (model.others, inputs - own))]
    return model.spread * np.concatenate([[0.01], *parts])


@kernel
def model_at(plan, run, number):
    """Return the arrays of one of the models of a run.

    Args:
        plan: the constants of the models.
        run: the run.
        number: the number of the model.
    """
    sizes = plan.sizes
    width, past, factors, weights = sizes[number, 1], sizes[number, 2], sizes[number, 3], sizes[number, 4]
    end = plan.sizes[number + 1, 3] if number + 1 < len(plan.sizes) else len(run.factors)
    ring, outputs, parts = max(2, plan.steps[-1] + 1), run.spreads.shape[1], 1 + plan.groups
    return LinearModel(
        run.past[past : past + ring * parts * width].reshape((ring, parts, width)),
        run.factors[factors:end],
        run.weights[weights : weights + outputs * width].reshape((outputs, width)),
        run.spreads[number],
        run.variances[number],
    )


@kernel
def linear_row(plan, number, model, row, x, targets, outputs):
    """Learn from the targets of one row, and forecast all steps from its inputs.

    Forecasts of the row itself (step 0) are made before anything is learned from it.

    Args:
        plan: the constants of the models.
        number: the number of the model.
        model: its arrays, changed in place.
        row: the number of the row in its sequence.
        x: the inputs of the row.
        targets: its targets for all steps; NaN means unknown.
        outputs: where to write the forecasts.
    """
    steps, forgetting, limit = plan.steps, plan.rates[number, 0], plan.rates[number, 1]
    ring, width, per_step = len(model.past), model.past.shape[2], len(targets) // len(steps)
    features, groups = plan.sizes[number, 0], plan.groups
    last = plan.sizes[number, 5]
    write_features(model.past[(row - 1) % ring, 0], x, model.past[row % ring, 0], plan.own, last, features)
    first, size, in_group = row - steps[0], len(model.factors) // groups, per_step // groups
    if first >= 0:
        for group in range(groups):
            then, gain = model.past[first % ring, 0], model.past[first % ring, 1 + group]
            if any_known(targets[group * in_group : (group + 1) * in_group]):
                factors = model.factors[group * size : (group + 1) * size]
                if first % CHECK_EVERY == 0:
                    model.variance[group] = trace(factors, features, width) / plan.rates[number, 2]
                growth = 1.0 if model.variance[group] > MAX_VARIANCE else 1 / forgetting
                update(factors, features, then, gain, forgetting, growth)
            else:
                gain[:] = 0.0
    past, weights, spreads = model.past, model.weights, model.spreads
    latest = row % ring * (1 + groups) * width
    for s in range(len(steps)):
        step, then = steps[s], (row - steps[s]) % ring * (1 + groups) * width
        for i in range(s * per_step, (s + 1) * per_step):
            own, gain_at = i * width, then + (1 + (i - s * per_step) // in_group) * width
            if step == 0:
                outputs[i] = dot(weights, own, past, latest, width)
            if row >= step and np.isfinite(targets[i]):
                error = targets[i] - dot(weights, own, past, then, width)
                largest = limit * np.sqrt(max(spreads[i], MIN_SPREAD))
                error = min(max(error, -largest), largest)
                spreads[i] += 0.01 * (error * error - spreads[i])
                add_scaled(weights, own, past, gain_at, width, error)
            if step > 0:
                outputs[i] = dot(weights, own, past, latest, width)


@kernel
def write_features(before, x, features, own, last, count):
    """Write the features of a row.

    Args:
        before: the features of the previous row.
        x: the inputs of the row.
        features: where to write its features.
        own: how many of the inputs come first.
        last: the number of features up to the last one of these inputs.
        count: the number of features.
    """
    features[0] = 1.0
    others = len(x) - own
    if last > 1:
        features[1 + own : last] = before[1 : last - own]
    if count > last:
        features[last + others : count] = before[last : count - others]
    for i in range(len(x)):
        place = 1 + i if i < own else last + i - own
        if place < (last if i < own else count):
            value = np.float64(x[i])
            features[place] = min(max(value, -MAX_INPUT), MAX_INPUT) if value == value else 0.0


@kernel
def update(factors, features, x, gain, forgetting, growth):
    """Update the covariance with features: k = P x/(λ + xᵀP x), and P ← (P − k xᵀP) · growth, as U D Uᵀ (Bierman 1977).

    Args:
        factors: U and D, changed in place.
        features: the number of features.
        x: the features.
        gain: where to write the gain k.
        forgetting: λ.
        growth: 1/λ, or 1 to stop forgetting.
    """
    diagonal = factors[len(factors) - len(x) :]
    inner, to_gain, to_factors = np.empty(SIDE_BY_SIDE), np.empty(SIDE_BY_SIDE), np.empty(SIDE_BY_SIDE)
    gain[:] = 0.0
    total, start, whole = forgetting, 0, features - features % SIDE_BY_SIDE
    for first in range(0, features, SIDE_BY_SIDE):
        # Up to the diagonal, which is 1, and the zeros of the padding: whole vectors are faster.
        length = (first // VECTOR_WIDTH + 1) * VECTOR_WIDTH
        count = SIDE_BY_SIDE if first < whole else features - whole
        if count == SIDE_BY_SIDE:
            dots(inner, factors, start, x, 0, length)
        for k in range(count):
            if count < SIDE_BY_SIDE:
                inner[k] = dot(factors, start + k * length, x, 0, length)
            to_gain[k], before = diagonal[first + k] * inner[k], total
            total += inner[k] * to_gain[k]
            diagonal[first + k] *= before / total * growth
            to_factors[k] = -inner[k] / before
            if count < SIDE_BY_SIDE:
                add_each_other(factors, start + k * length, gain, 0, length, to_factors[k], to_gain[k])
        if count == SIDE_BY_SIDE:
            add_each_other_in_turn(factors, start, gain, 0, length, to_factors, to_gain)
        start += count * length
    for i in range(features):
        gain[i] /= total


@kernel
def trace(factors, features, width):
    """Compute the trace of U D Uᵀ.

    Args:
        factors: U and D.
        features: the number of features.
        width: that number padded.
    """
    total, start = 0.0, 0
    for j in range(features):
        length = (j // VECTOR_WIDTH + 1) * VECTOR_WIDTH
        total += factors[len(factors) - width + j] * dot(factors, start, factors, start, length)
        start += length
    return total


@kernel
def any_known(targets):
    """Return whether any target is known."""
    known = False
    for i in range(len(targets)):
        known |= np.isfinite(targets[i])
    return known


@kernel
def restart_model(plan, number, model):
    """Make a model forget everything, because the meaning of its inputs has changed.

    Args:
        plan: the constants of the models.
        number: the number of the model.
        model: its arrays, changed in place.
    """
    features, own, last = plan.sizes[number, 0], plan.own, plan.sizes[number, 5]
    model.past[:], model.weights[:], model.factors[:] = 0.0, 0.0, 0.0
    model.spreads[:], model.variance[:] = 1.0, 1.0
    spread, size = plan.rates[number, 3], len(model.factors) // plan.groups
    for group in range(plan.groups):
        start = group * size
        for j in range(features):
            model.factors[start + j] = 1.0
            start += (j // VECTOR_WIDTH + 1) * VECTOR_WIDTH
        model.factors[start] = 0.01 * spread
        for j in range(1, features):
            lag = (j - 1) // own if j < last else (j - last) // (plan.inputs - own)
            model.factors[start + j] = 0.1 * spread / (1 + lag)


def reset_linear(run: LinearRun) -> None:
    """Begin a new sequence: forget the past rows, but keep everything learned."""
    run.past[:] = 0
    run.rows[:] = 0
