"""Forecasts of numbers by least squares, networks and simple rules, mixed by their recent performance."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from norewind.engines.kernels import kernel
from norewind.learners import expert_weights
from norewind.learners.horizon import PERIODS, exchange, upcoming_forecasts
from norewind.learners.learner import Forecasts, empty_forecasts
from norewind.learners.linear import (
    Linear,
    LinearPlan,
    LinearRun,
    linear_row,
    model_at,
    plan_of,
    reset_linear,
    start_of,
)
from norewind.learners.mixture import Member, MixtureRun, RowMixture, join_forecasts

# Lags (to be divided by the number of inputs) and forgetting.
MODELS = ((8, 0.998), (32, 0.9998), (168, 0.9998), (168, 0.998))
# With more outputs than this, weights take most of the time, and three models are as good as four.
MANY_OUTPUTS, THEIR_MODELS = 200, ((32, 0.9998), (32, 0.998), (168, 0.9998))
# The largest error that a linear model learns from, in standard deviations of its earlier errors.
ERROR_LIMIT = 5.0


class NumberMixturePlan(NamedTuple):
    """The constants of a `NumberMixture`.

    Attributes:
        steps: the steps, in rows ahead.
        sizes: the sizes of the linear models; see `LinearPlan`.
        rates: their forgetting and limits; see `LinearPlan`.
        groups: 1, since all targets share a covariance; see `LinearPlan`.
        ages: how many rows old the value repeated by each rule is (rules, steps).
        known: which inputs are the newest targets.
    """

    steps: np.ndarray
    sizes: np.ndarray
    rates: np.ndarray
    groups: int
    ages: np.ndarray
    known: np.ndarray


class NumberMixtureRun(NamedTuple):
    """The state of the mixture, without its members.

    Attributes:
        linear: the linear models.
        history: a ring of the newest targets.
        waiting: a ring of the experts' forecasts that are waiting for their targets.
        weighing: the experts' variances and records.
        outputs: a ring of the mixture's forecasts.
    """

    linear: LinearRun
    history: np.ndarray
    waiting: np.ndarray
    weighing: expert_weights.Performance
    outputs: np.ndarray


class NumberMixture(RowMixture):
    """Forecasts rows of numbers, all steps of a horizon, by experts weighted by their recent performance.

    The experts are the running mean, linear models, `members`, and, where the past of the
    targets is known, persistence and the value one period ago for some common periods; for
    steps longer than a period, the newest value that is a whole number of periods older. Every
    step and target has its own weights. There is nothing to tune.

    Targets are (rows, steps × targets), and losses are squared errors, or nats if `gaussian`.

    Args:
        inputs: the number of inputs.
        targets: the number of targets.
        steps: the steps to forecast, in rows ahead, in increasing order; `(0,)` if targets belong to the row itself.
        models: the linear models.
        members: other learners of the same steps.
        known: which of the inputs are the newest known targets; empty if they are not among them.
        gaussian: whether to forecast variances as well, as `losses.known_gaussian` expects them.
    """

    def __init__(
        self,
        inputs: int,
        targets: int,
        *,
        steps: Sequence[int] = (1,),
        models: Sequence[Linear] = (),
        members: Sequence[Member] = (),
        known: Sequence[int] = (),
        gaussian: bool = False,
    ):
        super().__init__(members, steps)
        self.inputs = inputs
        self.targets = targets
        self.models = list(models)
        self.gaussian = gaussian
        # With step 0, targets are known up to the previous row.
        ahead = np.maximum(1, self.steps)
        ages = [0 * ahead, *(-ahead % period for period in PERIODS)] if len(known) else []
        ages = np.array(ages, np.int64).reshape(-1, len(ahead))
        linear = plan_of(models, inputs, targets, steps, ERROR_LIMIT)
        self.plan = NumberMixturePlan(*linear, ages, np.array(known, np.int64))
        self.outputs = len(self.steps) * targets
        self.experts = 1 + len(ages) + len(self.models) + sum(member.forecasts for member in members)
        # Numba takes several times as long for named or nested tuples.
        self._plan = tuple(self.plan)
        self._no_targets = np.empty((0, self.outputs), np.float32)

    def start(self) -> NumberMixtureRun:
        return NumberMixtureRun(
            start_of(LinearPlan(*self.plan[:4]), self.models, self.inputs, self.targets),
            np.zeros((PERIODS[-1], len(self.plan.known)), np.float32),
            np.zeros((self.horizon, self.experts, self.outputs), np.float32),
            expert_weights.init_performance(self.experts, self.outputs),
            np.zeros((self.horizon, 1 + self.gaussian, self.outputs), np.float32),
        )

    def copy_of(self, mixture: NumberMixtureRun) -> NumberMixtureRun:
        linear, history, waiting, weighing, outputs = mixture
        linear = LinearRun(linear.past.copy(), *linear[1:-1], linear.rows.copy())
        return NumberMixtureRun(linear, history.copy(), waiting, weighing, outputs.copy())

    def mix(
        self, mixture: NumberMixtureRun, others: list[Forecasts], xs: np.ndarray, targets: np.ndarray | None, count: int
    ) -> tuple[np.ndarray, Forecasts]:
        xs = np.ascontiguousarray(xs, np.float32)
        targets = self._no_targets if targets is None else np.ascontiguousarray(targets, np.float32)
        rows = len(xs)
        joined = join_forecasts(others, rows, self.outputs)
        losses = np.zeros(rows, np.float32)
        made, due = forecasts = empty_forecasts(self.horizon, (rows, (1 + self.gaussian) * self.outputs))
        linear, history, waiting, weighing, rings = mixture
        run = *linear, history, waiting, *weighing, rings
        _mix_rows(self._plan, run, xs if count == rows else xs[:count], targets, joined, losses, made, due)
        return losses, forecasts

    def upcoming(self, run: MixtureRun) -> np.ndarray:
        return upcoming_forecasts(run.mixture.outputs, self.steps, run.mixture.linear.rows[0])

    def forget_rows(self, mixture: NumberMixtureRun) -> None:
        reset_linear(mixture.linear)
        for part in (mixture.history, mixture.outputs):
            part[:] = 0


@kernel
def _mix_rows(plan, run, xs, targets, others, losses, made, due):
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
    """
    plan = NumberMixturePlan(*plan)
    run = NumberMixtureRun(LinearRun(*run[:6]), run[6], run[7], expert_weights.Performance(*run[8:11]), run[11])
    steps = plan.steps
    outputs = targets.shape[1]
    learns = len(targets) > 0
    experts, per_step = len(run.weighing.records), outputs // len(steps)
    forecasts, before = np.zeros((experts, outputs)), np.zeros((experts, outputs))
    shown, moments, came = np.zeros((run.outputs.shape[1], outputs)), np.zeros((2, outputs)), np.zeros(outputs)
    for t in range(len(xs)):
        row = run.linear.rows[0]
        for i in range(outputs):
            came[i] = targets[t, i] if learns and row >= steps[i // per_step] else np.nan
        _forecast(plan, run, row, xs[t], came, forecasts)
        for i in range(others.shape[1]):
            forecasts[experts - others.shape[1] + i] = others[t, i]
        for e in range(experts):
            expert_weights.clip_forecasts(forecasts[e])
        if learns and steps[0] > 0:
            exchange(run.waiting, steps, row, forecasts, before)
            expert_weights.update_performance(run.weighing, before, came)
        expert_weights.mix_densities(run.weighing, forecasts, moments[0], moments[1])
        if learns and steps[0] == 0:
            expert_weights.update_performance(run.weighing, forecasts, came)
        if len(shown) == 2:
            expert_weights.encode_variances(moments[1])
        shown[:] = moments[: len(shown)]
        made[t] = shown.reshape(-1)
        if steps[0] > 0:
            exchange(run.outputs, steps, row, shown, shown)
        due[t] = shown.reshape(-1)
        losses[t] = expert_weights.known_loss(shown, came)
        run.linear.rows[0] += 1


@kernel
def _forecast(plan, run, row, x, targets, forecasts):
    """Write the forecasts of the rules and the linear models. The models also learn from the targets."""
    steps = plan.steps
    known = plan.known
    rows = len(run.history)
    for i in range(len(known)):
        run.history[row % rows, i] = x[known[i]]
    for rule in range(len(plan.ages)):
        for s in range(len(steps)):
            values = run.history[(row - plan.ages[rule, s]) % rows]
            for i in range(len(known)):
                forecasts[1 + rule, s * len(known) + i] = values[i]
    first = 1 + len(plan.ages)
    for i in range(len(plan.sizes)):
        linear_row(plan, i, model_at(plan, run.linear, i), row, x, targets, forecasts[first + i])


def linear_models(inputs: int, outputs: int) -> list[Linear]:
    """Choose linear models: few and many lags, forgetting quickly and slowly.

    Args:
        inputs: the number of inputs.
        outputs: the number of outputs of all steps.
    """
    chosen = MODELS if outputs <= MANY_OUTPUTS else THEIR_MODELS
    return list(dict.fromkeys(Linear(max(1, lags // inputs), forgetting) for lags, forgetting in chosen))
