"""Scores of text: one prediction per symbol, or one per line with its most surprising passages marked."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import numpy as np

from norewind.core.losses import BIT
from norewind.scoring.anomalies import BINS, rarity
from norewind.scoring.metrics import SYMBOL_LOSS
from norewind.scoring.score import Outputs, Score, ScoreState, bits_of
from norewind.scoring.tally import Number
from norewind.streams.position import Count
from norewind.streams.stream import Samples

# The maximum number of symbols in a line; a longer line is scored in pieces.
MAX_LINE_SYMBOLS = 10_000
# The most bits that one word contributes. The name of a new user has many more, but is only one word; a message that
# has never been seen has many such words.
WORD_BITS = 12.0
# Fewer mean bits per word count as equal.
LEAST_WORD_BITS = 0.05
# The number of characters of a line that are shown.
SHOWN_CHARACTERS = 300
# The prediction of a character that has not appeared yet.
UNKNOWN_CHARACTER = "\N{REPLACEMENT CHARACTER}"


class SymbolState(ScoreState):
    """The state of a `SymbolScore`.

    Attributes:
        counts: how often each symbol occurred in the interval.
        seen: whether each symbol has occurred since the start.
    """

    counts: list[Count]
    seen: list[bool]

    def fits(self, new: Any) -> bool:
        return len(self.counts) == len(self.seen) == len(new.seen)


class SymbolScore(Score):
    """Scores next-symbol predictions, in bits. The baseline is the order-0 entropy of the same symbols.

    Args:
        symbols: the number of symbols.
        name: converts a symbol to its name in predictions.
    """

    unit, simple_forecasts = SYMBOL_LOSS
    scale = 1 / BIT

    def __init__(self, symbols: int, name: Callable[[int], Any]):
        super().__init__()
        self.name = name
        self.state = SymbolState([0] * symbols, [False] * symbols)

    def add(self, samples: Samples, outputs: Outputs | None = None) -> int:
        new = np.bincount(samples.targets, minlength=len(self.state.counts))
        self.state.counts = (self.state.counts + new).tolist()
        self.state.seen = (np.array(self.state.seen) | (new > 0)).tolist()
        return len(samples.targets)

    def end_interval(self) -> dict[str, Any]:
        counts = np.array(self.state.counts)
        self.state.counts = [0] * len(counts)
        shares = counts[counts > 0] / max(1, counts.sum())
        return {"baseline": float(-np.sum(shares * np.log2(shares)))}

    def prediction_entries(self, first: int, samples: Samples, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """Yield the most likely symbol and its probability, the actual symbol, and −log₂ of its probability.

        Args:
            first: the number of the first symbol.
            samples: consecutive symbols.
            outputs: the logits of the learner.
        """
        bits = bits_of(np.asarray(outputs))
        likeliest = bits.argmin(axis=-1)
        for i, (symbol, guess) in enumerate(zip(samples.targets.tolist(), likeliest.tolist(), strict=True)):
            is_named = samples.named is None or guess < samples.named[i]
            yield {
                "sample": first + i,
                "prediction": self.name(guess) if is_named else UNKNOWN_CHARACTER,
                "probability": round(float(2 ** -bits[i, guess]), 6),
                "symbol": self.name(symbol),
                "surprise": round(float(bits[i, symbol]), 6),
            }


class LineEntry(TypedDict):
    """The entry of a line in predictions.jsonl; see `LineScore`."""

    line: Count
    bits: float
    score: float
    text: str
    worst: str


class LineState(SymbolState):
    """The state of a `LineScore`.

    Attributes:
        begun: whether the first symbol has been seen.
        line: the number of the current line.
        symbols: the symbols of the current line so far.
        bits: their bits.
        usual: a histogram of how unusual the lines so far are.
        usual_totals: its sum, the weight of the next line, and the highest bin that is not empty.
        top: the lines with the highest scores.
    """

    begun: bool = False
    line: Count = 1
    symbols: list[Count] = msgspec.field(default_factory=list)
    bits: list[Number] = msgspec.field(default_factory=list)
    usual: np.ndarray = msgspec.field(default_factory=lambda: np.zeros(BINS))
    usual_totals: np.ndarray = msgspec.field(default_factory=lambda: np.array([0.0, 1.0, 0.0]))
    top: list[LineEntry] = msgspec.field(default_factory=list)

    sums = ("usual", "usual_totals")

    def fits(self, new: Any) -> bool:
        known = all(symbol < len(new.seen) for symbol in self.symbols)
        arrays = (self._array_fits(name, getattr(self, name), getattr(new, name)) for name in ("usual", "usual_totals"))
        return super().fits(new) and known and len(self.symbols) == len(self.bits) and all(arrays)


class LineScore(SymbolScore):
    """Scores next-symbol predictions, in bits, with one entry per line instead of one per symbol.

    A line has its `bits` per symbol and a `score` from 0 to 1: at most a share of 1 − s of usual lines have a score of
    s or more. Lines are compared by the mean bits per word, where a word counts at most twelve bits, so that a line
    with one name that was never seen is less unusual than a message that was never seen. The first fifty lines have a
    score of 0. `worst` is the line with its most surprising passages between « and ». `state.top` has the lines
    with the highest scores.

    Args:
        symbols: the number of symbols.
        name: converts a symbol to its name.
        decode: converts symbols to bytes.
        top: how many of the most surprising lines to keep.
    """

    def __init__(
        self, symbols: int, name: Callable[[int], Any], decode: Callable[[Sequence[int]], bytes], top: int = 0
    ):
        super().__init__(symbols, name)
        self.decode, self.top = decode, top
        state = LineState([0] * symbols, [False] * symbols)
        self.state: LineState = state  # pyright: ignore[reportIncompatibleVariableOverride]

    def start_text(self) -> None:
        """Begin with the first line of another text. The usual bits of a line stay known."""
        self.state.begun = False
        self.state.line = 1
        self.state.symbols = []
        self.state.bits = []

    def prediction_entries(self, first: int, samples: Samples, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """Yield one entry per line that ends in these samples.

        Args:
            first: unused.
            samples: consecutive symbols.
            outputs: logits, or log-probabilities of the targets.
        """
        logits, targets = np.asarray(outputs, np.float64), samples.targets
        bits = -logits / BIT if logits.ndim == 1 else bits_of(logits)[np.arange(len(targets)), targets]
        pairs = list(zip(samples.targets.tolist(), bits.tolist(), strict=True))
        if not self.state.begun:
            pairs.insert(0, (int(samples.xs[0]), 0.0))  # nothing predicts the first symbol
        self.state.begun = True
        for symbol, surprise in pairs:
            ends = self.decode([symbol]) == b"\n"
            self.state.symbols.append(symbol)
            self.state.bits.append(round(surprise, 4))
            if ends or len(self.state.symbols) >= MAX_LINE_SYMBOLS:
                yield {**self._ended(ends=ends)}

    def _ended(self, *, ends: bool) -> LineEntry:
        """Return the entry of the line so far. If the line was only cut because of its length, its number stays."""
        state = self.state
        bits = state.bits
        mean = round(float(np.mean(bits)), 6)
        score = round(1 - rarity(state.usual, state.usual_totals, max(self._bits_per_word(), LEAST_WORD_BITS)), 9)
        text, worst = self._texts(state.symbols, bits)
        entry = LineEntry(line=state.line, bits=mean, score=score, text=text, worst=worst)
        state.symbols = []
        state.bits = []
        state.line += ends
        if self.top and score:
            state.top = sorted([*state.top, entry], key=lambda line: -line["score"])[: self.top]
        return entry

    def _bits_per_word(self) -> float:
        """Return the mean bits of the words of the line so far, each at most `WORD_BITS`."""
        words = [0.0]
        for symbol, bits in zip(self.state.symbols, self.state.bits, strict=True):
            if self.decode([symbol]).isspace():
                words.append(0.0)
            words[-1] += bits
        return float(np.minimum(words, WORD_BITS).mean())

    def _texts(self, symbols: list[int], bits: list[float]) -> tuple[str, str]:
        """Return the line, plain and with marks around all passages with at least half of its highest bits."""
        end = len(symbols) - (self.decode(symbols[-1:]) == b"\n")
        high = np.array(bits[:end]) >= max(max(bits[:end], default=0) / 2, 1)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], high, [False]]).astype(int))).tolist()
        worst, start = "", 0
        for edge, sign in zip(edges, "«»" * len(edges), strict=False):
            worst += self._decoded(symbols[start:edge]) + sign
            start = edge
        worst += self._decoded(symbols[start:end])
        return self._decoded(symbols[:end])[:SHOWN_CHARACTERS], worst[:SHOWN_CHARACTERS]

    def _decoded(self, symbols: Sequence[int]) -> str:
        return self.decode(symbols).decode(errors="replace") if symbols else ""

    def closing_text(self, lines: Sequence[dict[str, Any]], folder: Path) -> str:
        """List the most surprising lines.

        Args:
            lines: unused.
            folder: unused.
        """
        top = [f"line {line['line']}, {line['score']:.4f}: {line['worst']}" for line in self.state.top]
        return "\n".join([f"The {len(top)} most surprising lines, by score:", *top]) if top else ""
