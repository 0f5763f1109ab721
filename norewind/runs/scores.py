"""How a stream is scored: the unit of its loss, its baseline, and predictions in the terms of the stream."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np

from norewind.losses import BIT, log_variance
from norewind.runs.metrics import mean, running_sum
from norewind.runs.windows import count_of
from norewind.streams.stream import Samples

BITS = "bits"


def row_unit(gaussian: bool) -> str:
    """The unit of losses on rows."""
    return "nats per value" if gaussian else "squared error"


class Score(Protocol):
    """How one kind of stream is scored. Losses times `scale` are in `unit`; `trivial` names the baseline."""

    unit: str
    scale: float
    trivial: str

    def add(self, samples: Samples) -> int:
        """Look at the targets. Returns the number of samples that have one."""
        ...

    def take(self) -> dict[str, Any]:
        """The `baseline` of the samples since the last call, and other entries for a line of metrics."""
        ...

    def entries(self) -> dict[str, Any]:
        """What to save."""
        ...

    def restore(self, entries: dict[str, Any]) -> None:
        """Continue from what `entries` returned."""
        ...

    def predictions(self, first: int, samples: Samples, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """One entry per sample, numbered from `first`: the prediction, what came, and the surprise."""
        ...


class PlainScore:
    """For samples of which only the loss is known."""

    unit = "loss"
    scale = 1.0
    trivial = ""

    def add(self, samples: Samples) -> int:
        return count_of(samples)

    def take(self) -> dict[str, Any]:
        return {}

    def entries(self) -> dict[str, Any]:
        return {}

    def restore(self, entries: dict[str, Any]) -> None:
        pass

    def predictions(self, first: int, samples: Samples, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        raise ValueError("predictions need a score that can express them, such as SymbolScore or RowScore.")


class SymbolScore:
    """Next-symbol prediction, in bits. The baseline is the order-0 entropy of the same symbols.

    `name(symbol)` is how a symbol is written in predictions.
    """

    unit = BITS
    scale = 1 / BIT
    trivial = "order-0 entropy"

    def __init__(self, symbols: int, name: Callable[[int], Any]):
        self.name = name
        self.counts = np.zeros(symbols, int)

    def add(self, samples: Samples) -> int:
        self.counts += np.bincount(samples.targets, minlength=len(self.counts))
        return len(samples.targets)

    def take(self) -> dict[str, Any]:
        shares = self.counts[self.counts > 0] / max(1, self.counts.sum())
        self.counts[:] = 0
        return {"baseline": float(-np.sum(shares * np.log2(shares)))}

    def entries(self) -> dict[str, Any]:
        return {"counts": self.counts.tolist()}

    def restore(self, entries: dict[str, Any]) -> None:
        self.counts = np.array(entries["counts"])

    def predictions(self, first: int, samples: Samples, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """The most likely symbol and its probability, the symbol that came, and −log₂ of its probability."""
        logits = outputs.astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        bits = (np.log(np.exp(logits).sum(axis=-1, keepdims=True)) - logits) / BIT
        likeliest = bits.argmin(axis=-1)
        for i, (symbol, guess) in enumerate(zip(samples.targets.tolist(), likeliest.tolist(), strict=True)):
            yield {
                "sample": first + i,
                "prediction": self.name(guess),
                "probability": round(float(2 ** -bits[i, guess]), 6),
                "symbol": self.name(symbol),
                "surprise": round(float(bits[i, symbol]), 6),
            }


class RowScore:
    """Forecasts of standardised numbers: mean squared errors, or nats with `gaussian`, per value.

    The baseline is the loss of forecasting the running mean. `persistence` is the mean
    squared error of forecasting the last known value. `columns` name the targets.
    """

    trivial = "running mean"

    def __init__(self, columns: Sequence[str], gaussian: bool):
        self.columns = list(columns)
        self.gaussian = gaussian
        self.unit = row_unit(gaussian)
        self.scale = (1 if gaussian else 2) / len(self.columns)
        self.baseline: list = [0, 0.0]
        self.persistence: list = [0, 0.0]

    def add(self, samples: Samples) -> int:
        targets = samples.targets.astype(np.float64)
        assert samples.last is not None
        for sums, errors in ((self.baseline, targets), (self.persistence, targets - samples.last)):
            known = errors[~np.isnan(errors)]
            sums[0] += len(known)
            sums[1] = running_sum(sums[1], known**2)
        return int(np.sum(~np.isnan(targets).all(axis=-1)))

    def take(self) -> dict[str, Any]:
        baseline, persistence = mean(self.baseline), mean(self.persistence)
        self.baseline, self.persistence = [0, 0.0], [0, 0.0]
        if self.gaussian:
            return {"baseline": None if baseline is None else (baseline + np.log(2 * np.pi)) / 2}
        return {"baseline": baseline, "persistence": persistence}

    def entries(self) -> dict[str, Any]:
        return {"baseline": list(self.baseline), "persistence": list(self.persistence)}

    def restore(self, entries: dict[str, Any]) -> None:
        self.baseline, self.persistence = list(entries["baseline"]), list(entries["persistence"])

    def predictions(self, first: int, samples: Samples, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """Forecast and target in the units of the stream, and the error in standard deviations (root mean square)."""
        assert samples.scales is not None
        width = len(self.columns)
        means, deviations = samples.scales[..., 0], samples.scales[..., 1]
        forecasts = outputs[:, :width].astype(np.float64)
        errors = samples.targets - forecasts
        spread = np.ones_like(forecasts)
        if self.gaussian:
            spread = np.exp(np.asarray(log_variance(jnp.asarray(outputs[:, width:])), np.float64) / 2)
            errors = errors / spread
        for i in range(len(forecasts)):
            known = errors[i][~np.isnan(errors[i])]
            entry = {
                "sample": first + i,
                "prediction": self._row(means[i] + deviations[i] * forecasts[i]),
                "target": self._row(means[i] + deviations[i] * samples.targets[i].astype(np.float64)),
                "surprise": round(float(np.sqrt(np.mean(known**2))), 6) if len(known) else None,
            }
            if self.gaussian:
                entry["deviation"] = self._row(deviations[i] * spread[i])
            yield entry

    def _row(self, values: np.ndarray) -> dict[str, float | None]:
        return {
            column: float(f"{value:.7g}") if np.isfinite(value) else None
            for column, value in zip(self.columns, values.tolist(), strict=True)
        }
