"""What the forecasts of a mixture come from: the weights of its members, and the parts that add up to a forecast."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from norewind.learners import expert_weights
from norewind.learners.linear import LinearPlan, LinearRun, model_at
from norewind.learners.past_values import clip_to_past
from norewind.learners.regrets import follow_regrets

if TYPE_CHECKING:
    from norewind.learners.number_mixture import NumberMixture, NumberMixturePlan, NumberMixtureRun


class ForecastPart(NamedTuple):
    """What a part of a forecast comes from.

    Attributes:
        input: the index of an input; -1 for a constant, or for a member whose forecast cannot be split up.
        ago: how many rows before the latest one.
        change: if the part is a change of the input, since which row; empty if it is the value itself.
        member: the name of a member whose forecast cannot be split up.
    """

    input: int = -1
    ago: int = 0
    change: str = ""
    member: str = ""


# The part by which a forecast is limited, because it is far outside the values so far.
LIMIT = "the limit of forecasts"

# The parts of a forecast: their values for all outputs add up to it. Empty if it cannot be split up.
ForecastParts = dict[ForecastPart, np.ndarray]


class Explanation(NamedTuple):
    """What the latest forecasts of a learner of rows come from.

    Forecasts are of all steps and targets side by side, the nearest step first, in standard deviations from the mean.

    Attributes:
        names: the names of the members.
        weights: their weights in the forecasts (members, outputs).
        parts: what the forecasts come from. These numbers add up to the forecast of each output, up to rounding.
        periods: the periods of the series in rows, the short and the long one; 0 for none.
    """

    names: tuple[str, ...]
    weights: np.ndarray
    parts: dict[ForecastPart, np.ndarray]
    periods: tuple[int, ...] = ()


def explain_numbers(
    mixture: "NumberMixture", run: "NumberMixtureRun", members: Sequence[ForecastParts] = ()
) -> Explanation | None:
    """Explain the latest forecasts of a mixture for numbers; None before the first row.

    Forecasts of the same row (step 0) are explained as they would be made now, after learning from that row.

    Args:
        mixture: the mixture.
        run: its state, which stays unchanged.
        members: the parts of the forecasts of its members, which are the last experts.
    """
    row = int(run.linear.rows[0]) - 1
    if row < 0:
        return None
    made = run.waiting[row % len(run.waiting)].astype(np.float64)
    parts_of = dict(parts_of_experts(mixture.plan, run, row))
    first = mixture.experts - len(members)
    parts_of |= {first + place: _in_fixed_units(parts, run) for place, parts in enumerate(members) if parts}
    for expert, parts in parts_of.items():
        if not np.isnan(made[expert]).any():
            forecast = sum(parts.values(), np.zeros(mixture.outputs))
            made[expert] = np.clip(forecast, -expert_weights.MAX_FORECAST, expert_weights.MAX_FORECAST)
            if len(mixture.plan.known):
                clip_to_past(run.past, made[expert])
    weights, unused = np.empty((mixture.experts, mixture.outputs)), np.empty((2, mixture.outputs))
    expert_weights.mix_densities(run.performance, made[: mixture.experts], *unused, weights)
    follow_regrets(run.regrets, mixture.plan.steps, made, weights)
    found: ForecastParts = {}
    for expert, name in enumerate(mixture.member_names):
        forecast = np.where(weights[expert] > 0, made[expert], 0.0)
        parts = {part: np.where(weights[expert] > 0, values, 0.0) for part, values in parts_of.get(expert, {}).items()}
        # The rest is a forecast that cannot be split up, or the effect of clipping.
        rest = forecast - sum(parts.values(), np.zeros(mixture.outputs))
        if expert not in parts_of:
            parts[ForecastPart(member=name)] = rest
        elif np.abs(rest).max() > 1e-9:
            limit = ForecastPart(member=LIMIT)
            parts[limit] = parts.get(limit, 0.0) + rest
        for part, values in parts.items():
            found[part] = found.get(part, 0.0) + weights[expert] * values
    return Explanation(
        mixture.member_names, weights, _in_reported_units(found, run), tuple(run.seasons.periods.tolist())
    )


def _scales(run: "NumberMixtureRun") -> np.ndarray:
    """Return the scales of `PastValues` for every output (5, outputs)."""
    outputs, scales = run.waiting.shape[2], run.past.scales
    # Without the past of the targets, all are in the units of the rows.
    scales = scales if scales.shape[1] else np.array([[0.0], [1.0], [0.0], [1.0], [0.0]])
    return np.tile(scales, outputs // scales.shape[1])


def _in_fixed_units(parts: ForecastParts, run: "NumberMixtureRun") -> ForecastParts:
    """Convert the parts of a forecast as `convert` does the forecast. The constant part takes up the means."""
    mean, deviation, fixed_mean, fixed_deviation, _ = _scales(run)
    return _converted(parts, deviation / fixed_deviation, (mean - fixed_mean) / fixed_deviation)


def _in_reported_units(parts: ForecastParts, run: "NumberMixtureRun") -> ForecastParts:
    """Convert the parts of a forecast as `convert_back` does the forecast. The constant part takes up the means."""
    mean, deviation, fixed_mean, fixed_deviation, _ = _scales(run)
    return _converted(parts, fixed_deviation / deviation, (fixed_mean - mean) / deviation)


def _converted(parts: ForecastParts, factors: np.ndarray, summands: np.ndarray) -> ForecastParts:
    converted = {part: values * factors for part, values in parts.items()}
    if summands.any():
        converted[ForecastPart()] = converted.get(ForecastPart(), 0.0) + summands
    return converted


def parts_of_experts(
    plan: "NumberMixturePlan", run: "NumberMixtureRun", row: int
) -> Iterator[tuple[int, ForecastParts]]:
    """Split up the forecasts of the mean, the simple rules and least squares, which are sums over past values.

    Everything is in the units of the experts; see `PastValues`.

    Args:
        plan: the constants of the mixture.
        run: its state.
        row: the number of the latest row.

    Returns:
        The number of each of these experts, and the parts of its forecast.
    """
    outputs, rules = run.waiting.shape[2], len(plan.rules)
    mean, _, fixed_mean, fixed_deviation, _ = _scales(run)
    yield 0, {ForecastPart(): (mean - fixed_mean) / fixed_deviation}
    of_rules = [_parts_of_rule(plan, run, rule, row, outputs) for rule in range(rules)]
    yield from enumerate(of_rules, 1)
    for number, base in enumerate(plan.bases.tolist()):
        change = _change_seen(plan, run, base)
        parts = parts_of_linear(LinearPlan(*plan[:6]), run.linear, number, row, (plan.known, plan.others), change)
        for part, values in of_rules[base].items() if base >= 0 else ():
            parts[part] = parts.get(part, 0.0) + values
        yield 1 + rules + number, parts


def _parts_of_rule(
    plan: "NumberMixturePlan", run: "NumberMixtureRun", rule: int, row: int, outputs: int
) -> ForecastParts:
    """Return the past values that a rule repeats, as `write_rule` does."""
    period, differences = plan.rules[rule].tolist()
    if period < 0:
        period = int(run.seasons.periods[-period - 1]) or row + 1
    past, width = run.past.values, len(plan.known)
    mean, _, fixed_mean, fixed_deviation, _ = _scales(run)
    if period > row:
        return {}
    parts: ForecastParts = {ForecastPart(): (mean - fixed_mean) / fixed_deviation}
    for output in range(outputs):
        step, target = max(int(plan.steps[output // width]), 1), output % width
        seasons = -(-step // period) * period if period else step
        terms = [(seasons - step, 1.0)]
        if differences:
            terms += [(0, float(seasons // period)), (period, -float(seasons // period))]
        for ago, factor in terms:
            values = parts.setdefault(ForecastPart(int(plan.known[target]), ago), np.zeros(outputs))
            past_value = past[(row - ago) % len(past), target]
            values[output] += factor * (past_value - mean[output]) / fixed_deviation[output]
    forecast = sum(parts.values(), np.zeros(outputs))
    limited = forecast.copy()
    clip_to_past(run.past, limited)
    if not np.array_equal(limited, forecast):
        parts[ForecastPart(member=LIMIT)] = limited - forecast
    return parts


def parts_of_linear(
    plan: LinearPlan, run: LinearRun, number: int, row: int, inputs: tuple[np.ndarray, np.ndarray], change: str
) -> ForecastParts:
    """Return the products of the weights and the features of a linear model.

    Args:
        plan: the constants of the models.
        run: their state.
        number: the number of the model.
        row: the number of the latest row.
        inputs: the indices of its own inputs and of the others.
        change: which changes of its own inputs it sees; empty if it sees their values.
    """
    (known, others), model = inputs, model_at(plan, run, number)
    features, last = int(plan.sizes[number, 0]), int(plan.sizes[number, 5])
    seen = model.past[row % len(model.past), 0]
    parts: ForecastParts = {}
    for place in range(features):
        if place == 0:
            part = ForecastPart()
        elif place < last:
            part = ForecastPart(int(known[(place - 1) % plan.own]), (place - 1) // plan.own, change)
        else:
            part = ForecastPart(int(others[(place - last) % len(others)]), (place - last) // len(others))
        parts[part] = model.weights[:, place] * seen[place]
    return parts


def _change_seen(plan: "NumberMixturePlan", run: "NumberMixtureRun", base: int) -> str:
    """Return which changes of the targets a linear model sees; empty if it sees their values."""
    if base < 0:
        return ""
    season, differences = -plan.rules[base, 0], plan.rules[base, 1]
    if season <= 0:
        return "the row before"
    ago = f"{run.seasons.periods[season - 1]} rows before"
    return f"{ago}, since the row before" if differences else ago
