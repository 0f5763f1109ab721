"""The bound on how many values miss an interval, for the intervals that any part of norewind reports."""

import math
from statistics import NormalDist

import numpy as np

from norewind.learners.intervals import GAIN, MAX_THRESHOLD

LEVELS = (0.5, 0.9)


def assert_misses_are_bounded(intervals, values, step: int) -> int:
    """Assert that few enough values miss either bound, at any moment, and return how many were compared.

    Args:
        intervals: for each row, the interval made there of the row `step` later: [low, high] by level, where None
            stands for no bound; None if there is no interval.
        values: the values of the rows; None means missing.
        step: the number of rows ahead.
    """
    made = {row + step: interval for row, interval in enumerate(intervals)}
    pairs = [(made[row], value) for row, value in enumerate(values) if made.get(row) and value is not None]
    for level in LEVELS:
        tail = (1 - level) / 2
        first = math.asinh(NormalDist().inv_cdf(1 - tail))
        gain = GAIN / math.sqrt(max(1, step))
        bounds = [interval[str(level)] for interval, _ in pairs]
        below = [low is not None and value < low for (low, _), (_, value) in zip(bounds, pairs, strict=True)]
        above = [high is not None and value > high for (_, high), (_, value) in zip(bounds, pairs, strict=True)]
        most = tail * np.arange(1, len(pairs) + 1) + (MAX_THRESHOLD - first) / gain + (1 - tail) * max(1, step)
        for missed in (below, above):
            assert (np.cumsum(missed) <= most).all()
    return len(pairs)


def assert_run_misses_are_bounded(entries: list[dict], values, step: int, column: str) -> int:
    """Assert the bound on the predictions of a run, one per row; see `assert_misses_are_bounded`.

    Args:
        entries: the lines of predictions.jsonl.
        values: the values of the rows.
        step: the number of rows ahead; 0 for targets of the same row.
        column: the target.
    """
    name = "interval" if step else "prediction_interval"
    found = [entry.get(name, {}) for entry in entries]
    return assert_misses_are_bounded([one.get(str(step), one).get(column) for one in found], values, step)


def adversarial_value(action: str, interval) -> float | None:
    """Return a value that an adversary chooses who knows the interval that is due.

    Args:
        action: "above", "below", "inside", "far" or "unknown".
        interval: [low, high] by level; None if there is none.
    """
    low, high = interval["0.9"] if interval else (None, None)
    low, high = -1.0 if low is None else low, 1.0 if high is None else high
    size = 1 + abs(low) + abs(high)
    values = {"above": high + 1e-3 * size, "below": low - 1e-3 * size, "inside": (low + high) / 2, "far": 1e5}
    value = values.get(action)
    return None if value is None else max(-1e6, min(1e6, value))
