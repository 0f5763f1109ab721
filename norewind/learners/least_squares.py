"""Recursive least squares on features of the past: linear and exact, in one pass."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from norewind.engines.kernels import kernel
from norewind.learners.horizon import check_same_length, check_steps, exchange, upcoming_forecasts
from norewind.learners.learner import Forecasts, RowLearner, empty_forecasts
from norewind.learners.linear import Linear, LinearModel, LinearRun, init_linear, linear_plan, linear_row, reset_linear


class LeastSquaresRun(NamedTuple):
    """The linear model, and its forecasts of future rows.

    Attributes:
        model: the state of the linear model.
        outputs: a ring of the forecasts made at the latest rows.
    """

    model: LinearRun
    outputs: np.ndarray


class LeastSquares(RowLearner):
    """Recursive least squares with forgetting, for one or many steps ahead.

    For one step and an infinite `limit`, the weights of each target after every row are the
    exact solution of ridge regression on the rows in which it was known, where a sample that
    is k such rows older has the weight `forgetting`ᵏ. The covariance is kept as U D Uᵀ (Bierman's
    form), so that rounding cannot make it indefinite. Its gains depend on the inputs alone:
    with the features x and the gains k of the latest rows, the weights of all steps learn
    from one factorisation, w_h ← w_h + k_{t−h} (y_t − w_hᵀ x_{t−h}).

    Where this is not exact:

    - A target that is NaN is unknown. By default, every target has its own covariance, which
      does not change in a row where it is unknown. Targets that are known in the same rows can
      share one (`together`), in a fraction of the time and memory. If they are not, a row in
      which any of them is known counts for all: the unknown ones are assumed to equal their forecasts.
    - With several steps, the first one decides which rows count. A later step whose target is
      unknown while that of the first was known is also assumed to equal its forecast.
    - Forgetting stops while the mean variance of the weights is more than 10⁴ times that of the
      prior. Otherwise it would grow, and finally overflow, while the inputs stay constant. It
      is checked every 16 rows.
    - Inputs are clipped to ±10, and a missing one is 0.
    - With a `limit`, a larger error counts as an error of that size, so a single outlier cannot
      ruin the model.

    Args:
        inputs: the number of inputs.
        targets: the number of targets.
        steps: the steps to forecast, in rows ahead, in increasing order; `(0,)` if targets belong to the row itself.
        lags: the number of latest rows that it sees.
        forgetting: the weight of the past after each row, above 0 and at most 1.
        limit: the largest error, in standard deviations of earlier errors; infinite for the exact solution.
        together: whether the targets share one covariance, because they are known in the same rows.

    Raises:
        ModelError: `steps` is invalid, or `forgetting` is out of range.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> xs = rng.normal(size=(500, 2)).astype(np.float32)
    >>> learner = LeastSquares(2, 1)
    >>> run, losses, _ = learner.scan(learner.init(), xs, xs @ np.array([[2.0], [-1.0]], np.float32))
    >>> [round(weight, 1) for weight in learner.weights(run)[0, 1:].tolist()]
    [2.0, -1.0]
    """

    def __init__(
        self,
        inputs: int,
        targets: int,
        *,
        steps: Sequence[int] = (0,),
        lags: int = 1,
        forgetting: float = 1.0,
        limit: float = np.inf,
        together: bool = False,
    ):
        self.inputs = inputs
        self.targets = targets
        self.steps = check_steps(type(self).__name__, steps)
        self._model = Linear(lags, forgetting)
        self.plan = linear_plan([self._model], inputs, targets, steps, limit, together=together)

    def init(self) -> LeastSquaresRun:
        """Start a run with weights of 0."""
        model = init_linear(self.plan, [self._model], self.inputs, self.targets)
        return LeastSquaresRun(model, np.zeros((self.horizon, 1, len(self.steps) * self.targets), np.float32))

    def weights(self, run: LeastSquaresRun) -> np.ndarray:
        """Return the weights (steps × targets, features).

        Args:
            run: the run.

        Returns:
            The weights of a constant, of the latest row, of the row before it, and so on.
        """
        features, width = self.plan.sizes[0, :2]
        return run.model.weights.reshape(-1, width)[:, :features]

    def scan(
        self, run: LeastSquaresRun, xs: Any, targets: Any, *, count: int | None = None, outputs: bool = False
    ) -> tuple[LeastSquaresRun, np.ndarray, Forecasts]:
        """Learn from a chunk of rows; see `Learner.scan`.

        Targets are (rows, steps × targets), and losses are squared errors, ½ Σ (output − target)². Outputs are always
        returned, because they cost nothing extra.
        """
        check_same_length(xs, targets)
        return run, *self._learn(run, xs, targets, count)

    def forward(self, run: LeastSquaresRun, xs: Any, *, count: int | None = None) -> tuple[LeastSquaresRun, Forecasts]:
        model = run.model._replace(past=run.model.past.copy(), rows=run.model.rows.copy())
        run = LeastSquaresRun(model, run.outputs.copy())
        unknown = np.full((len(xs), len(self.steps) * self.targets), np.nan, np.float32)
        return run, self._learn(run, xs, unknown, count)[1]

    def _learn(self, run: LeastSquaresRun, xs: Any, targets: Any, count: int | None) -> tuple[np.ndarray, Forecasts]:
        xs = np.ascontiguousarray(xs, np.float32)
        targets = np.ascontiguousarray(targets, np.float32)
        losses = np.zeros(len(xs), np.float32)
        forecasts = empty_forecasts(self.horizon, targets.shape)
        slots = np.zeros(len(xs), np.int64)
        learn_rows(self.plan, self.slot(run), slots[:count], xs, targets, losses, tuple(forecasts))
        return losses, forecasts

    def slot(self, run: LeastSquaresRun) -> tuple[LinearModel, np.ndarray, np.ndarray]:
        """Return the arrays of a run as `learn_rows` takes them, with one slot.

        Args:
            run: the run.
        """
        (past, factors, weights, spreads, variances, rows), width = run.model, self.plan.sizes[0, 1]
        shaped = past.reshape(1, -1, 1 + self.plan.groups, width), factors[None], weights.reshape(1, -1, width)
        return LinearModel(*shaped, spreads, variances), rows, run.outputs[None]

    def for_keys(self, run: LeastSquaresRun, *, share: bool = False) -> Any:
        from norewind.learners.keyed.keyed_least_squares import KeyedLeastSquares

        return super().for_keys(run, share=True) if share else KeyedLeastSquares(self, run)

    def upcoming(self, run: LeastSquaresRun) -> np.ndarray:
        return upcoming_forecasts(run.outputs, self.steps, run.model.rows[0])

    def reset(self, run: LeastSquaresRun) -> LeastSquaresRun:
        reset_linear(run.model)
        run.outputs[:] = 0
        return run


@kernel
def learn_rows(plan, runs, slots, xs, targets, losses, results):
    """Learn from each row with the run in its slot, then forecast from it.

    Args:
        plan: the constants of the model, from `linear_plan`.
        runs: the arrays of all slots, changed in place: models, numbers of rows, and rings of waiting forecasts.
        slots: the slot of each row.
        xs: inputs (rows, inputs).
        targets: targets (rows, steps × targets); NaN means unknown.
        losses: where to add the squared errors.
        results: where to write the forecasts made at the rows, and those that were due.
    """
    steps, (models, rows, rings), (forecasts, due) = plan.steps, runs, results
    outputs = np.zeros((2, targets.shape[1]))
    per_step = targets.shape[1] // len(steps)
    for t in range(len(slots)):
        slot = slots[t]
        model = LinearModel(
            models.past[slot], models.factors[slot], models.weights[slot], models.spreads[slot], models.variance[slot]
        )
        row = rows[slot]
        linear_row(plan, 0, model, row, xs[t], targets[t], outputs[0])
        if steps[0] > 0:
            exchange(rings[slot], steps, row, outputs[:1], outputs[1:])
        else:
            outputs[1] = outputs[0]
        forecasts[t], due[t] = outputs
        for i in range(targets.shape[1]):
            if row >= steps[i // per_step] and np.isfinite(targets[t, i]):
                losses[t] += 0.5 * (outputs[1, i] - targets[t, i]) ** 2
        rows[slot] += 1
