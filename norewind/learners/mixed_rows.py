"""Kernels of mixtures for numbers: rules, linear models and other forecasts, weighted by their recent performance."""

from typing import NamedTuple

import numpy as np

from norewind.engines.kernels import kernel
from norewind.learners import expert_weights
from norewind.learners.horizon import exchange
from norewind.learners.linear import LinearRun, linear_row, model_at, restart_model
from norewind.learners.past_values import changed, express_in, remember_row, write_rule
from norewind.learners.seasons import Seasons, observe_row


class NumberMixturePlan(NamedTuple):
    """The constants of a `NumberMixture`.

    Attributes:
        steps: the steps, in rows ahead.
        sizes: the sizes of the linear models; see `LinearPlan`.
        rates: their forgetting and limits; see `LinearPlan`.
        groups: 1, since all targets share a covariance; see `LinearPlan`.
        own: the number of inputs that are the latest targets; see `LinearPlan`.
        inputs: the number of inputs.
        rules: the period of each rule in rows, or minus the number of a season, and whether it adds the change since a
            period ago (rules, 2).
        bases: for each linear model, the rule whose errors it forecasts; -1 if it forecasts the targets.
        known: which inputs are the latest targets.
        others: the other inputs.
        row_weight: the weight of a row in the experts' recent_losses.
    """

    steps: np.ndarray
    sizes: np.ndarray
    rates: np.ndarray
    groups: int
    own: int
    inputs: int
    rules: np.ndarray
    bases: np.ndarray
    known: np.ndarray
    others: np.ndarray
    row_weight: float


class NumberMixtureRun(NamedTuple):
    """The state of the mixture, without its members.

    Attributes:
        linear: the linear models.
        past: a ring of the latest targets.
        seasons: the periods of the series.
        waiting: a ring of the experts' forecasts that are waiting for their targets.
        performance: the experts' variances and records.
        outputs: a ring of the mixture's forecasts.
    """

    linear: LinearRun
    past: np.ndarray
    seasons: Seasons
    waiting: np.ndarray
    performance: expert_weights.Performance
    outputs: np.ndarray


class RowScratch(NamedTuple):
    """Arrays for the numbers of one row.

    Attributes:
        forecasts: the forecasts of the experts.
        before: their earlier forecasts of the row.
        weights: their weights.
        shown: the forecast of the mixture.
        moments: its mean and variance.
        came: the targets that had been forecast.
    """

    forecasts: np.ndarray
    before: np.ndarray
    weights: np.ndarray
    shown: np.ndarray
    moments: np.ndarray
    came: np.ndarray


@kernel
def mix_rows(plan, run, xs, targets, others, losses, made, due, shares):
    """Learn from each row's targets, then forecast from it. For forecasts of the row itself, forecast first.

    Args:
        plan: the fields of a `NumberMixturePlan`.
        run: the arrays of a `NumberMixtureRun`, changed in place.
        xs: inputs.
        targets: targets; NaN means unknown. Without any rows of targets, nothing is learned.
        others: the members' forecasts (rows, forecasts, outputs).
        losses: where to write the losses.
        made: where to write the forecasts made at the rows.
        due: where to write the earlier forecasts of the rows.
        shares: where to write the mean weights of the experts (rows, experts).
    """
    plan, run = NumberMixturePlan(*plan), _named(run)
    scratch = _scratch(len(run.performance.recent_losses), targets.shape[1], run.outputs.shape[1])
    nothing = np.full(targets.shape[1], np.nan, np.float32)
    for t in range(len(xs)):
        came = targets[t] if len(targets) > 0 else nothing
        losses[t] = _mix_row(plan, run, scratch, xs[t], came, others[t], len(targets) > 0, made[t], due[t])
        expert_weights.average_weights(scratch.weights, shares[t])


@kernel
def mix_rows_of_keys(plan, runs, slots, xs, targets, scales, results):
    """Apply `mix_rows` to rows of several keys, each with its own run, and without members.

    Args:
        plan: the fields of a `NumberMixturePlan`.
        runs: the arrays of a `NumberMixtureRun`, with one entry per slot along the leading axis, changed in place.
        slots: the slot of each row's key.
        xs: inputs.
        targets: targets; NaN means unknown.
        scales: of each slot, the mean and the deviation that its past values are expressed in, changed in place, and
            those that the inputs of each row are standardised with; no rows if they never change.
        results: where to write the losses, the forecasts made at the rows, and the earlier forecasts of the rows.
    """
    plan, (before, now), (losses, made, due) = NumberMixturePlan(*plan), scales, results
    scratch = _scratch(runs[12].shape[2], targets.shape[1], runs[16].shape[2])
    nobody = np.zeros((0, targets.shape[1]), np.float32)
    for t in range(len(xs)):
        at = slots[t]
        linear = LinearRun(runs[0][at], runs[1][at], runs[2][at], runs[3][at], runs[4][at], runs[5][at])
        seasons = Seasons(runs[7][at], runs[8][at], runs[9][at], runs[10][at], runs[11][at])
        performance = expert_weights.Performance(runs[13][at], runs[14][at], runs[15][at])
        run = NumberMixtureRun(linear, runs[6][at], seasons, runs[12][at], performance, runs[16][at])
        if len(now) > 0:
            express_in(run.past, before[at], now[t])
        losses[t] = _mix_row(plan, run, scratch, xs[t], targets[t], nobody, True, made[t], due[t])


@kernel
def _named(run):
    """Return the arrays of a `NumberMixtureRun` as one."""
    seasons, performance = Seasons(*run[7:12]), expert_weights.Performance(*run[13:16])
    return NumberMixtureRun(LinearRun(*run[:6]), run[6], seasons, run[12], performance, run[16])


@kernel
def _scratch(experts, outputs, parts):
    """Allocate the arrays for one row."""
    of_experts = np.zeros((experts, outputs)), np.zeros((experts, outputs)), np.zeros((experts, outputs))
    return RowScratch(*of_experts, np.zeros((parts, outputs)), np.zeros((2, outputs)), np.zeros(outputs))


@kernel
def _mix_row(plan, run, scratch, x, targets, others, learns, made, due):
    """Learn from the targets of one row, and forecast from it.

    Args:
        plan: the `NumberMixturePlan`.
        run: the `NumberMixtureRun`, changed in place.
        scratch: arrays for the row; the weights are those of the experts afterwards.
        x: its inputs.
        targets: its targets; NaN means unknown.
        others: the members' forecasts (forecasts, outputs).
        learns: whether to learn.
        made: where to write the forecasts made at the row.
        due: where to write the earlier forecasts of the row.

    Returns:
        The loss.
    """
    forecasts, before, weights, shown, moments, came = scratch
    steps, row = plan.steps, run.linear.rows[0]
    experts, outputs = forecasts.shape
    per_step = outputs // len(steps)
    for i in range(outputs):
        came[i] = targets[i] if row >= steps[i // per_step] else np.nan
    if len(plan.known) > 0:
        _remember(plan, run, row, x, learns)
    write_forecasts(plan, run, row, x, came, forecasts)
    for i in range(len(others)):
        forecasts[experts - len(others) + i] = others[i]
    for e in range(experts):
        expert_weights.clip_forecasts(forecasts[e], e > 0)
    if learns and steps[0] > 0:
        exchange(run.waiting, steps, row, forecasts, before)
        expert_weights.update_performance(run.performance, before, came, plan.row_weight)
    expert_weights.mix_densities(run.performance, forecasts, moments[0], moments[1], weights)
    if learns and steps[0] == 0:
        run.waiting[0] = forecasts
        expert_weights.update_performance(run.performance, forecasts, came, plan.row_weight)
    if len(shown) == 2:
        expert_weights.encode_variances(moments[1])
    shown[:] = moments[: len(shown)]
    made[:] = shown.reshape(-1)
    if steps[0] > 0:
        exchange(run.outputs, steps, row, shown, shown)
    due[:] = shown.reshape(-1)
    run.linear.rows[0] += 1
    return expert_weights.known_loss(shown, came)


@kernel
def _remember(plan, run, row, x, learns):
    """Add a row to the past of the targets, and find their periods. A change of a period restarts its experts."""
    remember_row(run.past, row, x, plan.known)
    if not learns or len(run.seasons.latest) == 0 or not observe_row(run.seasons, run.past[row % len(run.past)]):
        return
    rules = len(plan.rules)
    for rule in range(rules):
        season = -plan.rules[rule, 0]
        if season > 0 and run.seasons.changed[season - 1] == run.seasons.seen[0]:
            run.waiting[:, 1 + rule] = np.nan
            for i in range(len(plan.bases)):
                if plan.bases[i] == rule:
                    run.waiting[:, 1 + rules + i] = np.nan
                    restart_model(plan, i, model_at(plan, run.linear, i))


@kernel
def write_forecasts(plan, run, row, x, targets, forecasts):
    """Write the forecasts of the rules and the linear models. The models also learn from the targets.

    An expert without enough rows forecasts NaN.
    """
    steps, rules, own = plan.steps, plan.rules, len(plan.known)
    for rule in range(len(rules)):
        period = rules[rule, 0]
        if period < 0:
            period = run.seasons.periods[-period - 1]
            period = period if period > 0 else row + 1
        write_rule(run.past, row, steps, period, rules[rule, 1] > 0, forecasts[1 + rule])
    inputs, errors, first = np.empty(len(x)), np.empty(len(targets)), 1 + len(rules)
    for i in range(len(plan.others)):
        inputs[own + i] = x[plan.others[i]]
    for i in range(len(plan.sizes)):
        model, made, base = model_at(plan, run.linear, i), forecasts[first + i], plan.bases[i]
        if base < 0:
            for k in range(own):
                inputs[k] = x[plan.known[k]]
            linear_row(plan, i, model, row, inputs, targets, made)
            continue
        season, differences = -rules[base, 0], rules[base, 1] > 0
        period = run.seasons.periods[season - 1] if season > 0 else 0
        for k in range(own):
            inputs[k] = changed(run.past, row, period, differences, k) if season == 0 or period > 0 else 0.0
        _errors_of_rule(steps, run.waiting[:, 1 + base], row, targets, forecasts[1 + base], errors)
        linear_row(plan, i, model, row, inputs, errors, made)
        for k in range(len(made)):
            made[k] += forecasts[1 + base, k]


@kernel
def _errors_of_rule(steps, waiting, row, targets, now, errors):
    """Write the errors of the forecasts that a rule made of a row; NaN where it had too few rows.

    Args:
        steps: the steps.
        waiting: a ring of its latest forecasts.
        row: the number of the row.
        targets: the targets of the row.
        now: the forecasts of the rule at this row, for targets of the row itself.
        errors: where to write the errors.
    """
    per_step = len(targets) // len(steps)
    for s in range(len(steps)):
        for i in range(s * per_step, (s + 1) * per_step):
            errors[i] = targets[i] - (waiting[(row - steps[s]) % len(waiting), i] if steps[s] > 0 else now[i])
