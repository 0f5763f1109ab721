"""How forecasts of a class are scored: bits and accuracy, compared with simple rules."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from norewind.kernels import kernel
from norewind.losses import BIT
from norewind.runs.metrics import counted
from norewind.runs.row_scores import RECENT, place_of
from norewind.runs.scores import Score
from norewind.streams.stream import Samples

NAMES = ("accuracy", "majority", "last")


class ClassScore(Score):
    """Forecasts of classes, in bits; the baseline is the loss of forecasting by their frequencies so far.

    `accuracy` is the share of classes that were the likeliest one, `majority` that of the
    class that was the most frequent so far, and `last` that of the newest class known; all
    are means over the steps. Simple rules use what was known when the forecast was made.

    Args:
        classes: the number of classes.
        name: how a class is called.
        steps: how many rows ahead they are forecast.
    """

    unit = "bits"
    trivial = "class frequencies"
    needs_outputs = True

    def __init__(self, classes: int, name: Callable[[int], Any], steps: Sequence[int]):
        self.name, self.steps, self.horizon = name, tuple(steps), steps[-1]
        self.scale = 1 / (BIT * len(steps))
        self._delays = np.maximum(1, self.steps)
        self.state = {
            "baseline": np.zeros((len(steps), 2)),
            "right": np.zeros((len(steps), len(NAMES))),
            "counts": np.zeros(classes),
            "past": np.full((int(self._delays[-1]), 2), -1.0),
            "rows": 0,
            "stretch": np.zeros((0, 3)),
        }

    def add(self, samples: Samples, outputs: Any = None) -> int:
        targets = samples.targets.astype(np.float64)
        state, steps = self.state, len(self.steps)
        due = np.asarray(outputs[1] if self.horizon else outputs).reshape(len(targets), steps, -1)
        guesses = np.argmax(due, axis=-1)
        values = np.ascontiguousarray(samples.values[:, 0], np.float64)
        sums = [state[name] for name in ("baseline", "right", "counts", "past")]
        compare_classes(*sums, self._delays, state["rows"] % len(state["past"]), values, targets, guesses)
        state["rows"] += len(values)
        # Of the newest rows the class, the one that was forecast, and the probability that their own had.
        came, nearest = targets[-RECENT:, 0], log_shares(due[-RECENT:, 0])
        own = np.exp(nearest[np.arange(len(came)), np.nan_to_num(came).astype(int)])
        rows = np.stack([came, nearest.argmax(axis=-1), own], axis=1)
        rows[np.isnan(came)] = np.nan
        state["stretch"] = np.concatenate([state["stretch"], rows])[-RECENT:]
        return int(np.sum(~np.isnan(targets).all(axis=-1)))

    @property
    def was_scored(self) -> bool:
        """Whether the class of any of the newest rows was forecast."""
        return not np.isnan(self.state["stretch"]).all()

    def take(self) -> dict[str, Any]:
        baseline, right = self.state["baseline"], self.state["right"]
        self.state["baseline"], self.state["right"] = np.zeros_like(baseline), np.zeros_like(right)
        total, bits = baseline.sum(axis=0).tolist()
        if not total:
            return {"baseline": None}
        shares = (right.sum(axis=0) / total).round(6).tolist()
        line = {"baseline": bits / total, "scored": int(total), **dict(zip(NAMES, shares, strict=True))}
        if len(self.steps) > 1:
            by_step = (right / np.maximum(baseline[:, :1], 1)).round(4).T.tolist()
            line["by_step"] = dict(zip(NAMES, by_step, strict=True))
        return line

    def predictions(self, first: int, samples: Samples, outputs: Any) -> Iterator[dict[str, Any]]:
        """For each row the forecast classes, and how good the newest forecast of this row was."""
        parts = (np.asarray(part) for part in (outputs if self.horizon else (outputs, outputs)))
        made, due = (log_shares(part.reshape(len(part), len(self.steps), -1)) for part in parts)
        for i, target in enumerate(samples.targets[:, 0].tolist()):
            entry: dict[str, Any] = {"sample": first + i} | place_of(samples, i)
            if self.horizon:
                entry |= self._forecast(first + i, made[i])
            if not self.horizon or target == target:
                nearest = due[i, 0]
                guess = int(nearest.argmax())
                entry |= {"prediction": self.name(guess), "predicted": round(float(np.exp(nearest[guess])), 6)}
                entry["target"] = self.name(int(target)) if target == target else None
                entry["surprise"] = round(float(-nearest[int(target)] / BIT), 6) if target == target else None
            yield entry

    def _forecast(self, row: int, made: np.ndarray) -> dict[str, Any]:
        """The likeliest classes of rows to come, and their probabilities; by step if there are several."""
        likeliest = made.argmax(axis=-1)
        named = [self.name(int(guess)) for guess in likeliest]
        shares = [round(float(np.exp(of[guess])), 6) for of, guess in zip(made, likeliest, strict=True)]
        parts: dict[str, list] = {"for": [row + step for step in self.steps], "forecast": named, "probability": shares}
        if len(self.steps) == 1:
            return {name: part[0] for name, part in parts.items()}
        return {name: dict(zip(map(str, self.steps), part, strict=True)) for name, part in parts.items()}


@kernel
def compare_classes(baseline, right, counts, past, delays, first, values, targets, guesses):
    """Add up bits of the frequencies so far, and how often the model and two simple rules were right, by step.

    `past` is a ring with the class of each of the newest rows, and the newest class known then; -1
    where there is none. `counts` has all classes. For one that was to be forecast several rows ago,
    the classes since then are left out.
    """
    depth, classes = len(past), len(counts)
    known = np.empty_like(counts)
    for row in range(len(values)):
        known[:] = counts
        left_out = 1  # rows whose classes are not in `known`, this one included
        for step in range(len(delays)):
            while left_out < delays[step]:
                newest = past[(first + row - left_out) % depth, 0]
                if 0 <= newest < classes:
                    known[int(newest)] -= 1
                left_out += 1
            if np.isnan(targets[row, step]):
                continue
            came = int(targets[row, step])
            seen, total, commonest = 0, 0.0, 0
            for number in range(classes):
                seen += known[number] > 0
                total += known[number]
                if known[number] > known[commonest]:
                    commonest = number
            # Every class seen and one more count half (Krichevsky and Trofimov).
            baseline[step, 0] += 1
            baseline[step, 1] -= np.log2((known[came] + 0.5) / (total + 0.5 * (seen + 1)))
            right[step, 0] += guesses[row, step] == came
            right[step, 1] += total > 0 and commonest == came
            right[step, 2] += past[(first + row - delays[step]) % depth, 1] == came
        here = (first + row) % depth
        past[here, 0], past[here, 1] = -1.0, past[here - 1, 1]
        if not np.isnan(values[row]):
            past[here] = values[row]
            counts[int(values[row])] += 1


def log_shares(outputs: Any) -> np.ndarray:
    """Logarithms of the probabilities of classes, along the last axis."""
    logits = np.asarray(outputs, np.float64)
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def class_words(lines: Sequence[dict[str, Any]]) -> str:
    """Bits and accuracy over the last half of a run, with a warning if a simple rule was right more often."""
    scored = [line for line in lines if line.get("scored")]
    last = [line for line in scored if 2 * line["samples"] > scored[-1]["samples"]]
    if not last:
        return "No row with a known class was forecast."
    total = sum(line["scored"] for line in last)
    bits = sum(line["loss"] * line["scored"] for line in last) / total
    right = {name: sum(round(line[name] * line["scored"]) for line in last) for name in NAMES}
    shares = {name: f"{count / total:.1%}" for name, count in right.items()}
    rules = f"the majority class: {shares['majority']}, the last class: {shares['last']}"
    words = f"last {counted(total, 'row')}: right {shares['accuracy']} of the time ({rules}), {bits:.4f} bits"
    best = max(NAMES[1:], key=right.__getitem__)
    if right[best] > right["accuracy"]:
        rule = {"majority": "the majority class", "last": "the last class"}[best]
        times = f"{right[best]:,} times against {right['accuracy']:,}"
        words += (
            f"\nWarning: {rule} was right more often than this model, {times}. Use that rule instead, or train longer."
        )
    return words
