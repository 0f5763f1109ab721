"""Forecasts of numbers by least squares, networks and simple rules, mixed by their recent performance."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from norewind.learners import expert_weights
from norewind.learners.explanation import Explanation, ForecastParts, explain_numbers
from norewind.learners.horizon import PERIODS, upcoming_forecasts
from norewind.learners.keyed.keyed_program import KeyedProgram
from norewind.learners.learner import Forecasts, empty_forecasts
from norewind.learners.linear import Linear, LinearPlan, LinearRun, init_linear, linear_plan, reset_linear
from norewind.learners.mixed_rows import NumberMixturePlan, NumberMixtureRun, mix_rows
from norewind.learners.mixture import Member, MixtureRun, RowMixture, join_forecasts, unique_names
from norewind.learners.outlook import OutlookLearner
from norewind.learners.past_values import init_past, rule_name
from norewind.learners.seasons import LONGEST_PERIOD, init_seasons

# The lags of the targets are divided by their number. Other inputs have fewer.
MODELS = (
    Linear(8, 0.998),
    Linear(32, 0.9998),
    Linear(168, 0.9998),
    Linear(168, 0.998),
    Linear(168, 0.9998, spread=100.0),
    Linear(24, 0.9998, spread=100.0),
    Linear(24, 0.9998, spread=10.0, differences=True),
    Linear(24, 0.9998, spread=10.0, season=1),
    Linear(24, 0.9998, spread=10.0, season=2),
    Linear(24, 0.9998, spread=10.0, season=1, differences=True),
)
# With more outputs than this, weights take most of the time, and fewer models are as good.
MANY_OUTPUTS, MODELS_FOR_MANY_OUTPUTS = (
    200,
    (
        Linear(32, 0.9998),
        Linear(32, 0.998),
        Linear(168, 0.9998),
        Linear(32, 0.9998, differences=True),
        Linear(32, 0.9998, season=1),
    ),
)
# With a small budget, models of the past of the targets see at most this many rows of the other inputs.
FEW_OTHERS = 16
# Simple rules: the period, where -1 and -2 are the seasons of the series and 0 is the last value, and whether they add
# the change since a period ago.
RULES = ((0, 0), *((period, 0) for period in PERIODS), (-1, 0), (-2, 0), (-1, 1))
# The logarithm of the first weight of the last value, relative to that of any other expert.
FIRST_WEIGHT = 3.0
# The largest error that a linear model learns from, in standard deviations of its earlier errors.
ERROR_LIMIT = 5.0


class RuleChoice(NamedTuple):
    """The simple rules of a mixture, and how its experts are weighted.

    Attributes:
        rules: the rules, as in `RULES`.
        longest: the longest period in rows that is found online; 0 to look for none.
        row_weight: the weight of a row in the experts' records. With a larger one, weights depend on fewer rows.
    """

    rules: Sequence[tuple[int, int]] = RULES
    longest: int = LONGEST_PERIOD
    row_weight: float = expert_weights.ROW_WEIGHT


class NumberMixture(RowMixture):
    """Forecasts rows of numbers, all steps of a horizon, by experts weighted by their recent performance.

    The experts are the running mean, linear models, `members`, and, where the past of the
    targets is known, persistence and the value one period ago, for some common periods and for
    those that are found in the series; for steps longer than a period, the latest value that is
    a whole number of periods older. An expert without enough rows does not count yet, and the
    mixture starts from the last value. Every step and target has its own weights. There is
    nothing to tune.

    Targets are (rows, steps × targets), and losses are squared errors, or nats if `gaussian`.

    Args:
        inputs: the number of inputs. Any that follow them are seen by the members only.
        targets: the number of targets.
        steps: the steps to forecast, in rows ahead, in increasing order; `(0,)` if targets belong to the row itself.
        models: the linear models.
        members: other learners of the same steps.
        known: which of the inputs are the latest known targets; empty if they are not among them.
        gaussian: whether to forecast variances as well, as `losses.known_gaussian` expects them.
        periods: at most two periods of the series in rows, if they are known in advance.
        choice: the simple rules, and how experts are weighted.
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
        periods: Sequence[int] = (),
        choice: RuleChoice = RuleChoice(),  # noqa: B008 (immutable)
    ):
        super().__init__(members, steps)
        self.inputs = inputs
        self.targets = targets
        self.gaussian = gaussian
        self.periods = tuple(periods)
        self.longest = choice.longest
        own, rules = len(known), list(choice.rules) if len(known) else []
        # Without the past of the targets, there is nothing to take differences of.
        self.models = [model for model in models if own or (model.season, model.differences) == (0, False)]
        linear = linear_plan(self.models, inputs, targets, steps, ERROR_LIMIT, own=own)
        bases = [_rule_of(model, rules) for model in self.models]
        others = [i for i in range(inputs) if i not in known]
        arrays = (np.array(values, np.int64) for values in (bases, known, others))
        rules = np.array(rules, np.int64).reshape(-1, 2)
        self.plan = NumberMixturePlan(*linear, rules, *arrays, row_weight=choice.row_weight)
        self.outputs = len(self.steps) * targets
        simple = [rule_name(*rule) for rule in rules.tolist()]
        self.member_names = unique_names(["mean so far", *simple, *(model.name for model in self.models)], members)
        self.experts = len(self.member_names)
        # Numba takes several times as long for named or nested tuples.
        self._plan = tuple(self.plan)
        self._no_targets = np.empty((0, self.outputs), np.float32)

    def start(self) -> NumberMixtureRun:
        known = len(self.plan.known)
        performance = expert_weights.init_performance(self.experts, self.outputs)
        if known:
            performance.recent_losses[1] = -2 * FIRST_WEIGHT
        return NumberMixtureRun(
            init_linear(LinearPlan(*self.plan[:6]), self.models, self.inputs, self.targets),
            init_past(known, self.horizon, max(self.longest, *self.plan.rules[:, 0].tolist(), 0)),
            init_seasons(known if self.longest else 0, self.periods, self.longest),
            np.zeros((max(1, self.horizon), self.experts, self.outputs), np.float32),
            performance,
            np.zeros((self.horizon, 1 + self.gaussian, self.outputs), np.float32),
        )

    def copy_of(self, mixture: NumberMixtureRun) -> NumberMixtureRun:
        linear, past, seasons, waiting, performance, outputs = mixture
        features, factors, weights, spreads, variances, rows = linear  # `_replace` takes a microsecond
        linear = LinearRun(features.copy(), factors, weights, spreads, variances, rows.copy())
        return NumberMixtureRun(linear, past.copy(), seasons, waiting, performance, outputs.copy())

    def mix(
        self, mixture: NumberMixtureRun, others: list[Forecasts], xs: np.ndarray, targets: np.ndarray | None, count: int
    ) -> tuple[np.ndarray, Forecasts]:
        xs = np.ascontiguousarray(xs[:, : self.inputs], np.float32)  # what follows is for members
        targets = self._no_targets if targets is None else np.ascontiguousarray(targets, np.float32)
        rows = len(xs)
        joined = join_forecasts(others, rows, self.outputs)
        losses = np.zeros(rows, np.float32)
        made, due = forecasts = empty_forecasts(self.horizon, (rows, (1 + self.gaussian) * self.outputs))
        linear, past, seasons, waiting, performance, rings = mixture
        run = *linear, past, *seasons, waiting, *performance, rings
        weights = forecasts.weights = np.zeros((rows, self.experts))
        mix_rows(self._plan, run, xs if count == rows else xs[:count], targets, joined, losses, made, due, weights)
        return losses, forecasts

    def for_keys(self, run: MixtureRun, *, share: bool = False) -> KeyedProgram:
        from norewind.learners.keyed.keyed_mixture import KeyedMixture

        if share or self.members:
            return super().for_keys(run, share=share)
        return KeyedMixture(self, run)

    def explain(self, run: MixtureRun) -> Explanation | None:
        parts: list[ForecastParts] = []
        for learner, own, count in zip(self.members, run.members, self.forecasts, strict=True):
            parts += learner.forecast_parts(own) or count * [{}]
        return explain_numbers(self, run.mixture, parts)

    def upcoming(self, run: MixtureRun) -> np.ndarray:
        return upcoming_forecasts(run.mixture.outputs, self.steps, run.mixture.linear.rows[0])

    def replan(self, run: MixtureRun, x: np.ndarray) -> tuple[MixtureRun, np.ndarray]:
        mixture, members, changes = run.mixture, list(run.members), np.zeros((self.experts, self.outputs))
        expert = self.experts - sum(self.forecasts)
        for place, (learner, count) in enumerate(zip(self.members, self.forecasts, strict=True)):
            if isinstance(learner, OutlookLearner):
                members[place], changes[expert : expert + count] = learner.replan(members[place], x)
            expert += count
        place = (int(mixture.linear.rows[0]) - 1) % len(mixture.waiting)
        forecasts = np.clip(mixture.waiting[place] + changes, -expert_weights.MAX_FORECAST, expert_weights.MAX_FORECAST)
        rings, moments = mixture.outputs.copy(), np.zeros((2, self.outputs))
        expert_weights.mix_densities(mixture.performance, forecasts, *moments, np.zeros_like(forecasts))
        if self.gaussian:
            expert_weights.encode_variances(moments[1])
        rings[place] = moments[: 1 + self.gaussian]
        return MixtureRun(tuple(members), mixture._replace(outputs=rings)), rings[place].reshape(-1)

    def forget_rows(self, mixture: NumberMixtureRun) -> None:
        reset_linear(mixture.linear)
        for part in (mixture.past, mixture.seasons.seen, mixture.outputs):
            part[:] = 0


def _rule_of(model: Linear, rules: list[tuple[int, int]]) -> int:
    """Return the rule whose errors a model forecasts; -1 if it forecasts the targets."""
    if not (model.season or model.differences):
        return -1
    return rules.index((-model.season, int(model.differences and model.season > 0)))


def linear_models(inputs: int, outputs: int, own: int, *, few: bool = False) -> list[Linear]:
    """Choose linear models: few and many lags, forgetting quickly and slowly, of values and of changes.

    The lags of the targets are divided by their number only, whatever other inputs there are.

    Args:
        inputs: the number of inputs.
        outputs: the number of outputs of all steps.
        own: how many of the inputs are the latest targets.
        few: whether to see at most `FEW_OTHERS` rows of the other inputs, which takes less time.
    """
    chosen = MODELS if outputs <= MANY_OUTPUTS else MODELS_FOR_MANY_OUTPUTS
    found = []
    for model in chosen:
        # With many other inputs, only some of the models can afford to see them.
        is_first = model.spread == 1 and not model.differences and not model.season
        others = max(int(is_first), model.lags // inputs) if inputs > own else 0
        others = min(others, FEW_OTHERS) if few and own else others
        found.append(model._replace(lags=max(1, model.lags // own) if own else 0, others=others))
    return list(dict.fromkeys(found))
