"""How a stream is scored: the unit of its loss, its baseline, and predictions in the terms of the stream."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from norewind.losses import BIT, log_variance
from norewind.runs.metrics import mean, running_sum
from norewind.runs.windows import count_of
from norewind.streams.stream import Samples

ROW_UNITS = {"squared": "squared error", "gaussian": "nats per value"}


class Score:
    """How the samples of a stream are scored. This one knows only their loss; others know what the samples mean.

    Losses times `scale` are in `unit`; `trivial` names the baseline. `state` is what
    checkpoints hold, as JSON.
    """

    unit = "loss"
    scale = 1.0
    trivial = ""

    def __init__(self):
        self.state: dict[str, Any] = {}

    def add(self, samples: Samples) -> int:
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
        self.state = {"counts": [0] * symbols}

    def add(self, samples: Samples) -> int:
        counts = self.state["counts"]
        self.state["counts"] = (counts + np.bincount(samples.targets, minlength=len(counts))).tolist()
        return len(samples.targets)

    def take(self) -> dict[str, Any]:
        counts = np.array(self.state["counts"])
        self.state["counts"] = [0] * len(counts)
        shares = counts[counts > 0] / max(1, counts.sum())
        return {"baseline": float(-np.sum(shares * np.log2(shares)))}

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


class RowScore(Score):
    """Forecasts of standardised numbers: mean squared errors, or nats with `gaussian`, per value.

    The baseline is the loss of forecasting the running mean. `persistence` is the mean
    squared error of forecasting the last known value. `columns` name the targets, and
    `horizon` is how many rows ahead they are forecast.
    """

    trivial = "running mean"

    def __init__(self, columns: Sequence[str], loss: str, horizon: int = 1):
        self.columns, self.horizon = list(columns), horizon
        self.gaussian = loss == "gaussian"
        self.unit = ROW_UNITS[loss]
        self.scale = (1 if self.gaussian else 2) / len(self.columns)
        self.state = {"baseline": [0, 0.0], "persistence": [0, 0.0]}

    def add(self, samples: Samples) -> int:
        targets = samples.targets.astype(np.float64)
        assert samples.last is not None
        for name, errors in (("baseline", targets), ("persistence", targets - samples.last)):
            sums = self.state[name]
            known = errors[~np.isnan(errors)]
            sums[0] += len(known)
            sums[1] = running_sum(sums[1], known**2)
        return int(np.sum(~np.isnan(targets).all(axis=-1)))

    def take(self) -> dict[str, Any]:
        baseline, persistence = mean(self.state["baseline"]), mean(self.state["persistence"])
        self.state = {"baseline": [0, 0.0], "persistence": [0, 0.0]}
        if self.gaussian:
            return {"baseline": None if baseline is None else (baseline + np.log(2 * np.pi)) / 2}
        return {"baseline": baseline, "persistence": persistence}

    def predictions(self, first: int, samples: Samples, outputs: Any) -> Iterator[dict[str, Any]]:
        """For each row the forecast made there, and how good the one was that had been made of it.

        All in the units of the stream; the surprise is the error in standard deviations
        (root mean square).
        """
        assert samples.scales is not None
        assert samples.ahead is not None
        made, due = outputs if self.horizon else (outputs, outputs)
        forecasts, spreads = self._forecasts(made)
        predictions, deviations = self._forecasts(due)
        targets = samples.targets.astype(np.float64)
        errors = (targets - predictions) / deviations
        now, then = (np.moveaxis(scales, -1, 0) for scales in (samples.ahead, samples.scales))
        for i, known in enumerate(~np.isnan(errors)):
            entry: dict[str, Any] = {"sample": first + i}
            mean, deviation = (now if self.horizon else then)[:, i]
            if self.horizon:
                entry |= {"for": first + i + self.horizon, "forecast": self._row(mean + deviation * forecasts[i])}
            if self.gaussian:
                entry["deviation"] = self._row(deviation * spreads[i])
            mean, deviation = then[:, i]
            # The first rows were not forecast.
            if not np.isnan(mean).all():
                entry |= {
                    "prediction": self._row(mean + deviation * predictions[i]),
                    "target": self._row(mean + deviation * targets[i]),
                    "surprise": round(float(np.sqrt(np.mean(errors[i][known] ** 2))), 6) if known.any() else None,
                }
            yield entry

    def _forecasts(self, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Standardised forecasts, and their standard deviations."""
        width = len(self.columns)
        forecasts = np.asarray(outputs[:, :width], np.float64)
        if not self.gaussian:
            return forecasts, np.ones_like(forecasts)
        return forecasts, np.exp(np.asarray(log_variance(jnp.asarray(outputs[:, width:])), np.float64) / 2)

    def _row(self, values: np.ndarray) -> dict[str, float | None]:
        return {
            column: float(f"{value:.7g}") if np.isfinite(value) else None
            for column, value in zip(self.columns, values.tolist(), strict=True)
        }
