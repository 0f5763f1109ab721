"""Scores of classes: the likelihood and accuracy of forecasts, compared with simple rules."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from norewind.core.losses import BIT
from norewind.engines.kernels import kernel
from norewind.learners.learner import Forecasts
from norewind.scoring.drift import Alarm, block_rows, drift_entries, init_drift
from norewind.scoring.metrics import ROW_LOSSES, last_half
from norewind.scoring.score import RECENT_ROWS, Outputs, ScoreState, StepScore, log_probabilities
from norewind.streams.position import Count
from norewind.streams.stream import Samples
from norewind.streams.table.columns import OTHER_CATEGORY
from norewind.wording import counted

# The accuracies of the model and of two simple rules.
ACCURACIES = ("accuracy", "majority", "last")


class ClassState(ScoreState):
    """The state of a `ClassScore`. The first four fields are arguments of `compare_classes`.

    Attributes:
        baseline: by step, the number of scored rows of the interval and the sum of their bits.
        right: by step, how often the model and each simple rule were right in the interval.
        counts: the number of rows of each class.
        past: a ring of the latest classes.
        rows: the number of rows.
        recent: for the latest rows, the class, the forecast class, and the forecast probability of the class.
        drift: the state of the detector of drift; see `norewind.scoring.drift`.
        block: the number of rows in its blocks.
        alarms: its alarms in the interval.
        time: the time of the latest row; empty if there is none.
    """

    sums = ("baseline", "right", "counts", "drift")
    latest = ("recent",)

    baseline: np.ndarray
    right: np.ndarray
    counts: np.ndarray
    past: np.ndarray
    rows: Count
    recent: np.ndarray
    drift: np.ndarray
    block: Annotated[int, msgspec.Meta(ge=1)]
    alarms: list[Alarm] = msgspec.field(default_factory=list)
    time: str = ""


class ClassScore(StepScore):
    """Scores forecasts of classes, in bits. The baseline is the loss of forecasting the class frequencies so far.

    `accuracy` is the share of rows whose class was forecast as the most likely one, `majority` the share whose
    class was the most frequent so far, and `last` the share whose class was the latest known
    one; all are means over the steps. The simple rules use only classes known when the forecast was made.

    Args:
        classes: the number of classes.
        name: converts a class to its name.
        steps: the forecast steps, in rows ahead.
    """

    unit, simple_forecasts = ROW_LOSSES["classes"]

    def __init__(self, classes: int, name: Callable[[int], Any], steps: Sequence[int]):
        super().__init__(steps)
        self.name, self.scale = name, 1 / (BIT * len(steps))
        self.state = ClassState(
            baseline=np.zeros((len(steps), 2)),
            right=np.zeros((len(steps), len(ACCURACIES))),
            counts=np.zeros(classes),
            past=np.full((int(self.delays[-1]), 2), -1.0),
            rows=0,
            recent=np.zeros((0, 3)),
            drift=init_drift(1),
            block=block_rows(self.steps[0]),
        )

    def add(self, samples: Samples, outputs: Outputs | None = None) -> int:
        assert isinstance(outputs, Forecasts)
        targets, state = samples.targets.astype(np.float64), self.state
        due = self._by_class(outputs.due)
        values = np.ascontiguousarray(samples.values[:, 0], np.float64)
        sums = state.baseline, state.right, state.counts, state.past
        first = state.rows % len(state.past)
        compare_classes(*sums, self.delays, first, values, targets, due.argmax(axis=-1))
        # The actual class, the forecast class, and the forecast log-probability of the actual class.
        classes, nearest = targets[:, 0], log_probabilities(due[:, 0])
        chances = nearest[np.arange(len(classes)), np.nan_to_num(classes).astype(int)]
        self.find_drift(samples, np.where(np.isnan(classes), np.nan, -chances)[:, None], ["class"])
        state.rows += len(values)
        rows = np.stack([classes, nearest.argmax(axis=-1), np.exp(chances)], axis=1)[-RECENT_ROWS:]
        rows[np.isnan(rows[:, 0])] = np.nan
        state.recent = np.concatenate([state.recent, rows])[-RECENT_ROWS:]
        return super().add(samples)

    def _by_class(self, outputs: np.ndarray) -> np.ndarray:
        """Reshape logits to (rows, steps, classes)."""
        return np.reshape(outputs, (len(outputs), len(self.steps), -1))

    def end_interval(self) -> dict[str, Any]:
        baseline, right = self.state.baseline, self.state.right
        self.state.baseline, self.state.right = np.zeros_like(baseline), np.zeros_like(right)
        total, bits = baseline.sum(axis=0).tolist()
        drift = drift_entries(self.state)
        if not total:
            return {"baseline": None} | drift
        shares = (right.sum(axis=0) / total).round(6).tolist()
        line = {"baseline": bits / total, "scored": int(total), **dict(zip(ACCURACIES, shares, strict=True))}
        if len(self.steps) > 1:
            by_step = (right / np.maximum(baseline[:, :1], 1)).round(4).T.tolist()
            line["by_step"] = dict(zip(ACCURACIES, by_step, strict=True))
        return line | drift

    def prediction_entries(self, first: int, samples: Samples, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """Yield, for each row, the forecast classes, and how good the latest forecast of this row was.

        Args:
            first: the number of the first row.
            samples: consecutive rows.
            outputs: the forecasts of the learner.
        """
        assert isinstance(outputs, Forecasts)
        assert samples.named is not None
        assert samples.values is not None
        ahead, due = (log_probabilities(self._by_class(part)) for part in (outputs.made, outputs.due))
        named = np.full(len(due), due.shape[-1]) if samples.named is None else samples.named
        for i, target in enumerate(samples.targets[:, 0].tolist()):
            entry, is_known = self.first_entries(first + i, samples, i), target == target
            if self.horizon:
                # The row's own class has a name now, even if it is new.
                names, shares = self.likeliest(ahead[i], named[i] + (samples.values[i, 0] == named[i]))
                entry |= {"forecast": self.by_step(names), "probability": self.by_step(shares)}
            if is_known or not self.horizon:
                (name,), (share,) = self.likeliest(due[i, :1], named[i])
                entry |= {"prediction": name, "predicted": share}
                entry["target"] = self.name(int(target)) if is_known else None
                entry["surprise"] = round(float(-due[i, 0, int(target)] / BIT), 6) if is_known else None
            yield entry

    def likeliest(self, logs: np.ndarray, named: int | None = None) -> tuple[list[Any], list[float]]:
        """Return the name and the probability of the most likely class of each row.

        Args:
            logs: log-probabilities (rows, classes).
            named: how many classes had appeared when the forecast was made; the others have no name yet. None for all.
        """
        shares = [round(float(np.exp(log)), 6) for log in logs.max(axis=-1)]
        guesses = logs.argmax(axis=-1).tolist()
        return [self.name(guess) if named is None or guess < named else OTHER_CATEGORY for guess in guesses], shares

    def closing_text(self, lines: Sequence[dict[str, Any]], folder: Path) -> str:
        """Summarise bits and accuracy over the last half of a run; warn if a simple rule was right more often.

        Args:
            lines: the lines of metrics.
            folder: unused.
        """
        last = last_half([line for line in lines if line.get("scored")])
        if not last:
            return "No row with a known class was forecast."
        total = sum(line["scored"] for line in last)
        bits = sum(line["loss"] * line["scored"] for line in last) / total
        right = {name: sum(round(line[name] * line["scored"]) for line in last) for name in ACCURACIES}
        shares = {name: f"{count / total:.1%}" for name, count in right.items()}
        rules = f"the majority class: {shares['majority']}, the last class: {shares['last']}"
        text = f"last {counted(total, 'row')}: right {shares['accuracy']} of the time ({rules}), {bits:.4f} bits"
        best = max(ACCURACIES[1:], key=right.__getitem__)
        if right[best] > right["accuracy"]:
            times = f"{right[best]:,} times against {right['accuracy']:,}"
            text += f"\nWarning: the {best} class was right more often than this model, {times}. "
            text += "Use that rule instead, or train longer."
        return text


@kernel
def compare_classes(baseline, right, counts, past, delays, first, values, targets, guesses):
    """Add up, by step, the bits of the frequencies so far, and how often the model and two simple rules were right.

    When a class was forecast several rows ahead, the classes that have arrived since then are left out of
    its frequencies.

    Args:
        baseline: by step, the number of scored rows and the sum of their bits.
        right: by step, how often the model, the majority class and the last class were right.
        counts: the number of rows of each class.
        past: a ring with the class of each of the latest rows, and the latest class known then; -1 if there is none.
        delays: how many rows ago the latest class arrived that a simple rule may use, by step.
        first: the place of the first row in the ring.
        values: the class of each row; NaN means unknown.
        targets: the classes to score, by row and step; NaN means unknown.
        guesses: the most likely classes according to the model, by row and step.
    """
    depth, classes = len(past), len(counts)
    known = np.empty_like(counts)
    for row in range(len(values)):
        known[:] = counts
        left_out = 1  # rows whose classes are not in `known`, this one included
        for step in range(len(delays)):
            while left_out < delays[step]:
                latest = past[(first + row - left_out) % depth, 0]
                if 0 <= latest < classes:
                    known[int(latest)] -= 1
                left_out += 1
            if np.isnan(targets[row, step]):
                continue
            target = int(targets[row, step])
            seen = 0
            total = 0.0
            commonest = 0
            for number in range(classes):
                seen += known[number] > 0
                total += known[number]
                if known[number] > known[commonest]:
                    commonest = number
            # Add one half for every class seen, and for one unseen class (Krichevsky and Trofimov).
            baseline[step, 0] += 1
            baseline[step, 1] -= np.log2((known[target] + 0.5) / (total + 0.5 * (seen + 1)))
            right[step, 0] += guesses[row, step] == target
            right[step, 1] += total > 0 and commonest == target
            right[step, 2] += past[(first + row - delays[step]) % depth, 1] == target
        here = (first + row) % depth
        past[here, 0], past[here, 1] = -1.0, past[here - 1, 1]
        if not np.isnan(values[row]):
            past[here] = values[row]
            counts[int(values[row])] += 1
