"""What is shown of a model's answers: the unit of its loss, what knowing nothing would cost, and the surprise."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np

from norewind.losses import BIT, log_variance
from norewind.streams.stream import Samples
from norewind.training.tally import running_sum
from norewind.training.windows import count_of


class Score(Protocol):
    """How a kind of stream is scored. Losses are multiplied by `scale` to be in `unit`."""

    unit: str
    scale: float

    def add(self, samples: Samples) -> int:
        """See the targets, and say how many samples have one."""
        ...

    def take(self) -> dict[str, Any]:
        """`level`, what the samples since the last call cost without a model, and perhaps more."""
        ...

    def entries(self) -> dict[str, Any]:
        """What to save; the constructor's `entries` takes it back."""
        ...

    def predictions(self, first: int, samples: Samples, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """One entry per sample, counted from `first`: what was expected, what came, and the surprise."""
        ...


class PlainScore:
    """For samples of which nothing is known but their loss."""

    unit = "loss"
    scale = 1.0

    def add(self, samples: Samples) -> int:
        """Every sample has a loss."""
        return count_of(samples)

    def take(self) -> dict[str, Any]:
        """Nothing more to say."""
        return {}

    def entries(self) -> dict[str, Any]:
        """Nothing to save."""
        return {}


class SymbolScore:
    """Next-symbol prediction, in bits. The level is the order-0 entropy of the same symbols."""

    unit = "bits"
    scale = 1 / BIT

    def __init__(self, symbols: int, name: Callable[[int], Any], entries: dict[str, Any] | None = None):
        """`name` is what a symbol is called in predictions."""
        self.name = name
        self.counts = np.array((entries or {}).get("counts", [0] * symbols))

    def add(self, samples: Samples) -> int:
        """Count the symbols that came."""
        self.counts += np.bincount(samples.targets, minlength=len(self.counts))
        return len(samples.targets)

    def take(self) -> dict[str, Any]:
        """The entropy of the counted symbols; begin again."""
        shares = self.counts[self.counts > 0] / max(1, self.counts.sum())
        self.counts[:] = 0
        return {"level": float(-np.sum(shares * np.log2(shares)))}

    def entries(self) -> dict[str, Any]:
        """The counts."""
        return {"counts": self.counts.tolist()}

    def predictions(self, first: int, samples: Samples, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """The likeliest symbol and its probability, the symbol that came, and −log₂ of its probability."""
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
    """Forecasts of numbers that were standardised: mean squared errors, or nats with `gaussian`, per value.

    The level is the loss of forecasting the running mean. `persistence` is the mean
    squared error of forecasting that the newest value stays.
    """

    def __init__(self, columns: Sequence[str], gaussian: bool, entries: dict[str, Any] | None = None):
        """`columns` name the targets."""
        self.columns = list(columns)
        self.gaussian = gaussian
        self.unit = row_unit(gaussian)
        self.scale = (1 if gaussian else 2) / len(self.columns)
        entries = entries or {}
        self.level: list = entries.get("level", [0, 0.0])
        self.persistence: list = entries.get("persistence", [0, 0.0])

    def add(self, samples: Samples) -> int:
        """Score the running mean and persistence."""
        targets = samples.targets.astype(np.float64)
        assert samples.last is not None
        for sums, errors in ((self.level, targets), (self.persistence, targets - samples.last)):
            known = errors[~np.isnan(errors)]
            sums[0] += len(known)
            sums[1] = running_sum(sums[1], known**2)
        return int(np.sum(~np.isnan(targets).all(axis=-1)))

    def take(self) -> dict[str, Any]:
        """Both means; begin again."""
        level, persistence = (total / count if count else None for count, total in (self.level, self.persistence))
        self.level, self.persistence = [0, 0.0], [0, 0.0]
        if self.gaussian:
            return {"level": None if level is None else (level + np.log(2 * np.pi)) / 2}
        return {"level": level, "persistence": persistence}

    def entries(self) -> dict[str, Any]:
        """Both sums."""
        return {"level": list(self.level), "persistence": list(self.persistence)}

    def predictions(self, first: int, samples: Samples, outputs: np.ndarray) -> Iterator[dict[str, Any]]:
        """Forecast and value in the units of the stream, and the error in standard deviations (root mean square)."""
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


def row_unit(gaussian: bool) -> str:
    """What losses on rows are measured in."""
    return "nats per value" if gaussian else "squared error"
