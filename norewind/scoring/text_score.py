"""Scores of text: one prediction per symbol, or one per line with its most surprising passages marked."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from norewind.core.losses import BIT
from norewind.scoring.metrics import SYMBOL_FORECASTS
from norewind.scoring.score import Score, bits_of
from norewind.streams.stream import Samples

# The most symbols of one line; a longer line is scored in pieces.
MAX_LINE_SYMBOLS = 10_000
# The number of recent lines that a line is compared with, and the minimum number needed.
COMPARED_LINES, MIN_COMPARED_LINES = 500, 20
# The number of characters of a line that are shown.
SHOWN_CHARACTERS = 300
MIN_SPREAD = 0.05


class SymbolScore(Score):
    """Scores next-symbol predictions, in bits. The baseline is the order-0 entropy of the same symbols.

    Args:
        symbols: the number of symbols.
        name: converts a symbol to its name in predictions.
    """

    unit = "bits"
    scale = 1 / BIT
    simple_forecasts = SYMBOL_FORECASTS

    def __init__(self, symbols: int, name: Callable[[int], Any]):
        super().__init__()
        self.name = name
        self.state = {"counts": [0] * symbols, "seen": [False] * symbols}

    def add(self, samples: Samples, outputs: Any = None) -> int:
        counts, seen = self.state["counts"], self.state["seen"]
        new = np.bincount(samples.targets, minlength=len(counts))
        self.state |= {"counts": (counts + new).tolist(), "seen": (np.array(seen) | (new > 0)).tolist()}
        return len(samples.targets)

    def end_interval(self) -> dict[str, Any]:
        counts = np.array(self.state["counts"])
        self.state["counts"] = [0] * len(counts)
        shares = counts[counts > 0] / max(1, counts.sum())
        return {"baseline": float(-np.sum(shares * np.log2(shares)))}

    def prediction_entries(self, first: int, samples: Samples, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """Yield the most likely symbol and its probability, the actual symbol, and −log₂ of its probability.

        Args:
            first: the number of the first symbol.
            samples: consecutive symbols.
            outputs: the logits of the learner.
        """
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
    """Scores next-symbol predictions, in bits, with one entry per line instead of one per symbol.

    A line has its `bits` per symbol and a `score`: by how many standard deviations these bits exceed
    the median of the last 500 lines (the deviation is computed from the median, too, so
    that unusual lines hardly change it); None for the first 20 lines. `worst` is the line with
    its most surprising passages between « and ». `state["top"]` has the lines with the
    highest scores.

    Args:
        symbols: the number of symbols.
        name: converts a symbol to its name.
        decode: converts symbols to bytes.
        top: how many of the most surprising lines to keep.
    """

    def __init__(self, symbols: int, name: Callable[[int], Any], decode: Callable[[Any], bytes], top: int = 0):
        super().__init__(symbols, name)
        self.decode, self.top = decode, top
        self.state |= {"begun": False, "line": 1, "symbols": [], "bits": [], "usual": [], "top": []}

    def prediction_entries(self, first: int, samples: Samples, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """Yield one entry per line that ends in these samples.

        Args:
            first: unused.
            samples: consecutive symbols.
            outputs: logits, or log-probabilities of the targets.
        """
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
            if ends or len(self.state["symbols"]) >= MAX_LINE_SYMBOLS:
                yield self._ended(ends=ends)

    def _ended(self, *, ends: bool) -> dict[str, Any]:
        """Return the entry of the line so far. If the line was only cut because of its length, its number stays."""
        state = self.state
        bits, usual = state["bits"], state["usual"]
        mean, score = round(float(np.mean(bits)), 6), None
        if len(usual) >= MIN_COMPARED_LINES:
            median = float(np.median(usual))
            spread = 1.4826 * float(np.median(np.abs(np.array(usual) - median)))
            score = round((mean - median) / max(spread, MIN_SPREAD), 3)
        entry = {"line": state["line"], "bits": mean, "score": score, **self._text(state["symbols"], bits)}
        state["usual"] = [*usual, mean][-COMPARED_LINES:]
        state["symbols"], state["bits"], state["line"] = [], [], state["line"] + ends
        if self.top and score is not None:
            state["top"] = sorted([*state["top"], entry], key=lambda line: -line["score"])[: self.top]
        return entry

    def _text(self, symbols: list[int], bits: list[float]) -> dict[str, str]:
        """Return the line, plain and with marks around all passages with at least half of its highest bits."""
        end = len(symbols) - (self.decode(symbols[-1:]) == b"\n")
        high = np.array(bits[:end]) >= max(max(bits[:end], default=0) / 2, 1)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], high, [False]]).astype(int))).tolist()
        worst, start = "", 0
        for edge, sign in zip(edges, "«»" * len(edges), strict=False):
            worst += self._decoded(symbols[start:edge]) + sign
            start = edge
        worst += self._decoded(symbols[start:end])
        return {"text": self._decoded(symbols[:end])[:SHOWN_CHARACTERS], "worst": worst[:SHOWN_CHARACTERS]}

    def _decoded(self, symbols: Sequence[int]) -> str:
        return self.decode(symbols).decode(errors="replace") if symbols else ""

    def closing_text(self, lines: Sequence[dict[str, Any]], folder: Path) -> str:
        """List the most surprising lines.

        Args:
            lines: unused.
            folder: unused.
        """
        top = [f"line {line['line']}, {line['score']:.1f}: {line['worst']}" for line in self.state["top"]]
        return "\n".join([f"The {len(top)} most surprising lines, by score:", *top]) if top else ""
