"""Lines of text, scored by how surprising they are."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from norewind.losses import BIT
from norewind.runs.scores import SymbolScore, bits_of
from norewind.streams.stream import Samples

LONGEST = 10_000
"""Symbols of one line; a longer one is scored in pieces."""
REMEMBERED = 500
"""The number of recent lines that a line is compared with."""
ENOUGH = 20
SHOWN = 300
LEAST_SPREAD = 0.05


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
        newline: whether a symbol ends a line.
        top: how many lines to keep.
    """

    def __init__(
        self,
        symbols: int,
        name: Callable[[int], Any],
        decode: Callable[[Any], bytes],
        newline: Callable[[int], bool],
        top: int = 0,
    ):
        super().__init__(symbols, name)
        self.decode, self.newline, self.top = decode, newline, top
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
            ends = self.newline(symbol)
            self._add(symbol, surprise)
            if ends or len(self.state["symbols"]) >= LONGEST:
                yield self._ended(ends=ends)

    def _add(self, symbol: int, bits: float) -> None:
        self.state["symbols"].append(symbol)
        self.state["bits"].append(round(bits, 4))

    def _ended(self, *, ends: bool) -> dict[str, Any]:
        state = self.state
        symbols, bits, usual = state["symbols"], state["bits"], state["usual"]
        mean = round(float(np.mean(bits)), 6)
        entry = {"line": state["line"], "bits": mean, "score": _score(mean, usual), **self._text(symbols, bits)}
        state["usual"] = [*usual, mean][-REMEMBERED:]
        state["symbols"], state["bits"], state["line"] = [], [], state["line"] + ends
        if self.top and entry["score"] is not None:
            state["top"] = sorted([*state["top"], entry], key=lambda line: -line["score"])[: self.top]
        return entry

    def _text(self, symbols: list[int], bits: list[float]) -> dict[str, str]:
        """The line, and with its most surprising stretches marked: those of at least half the highest bits."""
        shown = len(symbols) - self.newline(symbols[-1])
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


def _score(mean: float, usual: list[float]) -> float | None:
    if len(usual) < ENOUGH:
        return None
    median = float(np.median(usual))
    spread = 1.4826 * float(np.median(np.abs(np.array(usual) - median)))
    return round((mean - median) / max(spread, LEAST_SPREAD), 3)


def top_words(state: dict[str, Any]) -> str:
    """The most surprising lines, as text."""
    lines = [f"line {line['line']}, {line['score']:.1f}: {line['worst']}" for line in state["top"]]
    return "\n".join([f"The {len(lines)} most surprising lines, by score:", *lines]) if lines else ""
