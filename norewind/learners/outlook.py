"""Least squares on what is known in advance about the rows to forecast: their calendar, and planned columns."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from norewind.engines.kernels import kernel
from norewind.learners.explanation import ForecastPart, ForecastParts, parts_of_linear
from norewind.learners.horizon import check_steps
from norewind.learners.learner import Forecasts, Learner
from norewind.learners.linear import (
    MAX_INPUT,
    Linear,
    LinearModel,
    LinearPlan,
    LinearRun,
    init_linear,
    linear_plan,
    linear_row,
    model_at,
    reset_linear,
)
from norewind.learners.outlook_shape import OutlookShape

HOURS, WEEKDAYS, MONTHS, HARMONICS = 24, 7, 12, 3
# The regression on the outlook of a row itself: it forgets over about 2,000 rows.
REGRESSION = Linear(1, 0.9995, spread=10.0)
# The models of what the outlook leaves unexplained: few and many lags, which are divided by the number of targets.
REMAINDERS = (Linear(24, 0.998, spread=30.0), Linear(168, 0.9995, spread=30.0))
# With more outputs than this, only the first of these models is used.
MANY_OUTPUTS = 200
# The largest error that is learned from, in standard deviations of the earlier errors.
ERROR_LIMIT = 5.0


class OutlookPlan(NamedTuple):
    """The constants of an `OutlookLearner`.

    Attributes:
        first: the first regression; see `LinearPlan`.
        second: the models of its errors; see `LinearPlan`.
        known: which inputs are the latest targets.
        others: the other inputs, without the outlook.
        places: the place of the hour, weekday, year, month and holiday in a block; -1 for none.
        start: where the outlook starts in the inputs.
        width: the length of a block.
    """

    first: tuple
    second: tuple
    known: np.ndarray
    others: np.ndarray
    places: np.ndarray
    start: int
    width: int


class OutlookRun(NamedTuple):
    """The state of an `OutlookLearner`.

    Attributes:
        first: the regression on the outlook.
        second: the models of its errors.
        waiting: a ring of the latest forecasts of the regression (rows, steps × targets).
    """

    first: LinearRun
    second: LinearRun
    waiting: np.ndarray


class OutlookLearner(Learner):
    """Regresses each target on the outlook of its own row, and forecasts the residuals from their lags.

    One regression serves all steps, so what it learns about Mondays at 8 counts for every step that reaches one. Its
    features are the hour of the day (interpolated between whole hours), the weekday, the hour of each weekday, three
    harmonics of the year or the months, holidays by hour, and the planned columns with their squares. A second
    recursive least squares forecasts, for all steps, the residuals of this regression from its residuals at the latest
    rows and from the latest row of the other inputs. It is meant as a member of a mixture: its forecasts are NaN where
    the outlook is not known.

    Args:
        inputs: the number of inputs before the outlook.
        targets: the number of targets.
        steps: the steps to forecast, in rows ahead, from 1.
        known: which of the inputs are the latest known targets.
        shape: what the outlook consists of.
    """

    def __init__(self, inputs: int, targets: int, steps: Sequence[int], known: Sequence[int], shape: OutlookShape):
        self.steps = check_steps("OutlookLearner", steps)
        self.targets = targets
        self.outputs = len(self.steps) * targets
        places = [shape.entries.index(name) if name in shape.entries else -1 for name in CALENDAR]
        features = feature_count(np.array(places), shape.columns)
        self._first = [REGRESSION]
        chosen = REMAINDERS if self.outputs <= MANY_OUTPUTS else REMAINDERS[:1]
        self._second = [model._replace(lags=max(1, model.lags // targets)) for model in chosen]
        self.forecasts = len(self._second)
        self.names = tuple(f"calendar, and {model.name}" for model in self._second)
        others = [i for i in range(inputs) if i not in known]
        self.plan = OutlookPlan(
            tuple(linear_plan(self._first, features, targets, (0,), ERROR_LIMIT)),
            tuple(linear_plan(self._second, targets + len(others), targets, self.steps, ERROR_LIMIT, own=targets)),
            np.array(known, np.int64),
            np.array(others, np.int64),
            np.array(places, np.int64),
            inputs,
            shape.width,
        )
        self._sizes = features, targets + len(others)

    def init(self) -> OutlookRun:
        """Start a run with weights of 0."""
        features, inputs = self._sizes
        return OutlookRun(
            init_linear(LinearPlan(*self.plan.first), self._first, features, self.targets),
            init_linear(LinearPlan(*self.plan.second), self._second, inputs, self.targets),
            np.full((self.horizon + 1, self.outputs), np.nan),
        )

    def scan(
        self, run: OutlookRun, xs: Any, targets: Any, *, count: int | None = None, outputs: bool = False
    ) -> tuple[OutlookRun, np.ndarray, Forecasts]:
        """Learn from a chunk of rows; see `Learner.scan`. Losses are zeros: the mixture scores the forecasts."""
        xs, targets = np.ascontiguousarray(xs, np.float32), np.ascontiguousarray(targets, np.float32)
        made = np.zeros((len(xs), self.forecasts, self.outputs), np.float32)
        count = len(xs) if count is None else count
        arrays = (*run.first, *run.second, run.waiting)
        _scan_rows(tuple(self.plan), arrays, xs[:count], targets, made)
        made = made.reshape(len(xs), -1)
        return run, np.zeros(len(xs), np.float32), Forecasts(made, made[:0])

    def forward(self, run: OutlookRun, xs: Any, *, count: int | None = None) -> tuple[OutlookRun, Forecasts]:
        first, second = (part._replace(past=part.past.copy(), rows=part.rows.copy()) for part in run[:2])
        copied = OutlookRun(first, second, run.waiting.copy())
        unknown = np.full((len(xs), self.outputs), np.nan, np.float32)
        copied, _, forecasts = self.scan(copied, xs, unknown, count=count)
        return copied, forecasts

    def replan(self, run: OutlookRun, x: np.ndarray) -> tuple[OutlookRun, np.ndarray]:
        """Predict the rows ahead again, as if something else had been known about them at the latest row.

        Args:
            run: the run, which stays unchanged.
            x: the inputs of the latest row.

        Returns:
            A run with these predictions, and the change of each forecast made at that row.
        """
        place, waiting = (int(run.second.rows[0]) - 1) % len(run.waiting), run.waiting.copy()
        predict_steps(tuple(self.plan), model_at(LinearPlan(*self.plan.first), run.first, 0), x, waiting[place])
        return run._replace(waiting=waiting), waiting[place] - run.waiting[place]

    def forecast_parts(self, run: OutlookRun) -> list[ForecastParts]:
        plan, row = self.plan, int(run.second.rows[0]) - 1
        if row < 0:
            return []
        calendar = {ForecastPart(member="the calendar of that row"): run.waiting[row % len(run.waiting)].copy()}
        second, inputs, seen = LinearPlan(*plan.second), (plan.known, plan.others), "the calendar's prediction"
        parts = (parts_of_linear(second, run.second, e, row, inputs, seen) for e in range(self.forecasts))
        return [calendar | each for each in parts]

    def reset(self, run: OutlookRun) -> OutlookRun:
        reset_linear(run.first)
        reset_linear(run.second)
        run.waiting[:] = np.nan
        return run


# The calendar entries in the order of `OutlookPlan.places`.
CALENDAR = ("hour", "weekday", "year", "month", "holiday")


@kernel
def feature_count(places, columns):
    """Return how many features an outlook becomes.

    Args:
        places: the place of each calendar entry in a block; -1 for none.
        columns: the number of columns known in advance.
    """
    hour, weekday, year, month, holiday = places
    count = HOURS * (hour >= 0) + WEEKDAYS * (weekday >= 0) + HOURS * WEEKDAYS * (hour >= 0 and weekday >= 0)
    count += 2 * columns
    return count + 2 * HARMONICS * (year >= 0) + MONTHS * (month >= 0) + (1 + HOURS * (hour >= 0)) * (holiday >= 0)


@kernel
def write_outlook(places, block, features):
    """Write the features of one row's outlook, and return whether all of it is known.

    Args:
        places: the place of each calendar entry in a block; -1 for none.
        block: the outlook of the row.
        features: where to write the features.
    """
    features[:] = 0.0
    for value in block:
        if not np.isfinite(value):
            return False
    hour, weekday, year, month, holiday = places
    next_place, low, share = 0, 0, 0.0
    if hour >= 0:
        low = int(block[hour]) % HOURS
        share = block[hour] - int(block[hour])
        features[low], features[(low + 1) % HOURS] = 1 - share, share
        next_place += HOURS
    if weekday >= 0:
        features[next_place + int(block[weekday])] = 1.0
        next_place += WEEKDAYS
    if hour >= 0 and weekday >= 0:
        start = next_place + HOURS * int(block[weekday])
        features[start + low], features[start + (low + 1) % HOURS] = 1 - share, share
        next_place += HOURS * WEEKDAYS
    if year >= 0:
        for k in range(HARMONICS):
            angle = 2 * np.pi * (k + 1) * block[year]
            features[next_place], features[next_place + 1] = np.cos(angle), np.sin(angle)
            next_place += 2
    if month >= 0:
        features[next_place + int(block[month])] = 1.0
        next_place += MONTHS
    if holiday >= 0:
        features[next_place] = block[holiday]
        next_place += 1
        if hour >= 0:
            features[next_place + low] = (1 - share) * block[holiday]
            features[next_place + (low + 1) % HOURS] = share * block[holiday]
            next_place += HOURS
    for value in block[(places >= 0).sum() :]:
        value = min(max(np.float64(value), -MAX_INPUT), MAX_INPUT)
        features[next_place], features[next_place + 1] = value, min(value * value, MAX_INPUT)
        next_place += 2
    return True


@kernel
def _scan_rows(plan, arrays, xs, targets, made):
    """Learn from each row's targets, then forecast from it.

    Args:
        plan: the fields of an `OutlookPlan`.
        arrays: the arrays of an `OutlookRun`, changed in place.
        xs: inputs; the outlook comes last.
        targets: targets; NaN means unknown.
        made: where to write the forecasts (rows, models, outputs).
    """
    plan = OutlookPlan(*plan)
    first_plan, second_plan = LinearPlan(*plan.first), LinearPlan(*plan.second)
    first, second, waiting = LinearRun(*arrays[:6]), LinearRun(*arrays[6:12]), arrays[12]
    steps, own = second_plan.steps, len(plan.known)
    regression = model_at(first_plan, first, 0)
    features = np.empty(first_plan.inputs)
    now, explained, blank = np.empty(own), np.empty(own), np.empty(own)
    inputs, errors, due = np.empty(own + len(plan.others)), np.empty(targets.shape[1]), np.empty(targets.shape[1])
    for t in range(len(xs)):
        row, x = second.rows[0], xs[t]
        for i in range(len(errors)):
            due[i] = waiting[(row - steps[i // own]) % len(waiting), i]
            errors[i] = targets[t, i] - due[i]
        is_known = write_outlook(plan.places, x[plan.start : plan.start + plan.width], features)
        for k in range(own):
            # Unknown targets of the row are those of the nearest step.
            arrived = is_known and np.isfinite(targets[t, k])
            now[k] = x[plan.known[k]] if arrived else np.nan
        linear_row(first_plan, 0, regression, first.rows[0], features, now, blank)
        first.rows[0] += 1
        predict_targets(regression, features, explained)
        for k in range(own):
            inputs[k] = x[plan.known[k]] - explained[k] if is_known else 0.0
        for i in range(len(plan.others)):
            inputs[own + i] = x[plan.others[i]]
        for e in range(made.shape[1]):
            linear_row(second_plan, e, model_at(second_plan, second, e), row, inputs, errors, made[t, e])
        ahead = waiting[row % len(waiting)]
        predict_steps(plan, regression, x, ahead)
        for e in range(made.shape[1]):
            for i in range(len(ahead)):
                made[t, e, i] += ahead[i]
        second.rows[0] += 1


@kernel
def predict_steps(plan, regression, x, ahead):
    """Write the predictions of the regression for the rows ahead of a row; NaN where the outlook is not known.

    Args:
        plan: the fields of an `OutlookPlan`.
        regression: the arrays of the regression.
        x: the inputs of the row; the outlook comes last.
        ahead: where to write the values (steps × targets).
    """
    plan = OutlookPlan(*plan)
    own, width = len(plan.known), plan.width
    features, explained = np.empty(LinearPlan(*plan.first).inputs), np.empty(own)
    is_known = write_outlook(plan.places, x[plan.start : plan.start + width], features)
    for s in range(len(ahead) // own):
        begin = plan.start + (1 + s) * width
        is_known_ahead = write_outlook(plan.places, x[begin : begin + width], features) and is_known
        predict_targets(regression, features, explained)
        for k in range(own):
            ahead[s * own + k] = explained[k] if is_known_ahead else np.nan


@kernel
def predict_targets(regression: LinearModel, features, explained):
    """Write the prediction of each target by the regression on the outlook.

    Args:
        regression: the arrays of the model.
        features: the features of the outlook.
        explained: where to write the values.
    """
    for k in range(len(explained)):
        total = regression.weights[k, 0]
        for i in range(len(features)):
            total += regression.weights[k, 1 + i] * features[i]
        explained[k] = total
