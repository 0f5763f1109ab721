"""How forecasts of a class are scored: bits and accuracy, compared with simple rules."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from norewind.losses import BIT
from norewind.runs.metrics import counted
from norewind.runs.row_scores import RECENT, place_of
from norewind.runs.scores import Score
from norewind.streams.stream import Samples

RIGHT = ("model", "majority", "last")
NO_ROWS = np.zeros((0, 3))


class ClassScore(Score):
    """Forecasts of classes, in bits; the baseline is the loss of forecasting by their frequencies so far.

    `accuracy` is the share of classes that were the likeliest one, `majority` that of the
    class that was the most frequent so far, and `last` that of the newest class known.

    Args:
        classes: the number of classes.
        name: how a class is called.
        horizon: how many rows ahead they are forecast.
    """

    unit = "bits"
    scale = 1 / BIT
    trivial = "class frequencies"
    needs_outputs = True

    def __init__(self, classes: int, name: Callable[[int], Any], horizon: int):
        self.name, self.horizon, self.delay = name, horizon, max(1, horizon)
        self.state = {
            "baseline": [0, 0.0],
            "all": [0] * classes,
            "right": dict.fromkeys(RIGHT, 0),
            "past": [-1] * self.delay,
            "commonest": [-1] * self.delay,
            "stretch": NO_ROWS,
        }

    def add(self, samples: Samples, outputs: Any = None) -> int:
        targets = samples.targets[:, 0]
        guesses = None if outputs is None else np.argmax(outputs[1] if self.horizon else outputs, axis=-1)
        assert samples.values is not None
        state = self.state
        for row, (value, target) in enumerate(zip(samples.values[:, 0].tolist(), targets.tolist(), strict=True)):
            # What was known when it was forecast.
            last, commonest = state["past"][0], state["commonest"][0]
            if target == target:
                came = int(target)
                state["baseline"] = [state["baseline"][0] + 1, state["baseline"][1] + _bits(state["all"], came)]
                for name, guess in zip(RIGHT, (-1 if guesses is None else guesses[row], commonest, last), strict=True):
                    state["right"][name] += int(guess == came)
            if value == value:
                state["all"][int(value)] += 1
            newest = int(value) if value == value else state["past"][-1]
            state["past"] = [*state["past"][1:], newest]
            state["commonest"] = [*state["commonest"][1:], int(np.argmax(state["all"]))]
        if outputs is not None:
            # Runs of earlier versions have none.
            before = state.get("stretch", NO_ROWS)
            state["stretch"] = np.concatenate([before, self._stretch(targets, outputs)])[-RECENT:]
        return int(np.sum(~np.isnan(targets)))

    def _stretch(self, targets: np.ndarray, outputs: Any) -> np.ndarray:
        """For each of the newest rows its class, the one that was forecast, and the probability that its own had."""
        due = np.asarray(outputs[1] if self.horizon else outputs, np.float64)[-RECENT:]
        came, logarithms = targets[-RECENT:].astype(np.float64), due - np.logaddexp.reduce(due, axis=-1, keepdims=True)
        of_own = logarithms[np.arange(len(came)), np.nan_to_num(came).astype(int)]
        rows = np.stack([came, logarithms.argmax(axis=-1), np.exp(of_own)], axis=1)
        rows[np.isnan(came)] = np.nan
        return rows

    @property
    def was_scored(self) -> bool:
        """Whether the class of any of the newest rows was forecast."""
        return not np.isnan(self.state.get("stretch", NO_ROWS)).all()

    def take(self) -> dict[str, Any]:
        (total, bits), right = self.state["baseline"], self.state["right"]
        self.state["baseline"], self.state["right"] = [0, 0.0], dict.fromkeys(RIGHT, 0)
        if not total:
            return {"baseline": None}
        accuracies = {name: round(right[entry] / total, 6) for entry, name in zip(RIGHT, NAMES, strict=True)}
        return {"baseline": bits / total, "scored": total, **accuracies}

    def predictions(self, first: int, samples: Samples, outputs: Any) -> Iterator[dict[str, Any]]:
        """For each row the forecast class, and how good the earlier forecast of this row was."""
        made, due = (np.asarray(part, np.float64) for part in (outputs if self.horizon else (outputs, outputs)))
        made, due = (part - np.logaddexp.reduce(part, axis=-1, keepdims=True) for part in (made, due))
        for i, target in enumerate(samples.targets[:, 0].tolist()):
            entry: dict[str, Any] = {"sample": first + i} | place_of(samples, i)
            if self.horizon:
                guess = int(made[i].argmax())
                entry |= {"for": first + i + self.horizon, "forecast": self.name(guess)}
                entry["probability"] = round(float(np.exp(made[i, guess])), 6)
            if not self.horizon or target == target:
                guess = int(due[i].argmax())
                entry |= {"prediction": self.name(guess), "predicted": round(float(np.exp(due[i, guess])), 6)}
                entry["target"] = self.name(int(target)) if target == target else None
                entry["surprise"] = round(float(-due[i, int(target)] / BIT), 6) if target == target else None
            yield entry


def _bits(counts: list[int], came: int) -> float:
    """−log₂ of a class's frequency, where every class seen and one more count half (Krichevsky and Trofimov)."""
    seen = sum(count > 0 for count in counts) + 1
    return float(-np.log2((counts[came] + 0.5) / (sum(counts) + 0.5 * seen)))


NAMES = ("accuracy", "majority", "last")


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
    words = (
        f"last {counted(total, 'row')}: right {shares['accuracy']} of the time (the majority class: "
        f"{shares['majority']}, the last class: {shares['last']}), {bits:.4f} bits"
    )
    best = max(NAMES[1:], key=right.__getitem__)
    if right[best] > right["accuracy"]:
        rule = {"majority": "the majority class", "last": "the last class"}[best]
        words += (
            f"\nWarning: {rule} was right more often than this model, {right[best]:,} times against "
            f"{right['accuracy']:,}. Use that rule instead, or train longer."
        )
    return words
