"""The score of the Numenta Anomaly Benchmark (NAB): how early, how often and how wrongly a detector alarms."""

import json
from collections.abc import Iterable, Sequence
from csv import DictReader
from pathlib import Path
from typing import NamedTuple

import numpy as np

# The first rows of a series are not scored: this share of it, and at most this share of 5,000 rows.
PROBATION = 0.15
LONGEST_PROBATION = PROBATION * 5000
# Further than this many windows behind the last one, an alarm counts as entirely wrong.
FARTHEST = 3.0


class Weights(NamedTuple):
    """What alarms are worth in a profile.

    Attributes:
        hit: the gain for a window with an alarm at its left edge.
        miss: the cost of a window without an alarm.
        wrong: the cost of a row with an alarm far from all windows.
    """

    hit: float
    miss: float
    wrong: float


PROFILES = {
    "standard": Weights(1.0, 1.0, 0.11),
    "low FP": Weights(1.0, 1.0, 0.22),
    "low FN": Weights(1.0, 2.0, 0.11),
}


class Series(NamedTuple):
    """A file of the corpus.

    Attributes:
        name: the name of the file, with its folder.
        values: the value of each row.
        windows: the first and the last row of each labelled window, in order.
    """

    name: str
    values: np.ndarray
    windows: Sequence[tuple[int, int]]


class Result(NamedTuple):
    """The score of a corpus at one threshold.

    Attributes:
        score: 0 for a detector that never alarms, 100 for a perfect one.
        threshold: rows with at least this score are alarms.
        wrong: the number of rows with an alarm outside the windows.
        missed: the number of windows without an alarm.
    """

    score: float
    threshold: float
    wrong: int
    missed: int


def read_corpus(folder: Path) -> list[Series]:
    """Read all series of the benchmark, in the order of their names.

    Args:
        folder: a copy of the benchmark's repository, or its `data` and `labels`.

    Raises:
        ValueError: a window begins or ends at a time that is not in its file.
    """
    labels = json.loads((folder / "labels/combined_windows.json").read_text(encoding="utf-8"))
    return [read_series(folder / "data" / name, name, labels[name]) for name in sorted(labels)]


def read_series(path: Path, name: str, windows: Iterable[Sequence[str]]) -> Series:
    """Read a file of the corpus.

    Args:
        path: the file, a table with the columns timestamp and value.
        name: the name of the series.
        windows: the times of the first and last row of each window.

    Raises:
        ValueError: a window begins or ends at a time that is not in the file.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = [(row["timestamp"], float(row["value"])) for row in DictReader(file)]
    numbers: dict[str, int] = {}
    for number, (time, _) in enumerate(rows):
        numbers.setdefault(time, number)  # a time may appear twice
    found = []
    for edges in windows:
        first, last = (edge.removesuffix(".000000") for edge in edges)
        if first not in numbers or last not in numbers:
            absent = last if first in numbers else first
            raise ValueError(f"{path}: there is no row at {absent}, the edge of a window.")
        found.append((numbers[first], numbers[last]))
    return Series(name, np.array([value for _, value in rows]), sorted(found))


def probation(rows: int) -> int:
    """Return the number of first rows that are not scored.

    Args:
        rows: the length of the series.

    >>> probation(1000), probation(20_000)
    (150, 750)
    """
    return int(min(np.floor(PROBATION * rows), LONGEST_PROBATION))


def sigmoid(position: np.ndarray) -> np.ndarray:
    """Return the value of an alarm, from 1 (early in a window) over 0 (its right edge) to −1 (far behind it).

    Args:
        position: relative to the right edge, in lengths of the window.
    """
    return 2 / (1 + np.exp(5 * position)) - 1


def values_of_alarms(rows: int, windows: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return what an alarm at each row is worth, without weights, and the number of the window it is in.

    Args:
        rows: the length of the series.
        windows: the first and last row of each window, in order.

    Returns:
        The values, at most 1 inside windows and at least −1 outside; the numbers, −1 outside.
    """
    worth, inside = np.full(rows, -1.0), np.full(rows, -1)
    for number, (first, last) in enumerate(windows):
        end = windows[number + 1][0] if number + 1 < len(windows) else rows
        length = last - first + 1
        places = np.arange(first, last + 1)
        worth[places] = sigmoid(-(last - places + 1) / length) / sigmoid(np.array(-1.0))
        inside[places] = number
        behind = np.arange(last + 1, end)
        distance = (behind - last) / max(length - 1, 1)
        worth[behind] = np.where(distance < FARTHEST, sigmoid(np.minimum(distance, FARTHEST)), -1.0)
    return worth, inside


def best_result(corpus: Sequence[Series], scores: Sequence[np.ndarray], weights: Weights) -> Result:
    """Score a corpus with the threshold that is best for it, as the benchmark does.

    Args:
        corpus: the series.
        scores: for each series, the anomaly score of every row.
        weights: the profile.
    """
    # For all scored rows, ordered within each window by falling score: the score, how much the sum changes when
    # the row becomes an alarm, whether it is outside the windows, and whether it is the first alarm in its window.
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
    windows = 0
    for series, score in zip(corpus, scores, strict=True):
        worth, inside = values_of_alarms(len(score), series.windows)
        inside[: probation(len(score))] = -2
        outside = np.flatnonzero(inside == -1)
        nothing = np.zeros(len(outside), bool)
        parts.append((score[outside], weights.wrong * worth[outside], ~nothing, nothing))
        for number in range(len(series.windows)):
            rows = np.flatnonzero(inside == number)
            rows = rows[np.argsort(-score[rows], kind="stable")]
            best = np.maximum.accumulate(np.append(-weights.miss, weights.hit * worth[rows]))
            parts.append((score[rows], np.diff(best), np.zeros(len(rows), bool), np.arange(len(rows)) == 0))
            windows += 1
    values, gains, wrong, first = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.argsort(-values, kind="stable")
    values = values[order]
    # The number of alarms at each threshold: all rows with the same score at once.
    numbers = np.append(0, np.append(np.flatnonzero(np.diff(values)) + 1, len(values)))
    sums = np.append(0.0, np.cumsum(gains[order]))[numbers]
    alarms = int(numbers[np.argmax(sums)])
    return Result(
        score=100 * float(sums.max()) / (windows * (weights.hit + weights.miss)) if windows else 0.0,
        threshold=float(values[alarms - 1]) if alarms else np.inf,
        wrong=int(wrong[order][:alarms].sum()),
        missed=windows - int(first[order][:alarms].sum()),
    )
