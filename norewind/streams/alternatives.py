"""Hypothetical next rows as samples, without moving the stream."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from norewind.streams.rows import RowStream
from norewind.streams.scaling import Row, Statistics, Tried, inputs_of, samples_of
from norewind.streams.stream import Samples


class Moment(NamedTuple):
    """What a stream of rows knows at one moment. It does not change when the stream continues."""

    statistics: Statistics
    waiting: np.ndarray


def moment_of(stream: RowStream) -> Moment:
    """What the stream knows after the last row that it returned."""
    return Moment(stream._statistics, stream._waiting)


def next_rows(stream: RowStream, moment: Moment, rows: Sequence[dict[str, Any]]) -> Samples:
    """Each of the rows as a sample, as if it came right after the moment; nothing is remembered of it.

    A row that cannot be read raises `BadRow`.
    """
    read = [_read(stream, moment.statistics, row) for row in rows]
    samples, _ = samples_of(read, stream._layout, moment.waiting, stream._delays, each_next=True)
    return samples._replace(lines=None)


def next_row(stream: RowStream, row: dict[str, Any]) -> Samples:
    """The row as a sample, as if it came right now. If it does come, it need not be made again."""
    before = stream._statistics
    read = _read(stream, before, row)
    samples, waiting = samples_of([read], stream._layout, stream._waiting, stream._delays)
    stream.tried = Tried(before, read.values, samples, waiting)
    return samples


def _read(stream: RowStream, statistics: Statistics, row: dict[str, Any]) -> Row:
    values = stream._reader.values(row, new=False)
    values += [values[place] - statistics.newest[place] for place in stream._times]
    return Row(values, statistics.after(values), 0, None)


def newest_targets(stream: RowStream) -> np.ndarray:
    """The newest known value of every target; NaN if there is none."""
    return np.array([stream._statistics.newest[place] for place in stream._layout.targets], np.float64)


def imagined(stream: RowStream, targets: np.ndarray, step: int) -> np.ndarray:
    """The inputs of a row to come if it brings these targets: other values stay, and times go on."""
    statistics = stream._statistics
    values = list(statistics.newest)
    for place, value in zip(stream._layout.targets, targets.tolist(), strict=True):
        values[place] = value
    for gap, place in enumerate(stream._times, len(stream.kinds)):
        values[place] += step * values[gap]
    return inputs_of(Row(values, statistics, 0, None), stream._layout)
