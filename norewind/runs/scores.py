"""How a stream is scored: the unit of its loss, its baseline, and predictions in the stream's own symbols or units."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from norewind.losses import BIT
from norewind.runs.windows import count_of
from norewind.streams.stream import Samples

LONGEST = 10_000
"""Symbols of one line; a longer one is scored in pieces."""
REMEMBERED = 500
"""The number of recent lines that a line is compared with."""
ENOUGH = 20
SHOWN = 300
LEAST_SPREAD = 0.05


def bits_of(outputs: Any) -> np.ndarray:
    """−log₂ of the probability of every symbol, from logits."""
    logits = np.asarray(outputs, np.float64)
    logits = logits - logits.max(axis=-1, keepdims=True)
    return (np.log(np.exp(logits).sum(axis=-1, keepdims=True)) - logits) / BIT


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
