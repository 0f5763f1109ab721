"""Copies of series that are hard to learn from: with large numbers, or with a jump in the middle."""

import csv
from pathlib import Path

import numpy as np

SCALED, JUMP = "times-100", "jump"
CHANGES = (SCALED, JUMP)
DEVIATIONS = 10


def path_of(path: Path, change: str) -> Path:
    """The path of a changed copy.

    Args:
        path: the original file.
        change: the kind of change.
    """
    return path.with_name(f"{path.stem}-{change}.csv")


def write_copies(path: Path, columns: tuple[str, ...], rows: int) -> None:
    """Write a changed copy of a table for each kind of change, next to the file.

    Args:
        path: the file.
        columns: the columns to copy.
        rows: the number of rows to copy.
    """
    values = read_columns(path, columns, rows)
    for change, make in ((SCALED, scaled), (JUMP, with_jump)):
        lines = [",".join("NA" if np.isnan(value) else f"{value:.9g}" for value in row) for row in make(values)]
        path_of(path, change).write_text("\n".join([",".join(columns), *lines, ""]), encoding="utf-8")


def read_columns(path: Path, columns: tuple[str, ...], rows: int) -> np.ndarray:
    """Read columns of a table as an array (rows, columns), with NaN for missing values.

    Args:
        path: the file.
        columns: the columns to read.
        rows: the number of rows to read.
    """
    with path.open(newline="", encoding="utf-8") as file:
        table = [[row[name] for name in columns] for _, row in zip(range(rows), csv.DictReader(file), strict=False)]
    return np.array([[np.nan if value in ("", "NA") else float(value) for value in row] for row in table])


def scaled(values: np.ndarray) -> np.ndarray:
    """Scale every column to a standard deviation of 100, to be learned from without standardisation.

    >>> scaled(np.array([[1.0], [3.0]]))
    array([[-100.],
           [ 100.]])
    """
    return 100 * (values - np.nanmean(values, axis=0)) / np.nanstd(values, axis=0)


def with_jump(values: np.ndarray) -> np.ndarray:
    """Raise every column by ten of its standard deviations from the middle on.

    >>> with_jump(np.array([[1.0], [3.0]]))
    array([[ 1.],
           [13.]])
    """
    late = np.arange(len(values)) >= len(values) // 2
    return values + late[:, None] * DEVIATIONS * np.nanstd(values, axis=0)
