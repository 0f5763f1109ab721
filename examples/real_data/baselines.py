"""Simple forecasters, as online as the networks: each predicts a value before it sees it, and then learns from it."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from norewind.streams import RowStream, Source


def count_bits(text: Sequence, order: int, alphabet: int) -> np.ndarray:
    """Bits for every symbol after the first, by counts of what followed the last `order` symbols.

    The counts after a longer context are added to one count's worth of the prediction
    after the next shorter one, down to all symbols being alike: (count + p) / (total + 1).

    >>> [round(float(bits), 2) for bits in count_bits("aaaa", 0, 2)]
    [0.42, 0.26, 0.19]
    """
    seen = [defaultdict(Counter) for _ in range(order + 1)]
    totals = [Counter() for _ in range(order + 1)]
    bits = np.zeros(len(text))
    for i, symbol in enumerate(text):
        p = 1 / alphabet
        for length in range(min(order, i) + 1):
            context = text[i - length : i]
            p = (seen[length][context][symbol] + p) / (totals[length][context] + 1)
            seen[length][context][symbol] += 1
            totals[length][context] += 1
        bits[i] = -np.log2(p)
    return bits[1:]


def row_errors(path: Path, column: str, horizon: int, season: int, samples: int) -> dict[str, np.ndarray]:
    """Squared errors of simple forecasts, standardised as `norewind train` does it, for all samples with a target."""
    stream = RowStream(Source(path), inputs=[column], targets=[column], horizon=horizon)
    taken = stream.take(samples)
    assert taken is not None
    assert taken.last is not None
    # Row by row, what was forecast there: the targets come `horizon` rows later.
    ahead = taken.xs[: len(taken.xs) - horizon], taken.targets[horizon:], taken.last[horizon:]
    x, target, last = (part[:, 0].astype(float) for part in ahead)
    known = ~np.isnan(target)
    # What came a season before the target; in the first season nothing better is known than the newest value.
    back = season - horizon
    before = np.where(np.arange(len(x)) >= back, np.roll(x, back), last)
    forecasts = {
        "the newest value": last,
        f"{season} rows before": before,
        "running mean": np.zeros_like(x),
        f"linear, {season} lags": linear_forecasts(x, target, horizon, season),
    }
    return {name: (target - forecast)[known] ** 2 for name, forecast in forecasts.items()}


def linear_forecasts(x: np.ndarray, target: np.ndarray, horizon: int, lags: int, ridge: float = 0.01) -> np.ndarray:
    """Recursive least squares on the newest `lags` values: each row is learned from once its target has come."""
    rows = np.stack([np.concatenate([np.zeros(lag), x[: len(x) - lag]]) for lag in range(lags)] + [np.ones_like(x)], 1)
    weights, inverse = np.zeros(lags + 1), np.eye(lags + 1) / ridge
    forecasts = np.zeros_like(x)
    for i, row in enumerate(rows):
        come = i - horizon
        if come >= 0 and not np.isnan(target[come]):
            gain = inverse @ rows[come] / (1 + rows[come] @ inverse @ rows[come])
            weights += gain * (target[come] - weights @ rows[come])
            inverse -= np.outer(gain, rows[come] @ inverse)
        forecasts[i] = weights @ row
    return forecasts
