"""How a stream is scored: the unit of its loss, its baseline, and predictions in the stream's own symbols or units."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from norewind.losses import BIT
from norewind.runs.windows import count_of
from norewind.streams.stream import Samples


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
