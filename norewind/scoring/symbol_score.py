"""Scores of symbols: one prediction per symbol."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from norewind.core.losses import BIT
from norewind.scoring.score import Score, bits_of
from norewind.streams.stream import Samples


class SymbolScore(Score):
    """Scores next-symbol predictions, in bits. The baseline is the order-0 entropy of the same symbols.

    Args:
        symbols: the number of symbols.
        name: converts a symbol to its name in predictions.
    """

    unit = "bits"
    scale = 1 / BIT
    trivial = "order-0 entropy"

    def __init__(self, symbols: int, name: Callable[[int], Any]):
        super().__init__()
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
