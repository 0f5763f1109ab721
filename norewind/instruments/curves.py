"""Numbers from the curves in records of runs."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from norewind.names import AUTO, AUTO_WINDOW, parse_method
from norewind.runs.metrics import at_the_end
from norewind.runs.record import Record


def grouped_by(key: Callable[[Any], Any], items: Iterable[Any]) -> dict[Any, list[Any]]:
    """Items by their key, in the order in which keys come first.

    >>> grouped_by(len, ["a", "bc", "d"])
    {1: ['a', 'd'], 2: ['bc']}
    """
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def points(record: Record) -> np.ndarray:
    """The samples at which the intervals of a curve end: at the end of a window, and of the run.

    >>> points({"every": 10, "curve": [0.3, 0.2, 0.1], "samples": 25}).tolist()
    [10, 20, 25]
    >>> points({"every": 10, "curve": [0.3, 0.2, 0.1], "samples": 24, "settings": {"method": "bptt:4"}}).tolist()
    [12, 20, 24]
    >>> auto = {"every": 40, "curve": [2.0, 1.0], "samples": 80, "settings": {"method": "auto"}}
    >>> points({**auto, "unit": "bits"}).tolist(), points({**auto, "unit": "squared error"}).tolist()
    ([48, 80], [40, 80])
    """
    window = window_of(record)
    multiples = record["every"] * np.arange(1, record["samples"] // record["every"] + 1)
    ends = np.unique(np.append(-(-multiples // window) * window, record["samples"]))
    return ends[: len(record["curve"])]


def window_of(record: Record) -> int:
    """The samples of one update. (The default method has windows for symbols, but not for rows and classes.)"""
    settings = record.get("settings", {"method": AUTO})
    if settings["method"] != AUTO:
        return parse_method(settings["method"]).window
    return AUTO_WINDOW if record.get("unit") == "bits" and settings.get("loss") != "classes" else 1


def losses(record: Record, entry: str = "curve") -> np.ndarray:
    """The mean loss of every interval (or its `baseline`, say); NaN where it is not known."""
    return np.array([np.nan if value is None else value for value in record[entry]], float)


def final(record: Record, share: float, entry: str = "curve") -> float:
    """The mean over the last share of a curve, at least over its last interval; NaN if it is not known.

    >>> final({"every": 10, "curve": [9.0, 1.0, 2.0, 3.0], "samples": 40}, 0.5)
    2.5
    """
    if not record.get(entry):
        return float("nan")
    return at_the_end(points(record), losses(record, entry), share)[1]
