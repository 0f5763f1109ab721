"""Forecasts of classes by networks and simple counts, mixed by their recent performance."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from norewind.engines.kernels import kernel
from norewind.learners.bayesian import learn_weights
from norewind.learners.horizon import exchange, upcoming_forecasts
from norewind.learners.learner import Forecasts, empty_forecasts
from norewind.learners.mixture import Member, MixtureRun, RowMixture, join_forecasts, unique_names
from norewind.learners.product_of_experts import PRIOR_CURVATURE, learn_exponents, write_product

# The share of its weight that each expert passes on after a row, so that the mixture can follow changes.
CLASS_SWITCHING = 0.002
# The first weight of the product of all other experts, which takes some rows to learn its exponents.
PRODUCT_WEIGHT = 0.01
# The initial count of every class.
PRIOR_COUNT = 0.1
# The share of a count that is kept from row to row.
COUNT_DECAY = 0.9995
# The least probability of a class, whatever an expert predicts.
MIN_PROBABILITY = 1e-6


class ClassMixtureRun(NamedTuple):
    """The state of the mixture, without its members.

    Attributes:
        classes: how often each class occurred.
        pairs: how often each class followed another (steps, before, class).
        latest: a ring of the latest classes known; -1 if there is none.
        log_weights: the logarithms of the experts' weights (steps, experts).
        exponents: the exponents of the other experts in their product (steps, experts - 1).
        curvature: the curvature of the loss in these exponents (steps, experts - 1, experts - 1).
        waiting: a ring of the experts' forecasts that are waiting for their classes.
        outputs: a ring of the mixture's forecasts.
        rows: the number of rows in the sequence.
    """

    classes: np.ndarray
    pairs: np.ndarray
    latest: np.ndarray
    log_weights: np.ndarray
    exponents: np.ndarray
    curvature: np.ndarray
    waiting: np.ndarray
    outputs: np.ndarray
    rows: np.ndarray


class ClassMixture(RowMixture):
    """Forecasts a class, all steps of a horizon, by experts weighted by their recent performance.

    The experts are the frequencies of the classes, their frequencies after the latest class, `members`, and the product
    of all of these with exponents that are learned online. They are mixed as in `BayesMixture`: for every step, over
    the rows whose class is known, the total loss is hardly more than that of the best expert.

    Targets are numbers of classes, of shape (rows, steps); an unknown one is NaN. Outputs are log-probabilities, of
    shape (rows, steps × classes), and losses are in nats. Without targets, as in `forward`, the latest known class
    stays the same.

    Args:
        members: other learners of the same steps, whose outputs are logits.
        classes: the number of classes.
        steps: the steps to forecast, in rows ahead, in increasing order; `(0,)` if classes belong to the row itself.
    """

    def __init__(self, members: Sequence[Member], classes: int, steps: Sequence[int] = (0,)):
        super().__init__(members, steps)
        self.classes = classes
        own = ["frequencies so far", "frequencies after the latest class"]
        self.member_names = (*unique_names(own, members), "product of all members")
        self.experts = len(self.member_names)
        self._steps = np.array(steps)

    def start(self) -> ClassMixtureRun:
        steps, classes, experts = len(self.steps), self.classes, self.experts
        return ClassMixtureRun(
            np.full(classes, PRIOR_COUNT),
            np.full((steps, classes, classes), PRIOR_COUNT),
            np.full(max(1, self.horizon) + 1, -1),
            np.tile(np.log([*[(1 - PRODUCT_WEIGHT) / (experts - 1)] * (experts - 1), PRODUCT_WEIGHT]), (steps, 1)),
            np.full((steps, experts - 1), 1 / (experts - 1)),
            np.tile(PRIOR_CURVATURE * np.eye(experts - 1), (steps, 1, 1)),
            np.zeros((self.horizon, experts, steps * classes), np.float32),
            np.zeros((self.horizon, 1, steps * classes), np.float32),
            np.zeros(1, np.int64),
        )

    def copy_of(self, mixture: ClassMixtureRun) -> ClassMixtureRun:
        return mixture._replace(
            latest=mixture.latest.copy(),
            waiting=mixture.waiting.copy(),
            outputs=mixture.outputs.copy(),
            rows=mixture.rows.copy(),
        )

    def mix(
        self, mixture: ClassMixtureRun, others: list[Forecasts], xs: np.ndarray, targets: np.ndarray | None, count: int
    ) -> tuple[np.ndarray, Forecasts]:
        rows, width = len(xs), len(self.steps) * self.classes
        if targets is None:
            targets = np.full((rows, len(self.steps)), np.nan)
        targets = np.ascontiguousarray(targets, np.float32)
        losses = np.zeros(rows, np.float32)
        made, due = forecasts = empty_forecasts(self.horizon, (rows, width))
        logits, weights = join_forecasts(others, rows, width), np.zeros((rows, self.experts))
        forecasts.weights = weights
        _learn_rows(self._steps, mixture, targets[:count], logits, losses, made, due, weights)
        return losses, forecasts

    def upcoming(self, run: MixtureRun) -> np.ndarray:
        return upcoming_forecasts(run.mixture.outputs, self.steps, run.mixture.rows[0])

    def forget_rows(self, mixture: ClassMixtureRun) -> None:
        mixture.latest[:] = -1
        for part in (mixture.outputs, mixture.rows):
            part[:] = 0


@kernel
def _learn_rows(steps, run, targets, logits, losses, forecasts, due, weights):
    """Learn from the class of each row, then forecast. For forecasts of the row itself, forecast first.

    Args:
        steps: the steps, in rows ahead.
        run: the state of the mixture, changed in place.
        targets: class indices (rows, steps); NaN means unknown.
        logits: the members' forecasts (rows, forecasts, steps × classes).
        losses: where to write the losses.
        forecasts: where to write the forecasts made at the rows.
        due: where to write the earlier forecasts of the rows.
        weights: where to write the mean weights of the experts over all steps (rows, experts).
    """
    classes, experts = run.pairs.shape[2], run.log_weights.shape[1]
    probabilities = np.zeros((experts, len(steps) * classes))
    earlier, mixed, expert_losses = np.zeros((experts, classes)), np.zeros((1, len(steps) * classes)), np.zeros(experts)
    for t in range(len(targets)):
        row = run.rows[0]
        observed = np.nan
        for s in range(len(steps)):
            # The class is the same for all steps for which it is known.
            observed = targets[t, s] if is_class(targets[t, s], classes) else observed
        latest = run.latest[(row - 1) % len(run.latest)]
        run.latest[row % len(run.latest)] = latest if np.isnan(observed) else np.int64(observed)
        if steps[0] > 0:
            latest = run.latest[row % len(run.latest)]
            _count(run, steps, row, observed)
            for s in range(len(steps)):
                if row >= steps[s] and is_class(targets[t, s], classes):
                    earlier[:] = run.waiting[(row - steps[s]) % len(run.waiting), :, s * classes : (s + 1) * classes]
                    _learn_class(run, s, earlier, np.int64(targets[t, s]), expert_losses)
        for s in range(len(steps)):
            _write_probabilities(run, s, latest, logits[t], probabilities)
        if steps[0] > 0:
            run.waiting[row % len(run.waiting)] = probabilities
        for s in range(len(steps)):
            start = s * classes
            _mix_probabilities(run.log_weights[s], probabilities, start, mixed[0, start : start + classes])
            for e in range(experts):
                weights[t, e] += np.exp(run.log_weights[s, e]) / len(steps)
        forecasts[t] = mixed[0]
        if steps[0] > 0:
            exchange(run.outputs, steps, row, mixed, mixed)
        elif np.isfinite(observed):
            _count(run, steps, row, observed)
            _learn_class(run, 0, probabilities, np.int64(observed), expert_losses)
        due[t] = mixed[0]
        for s in range(len(steps)):
            if row >= steps[s] and is_class(targets[t, s], classes):
                losses[t] -= due[t, s * classes + np.int64(targets[t, s])]
        run.rows[0] += 1


@kernel
def _learn_class(run, s, probabilities, target, losses):
    """Learn the weights and exponents of the experts of one step from a class that they have forecast.

    Args:
        run: the state of the mixture, changed in place.
        s: the index of the step.
        probabilities: what they forecast (experts, classes).
        target: the class.
        losses: a buffer for their losses.
    """
    losses[:] = -np.log(probabilities[:, target])
    learn_weights(run.log_weights[s], losses, CLASS_SWITCHING)
    learn_exponents(run.exponents[s], run.curvature[s], probabilities[:-1], target)


@kernel
def is_class(number, classes):
    """Return whether a number is a class. Unknown classes are NaN or -1; any other number would be out of bounds.

    Args:
        number: the target, as a float or an integer.
        classes: the number of classes.
    """
    return 0 <= number < classes


@kernel
def _count(run, steps, row, observed):
    """Count a class, both overall and after the class that was latest when it was forecast."""
    if np.isnan(observed):
        return
    for k in range(len(run.classes)):
        run.classes[k] = COUNT_DECAY * run.classes[k] + (k == observed)
    for s in range(len(steps)):
        ahead = max(1, steps[s])
        latest = run.latest[(row - ahead) % len(run.latest)]
        if row >= ahead and is_class(latest, len(run.classes)):
            for k in range(len(run.classes)):
                run.pairs[s, latest, k] = COUNT_DECAY * run.pairs[s, latest, k] + (k == observed)


@kernel
def _write_probabilities(run, s, latest, logits, probabilities):
    """Write all experts' probabilities for one step."""
    classes = run.pairs.shape[2]
    start = s * classes
    total = run.classes.sum()
    for k in range(classes):
        share = run.classes[k] / total
        probabilities[0, start + k] = share
        probabilities[1, start + k] = share + (run.pairs[s, latest, k] if is_class(latest, classes) else 0.0)
    for e in range(len(logits)):
        largest, finite = -np.inf, True
        for k in range(start, start + classes):
            largest, finite = max(largest, logits[e, k]), finite and np.isfinite(logits[e, k])
        for k in range(start, start + classes):
            # A member whose outputs are not all finite is ignored.
            probabilities[2 + e, k] = np.exp(np.float64(logits[e, k]) - largest) if finite else 1.0
    own = probabilities[:, start : start + classes]
    for e in range(len(own) - 1):
        _normalise(own[e])
    write_product(run.exponents[s], own[:-1], own[-1])
    _normalise(own[-1])


@kernel
def _normalise(probabilities):
    """Make probabilities add up to one, none of them below `MIN_PROBABILITY`."""
    total, classes = probabilities.sum(), len(probabilities)
    for k in range(classes):
        probabilities[k] = (1 - classes * MIN_PROBABILITY) * probabilities[k] / total + MIN_PROBABILITY


@kernel
def _mix_probabilities(log_weights, probabilities, start, mixed):
    """Write the mixture's log-probabilities for one step."""
    mixed[:] = 0.0
    for e in range(len(log_weights)):
        weight = np.exp(log_weights[e])
        for k in range(len(mixed)):
            mixed[k] += weight * probabilities[e, start + k]
    for k in range(len(mixed)):
        mixed[k] = np.log(mixed[k])
