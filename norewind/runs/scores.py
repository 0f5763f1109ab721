"""How a stream is scored: the unit of its loss, its baseline, and predictions in the stream's own symbols or units."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from norewind.kernels import kernel
from norewind.losses import BIT
from norewind.runs.metrics import counted
from norewind.runs.windows import count_of
from norewind.streams.stream import Samples, as_place

# The newest rows of a table, which are kept and drawn.
RECENT = 200
# What is told about forecasts of classes: how often the model and two simple rules were right.
NAMES = ("accuracy", "majority", "last")
# Symbols of one line; a longer one is scored in pieces.
LONGEST = 10_000
# The number of recent lines that a line is compared with.
REMEMBERED = 500
ENOUGH = 20
SHOWN = 300
LEAST_SPREAD = 0.05


def log_shares(outputs: Any) -> np.ndarray:
    """Logarithms of the probabilities of symbols or classes, along the last axis, from logits."""
    logits = np.asarray(outputs, np.float64)
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def bits_of(outputs: Any) -> np.ndarray:
    """−log₂ of the probability of every symbol, from logits."""
    return (0.0 - log_shares(outputs)) / BIT  # never -0.0


class Score:
    """How the samples of a stream are scored. This one knows only their loss; others know what the samples mean.

    Losses times `scale` are in `unit`; `trivial` names the baseline. `state` is what
    checkpoints hold, as JSON and arrays.
    """

    needs_outputs = False
    """Whether `add` is to be given what the learner predicted."""

    unit = "loss"
    scale = 1.0
    trivial = ""

    def __init__(self):
        self.state: dict[str, Any] = {}

    def add(self, samples: Samples, outputs: Any = None) -> int:
        """Look at the targets. Returns the number of samples that have one."""
        return count_of(samples)

    def take(self) -> dict[str, Any]:
        """The `baseline` of the samples since the last call, and other entries for a line of metrics."""
        return {}

    def predictions(self, first: int, samples: Samples, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """One entry per sample, numbered from `first`: the prediction, what came, and the surprise."""
        raise ValueError("predictions need a score that can express them, such as SymbolScore or RowScore.")


class SymbolScore(Score):
    """Next-symbol prediction, in bits. The baseline is the order-0 entropy of the same symbols.

    `name(symbol)` is how a symbol is written in predictions.
    """

    unit = "bits"
    scale = 1 / BIT
    trivial = "order-0 entropy"

    def __init__(self, symbols: int, name: Callable[[int], Any]):
        self.name = name
        self.state = {"counts": [0] * symbols, "seen": [False] * symbols}

    def add(self, samples: Samples, outputs: Any = None) -> int:
        counts = self.state["counts"]
        new = np.bincount(samples.targets, minlength=len(counts))
        self.state["counts"] = (counts + new).tolist()
        self.state["seen"] = (np.array(self.state["seen"]) | (new > 0)).tolist()
        return len(samples.targets)

    def take(self) -> dict[str, Any]:
        counts = np.array(self.state["counts"])
        self.state["counts"] = [0] * len(counts)
        shares = counts[counts > 0] / max(1, counts.sum())
        return {"baseline": float(-np.sum(shares * np.log2(shares)))}

    def predictions(self, first: int, samples: Samples, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """The most likely symbol and its probability, the symbol that came, and −log₂ of its probability."""
        bits = bits_of(outputs)
        likeliest = bits.argmin(axis=-1)
        for i, (symbol, guess) in enumerate(zip(samples.targets.tolist(), likeliest.tolist(), strict=True)):
            yield {
                "sample": first + i,
                "prediction": self.name(guess),
                "probability": round(float(2 ** -bits[i, guess]), 6),
                "symbol": self.name(symbol),
                "surprise": round(float(bits[i, symbol]), 6),
            }


class LineScore(SymbolScore):
    """Next-symbol prediction, in bits, with one prediction per line instead of one per symbol.

    A line has its `bits` per symbol and a `score`: by how many standard deviations these are
    above the median of the last 500 lines (the deviation is taken from the median, too, so
    that odd lines hardly change it); None for the first 20 lines. `worst` is the line with
    its most surprising stretches between « and ». `state["top"]` has the lines with the
    highest scores.

    Args:
        symbols: the number of symbols.
        name: how a symbol is written.
        decode: from symbols to bytes.
        top: how many lines to keep.
    """

    def __init__(self, symbols: int, name: Callable[[int], Any], decode: Callable[[Any], bytes], top: int = 0):
        super().__init__(symbols, name)
        self.decode, self.top = decode, top
        self.state |= {"begun": False, "line": 1, "symbols": [], "bits": [], "usual": [], "top": []}

    def predictions(self, first: int, samples: Samples, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """One entry per line that ends in these samples; outputs are logits, or log-probabilities of the targets."""
        if outputs.ndim == 1:
            bits = -outputs.astype(np.float64) / BIT
        else:
            bits = bits_of(outputs)[np.arange(len(samples.targets)), samples.targets]
        pairs = list(zip(samples.targets.tolist(), bits.tolist(), strict=True))
        if not self.state["begun"]:
            pairs.insert(0, (int(samples.xs[0]), 0.0))  # nothing predicts the first symbol
        self.state["begun"] = True
        for symbol, surprise in pairs:
            ends = self.decode([symbol]) == b"\n"
            self.state["symbols"].append(symbol)
            self.state["bits"].append(round(surprise, 4))
            if ends or len(self.state["symbols"]) >= LONGEST:
                yield self._ended(ends=ends)

    def _ended(self, *, ends: bool) -> dict[str, Any]:
        state = self.state
        symbols, bits, usual = state["symbols"], state["bits"], state["usual"]
        mean, score = round(float(np.mean(bits)), 6), None
        if len(usual) >= ENOUGH:
            median = float(np.median(usual))
            spread = 1.4826 * float(np.median(np.abs(np.array(usual) - median)))
            score = round((mean - median) / max(spread, LEAST_SPREAD), 3)
        entry = {"line": state["line"], "bits": mean, "score": score, **self._text(symbols, bits)}
        state["usual"] = [*usual, mean][-REMEMBERED:]
        state["symbols"], state["bits"], state["line"] = [], [], state["line"] + ends
        if self.top and entry["score"] is not None:
            state["top"] = sorted([*state["top"], entry], key=lambda line: -line["score"])[: self.top]
        return entry

    def _text(self, symbols: list[int], bits: list[float]) -> dict[str, str]:
        """The line, and with its most surprising stretches marked: those of at least half the highest bits."""
        shown = len(symbols) - (self.decode(symbols[-1:]) == b"\n")
        high = np.array(bits[:shown]) >= max(max(bits[:shown], default=0) / 2, 1)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], high, [False]]).astype(int))).tolist()
        parts, start = [], 0
        for edge, sign in zip(edges, "«»" * len(edges), strict=False):
            parts.append(self._words(symbols[start:edge]) + sign)
            start = edge
        worst = "".join(parts) + self._words(symbols[start:shown])
        return {"text": self._words(symbols[:shown])[:SHOWN], "worst": worst[:SHOWN]}

    def _words(self, symbols: Sequence[int]) -> str:
        return self.decode(symbols).decode(errors="replace") if symbols else ""


def top_words(state: dict[str, Any]) -> str:
    """The most surprising lines, as text."""
    lines = [f"line {line['line']}, {line['score']:.1f}: {line['worst']}" for line in state["top"]]
    return "\n".join([f"The {len(lines)} most surprising lines, by score:", *lines]) if lines else ""


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


def place_of(samples: Samples, i: int) -> dict[str, Any]:
    """Where a row stands, and what is copied from it."""
    place: dict[str, Any] = {}
    if samples.lines is not None:
        line = int(samples.lines[i])
        place = {"line": line} if line > 0 else dict(zip(("partition", "offset"), as_place(line), strict=True))
    if samples.copied is not None:
        # Python writes and reads numbers that are not finite, but JSON has none.
        place["copied"] = json.loads(samples.copied[i], parse_constant=lambda _: None)
    return place
