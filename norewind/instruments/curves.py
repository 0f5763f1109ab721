"""Numbers from the curves in records of runs."""

import numpy as np

from norewind.runs.record import Record


def points(record: Record) -> np.ndarray:
    """The samples at which the intervals of a curve end; the last one may be shorter.

    >>> points({"every": 10, "curve": [0.3, 0.2, 0.1], "samples": 25}).tolist()
    [10, 20, 25]
    """
    return np.minimum(record["every"] * np.arange(1, len(record["curve"]) + 1), record["samples"])


def losses(record: Record, entry: str = "curve") -> np.ndarray:
    """The mean loss of every interval (or its `baseline`, say); NaN where it is not known."""
    return np.array([np.nan if value is None else value for value in record[entry]], float)


def final(record: Record, share: float, entry: str = "curve") -> float | None:
    """The mean over the last share of a curve, at least over its last interval; None if it is not known.

    >>> final({"every": 10, "curve": [9.0, 1.0, 2.0, 3.0], "samples": 40}, 0.5)
    2.5
    """
    values = losses(record, entry) if record.get(entry) else np.array([])
    if not len(values):
        return None
    ends = points(record)
    chosen = (ends > (1 - share) * ends[-1]) & ~np.isnan(values)
    if not chosen.any():
        return None
    weights = np.diff(ends, prepend=0)[chosen]
    return float(np.sum(weights * values[chosen]) / np.sum(weights))
