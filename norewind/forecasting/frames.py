"""Forecasts as data frames, of the kind that a model was fitted on: pandas or Polars."""

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

from norewind.streams import StreamError
from norewind.streams.table.python_rows import Row, as_row, plain
from norewind.training.training_loop import Training

# The number of latest index labels from which the index is continued.
KEPT_LABELS = 12
# Files that are read as frames.
FRAME_SUFFIXES = (".parquet", ".csv.gz", ".tsv.gz")
# The two bounds of an interval, in names of columns.
SIDES = ("low", "high")


class FrameStyle(NamedTuple):
    """The kind of frame that a model was fitted on, and how its index continues.

    Attributes:
        kind: "pandas" or "polars".
        types: the type of each column.
        labels: the latest labels of a pandas index; None for Polars.
        samples: the number of rows that the model had learned from at these labels.
    """

    kind: str
    types: dict[str, Any]
    labels: Any
    samples: int


def style_of(data: Any, samples: int, rows: int | None = None) -> FrameStyle | None:
    """Return the style of a data frame or series; None for anything else.

    Args:
        data: what was passed to `fit`.
        samples: the number of rows that the model has learned from, with these.
        rows: the number of rows that it has learned from; the others are a plan. None for all.
    """
    frame = data.to_frame() if hasattr(data, "to_frame") else data
    if hasattr(frame, "iter_rows"):
        return FrameStyle("polars", {name: frame.schema[name] for name in frame.columns}, None, samples)
    if hasattr(frame, "itertuples"):
        types = {str(name): kind for name, kind in zip(frame.columns, frame.dtypes, strict=True)}
        return FrameStyle("pandas", types, frame.index[:rows][-KEPT_LABELS:], samples)
    return None


def as_timed_row(row: Any, training: Training | None, style: FrameStyle | None) -> Row:
    """Convert a row to a dict by column. If frames have times as their index, add its own label or the next time.

    Args:
        row: a dict by column, a row of a data frame, or a vector.
        training: the run that it comes next in; None if there is none yet.
        style: the kind of frame that was fitted last.
    """
    found, stream, label = as_row(row), training.windowed.rows if training else None, getattr(row, "name", None)
    clock = stream.clock if stream else "time"
    if clock is None or clock in found:
        return found
    if isinstance(label, datetime):
        return {clock: plain(label), **found}
    if stream is None or style is None or style.labels is None or clock in style.types:
        return found
    times = stream.times_ahead(1)
    return {clock: times[0], **found} if times else found


def read_if_packed(data: Any) -> Any:
    """Read a Parquet file or a compressed table into a frame, with Polars or else pandas; return anything else as is.

    Args:
        data: the path of a file, or rows.

    Raises:
        StreamError: the file cannot be read.
    """
    path = os.fspath(data) if isinstance(data, str | os.PathLike) else ""
    if not path.endswith(FRAME_SUFFIXES):
        return data
    separator = "\t" if path.endswith(".tsv.gz") else ","
    try:
        if find_spec("polars"):
            import polars

            read = polars.read_parquet if path.endswith(".parquet") else partial(polars.read_csv, separator=separator)
            return read(path)
        import pandas

        return pandas.read_parquet(path) if path.endswith(".parquet") else pandas.read_csv(path, sep=separator)
    except ImportError as error:
        raise StreamError(f"{path}: install polars, or pandas with pyarrow, to read it ({error}).") from None
    except Exception as error:  # each package has its own kinds
        raise StreamError(f"{path}: cannot be read: {error}.") from None


def build_frame(style: FrameStyle, columns: Mapping[str, Sequence[Any]], index: Any = None) -> Any:
    """Return a frame of the same kind, whose columns have the types that they had.

    Args:
        style: the kind of frame, and the types of its columns.
        columns: the values of each column.
        index: the index, for pandas.
    """
    if style.kind == "polars":
        import polars

        # A column of nothing but None would have no type.
        made = polars.DataFrame({name: polars.Series(name, list(values)) for name, values in columns.items()})
        made = made.with_columns(polars.col(polars.Null).cast(polars.Float64))
        texts = [name for name, kind in made.schema.items() if kind == polars.String and name in style.types]
        times = [name for name in texts if style.types[name].is_temporal()]
        return made.with_columns(polars.col(name).str.to_datetime().cast(style.types[name]) for name in times)
    import pandas

    made = pandas.DataFrame({name: list(values) for name, values in columns.items()}, index=index)
    for name in made.columns:
        if made[name].dtype == object and name not in style.types:
            made[name] = made[name].astype(float)  # None is unbounded or unknown
        elif pandas.api.types.is_datetime64_any_dtype(style.types.get(name)):
            made[name] = pandas.to_datetime(made[name]).astype(style.types[name])
    return made


def continued_index(style: FrameStyle, rows: int, samples: int) -> Any:
    """Return the labels of the next rows; None if they do not follow from the latest ones.

    Args:
        style: the frame that the model was fitted on.
        rows: the number of rows.
        samples: the number of rows that the model has learned from.
    """
    labels, first = style.labels, samples - style.samples + 1
    if labels is None or not len(labels):
        return None
    import pandas

    name = labels.name
    if isinstance(labels, pandas.DatetimeIndex | pandas.PeriodIndex):
        steps = labels.freq
        if steps is None and len(labels) > 2:
            steps = pandas.DatetimeIndex(labels, freq="infer").freq
        if steps is None:
            return None
        if isinstance(labels, pandas.PeriodIndex):
            return pandas.period_range(labels[-1], periods=first + rows, freq=steps, name=name)[first:]
        return pandas.date_range(labels[-1], periods=first + rows, freq=steps, name=name)[first:]
    if pandas.api.types.is_integer_dtype(labels) and (len(labels) < 2 or labels[-1] - labels[-2] == 1):
        return pandas.RangeIndex(int(labels[-1]) + first, int(labels[-1]) + first + rows, name=name)
    return None


def forecast_columns(entries: Sequence[dict[str, Any]], clock: str | None) -> dict[str, list[Any]]:
    """Return the columns of forecasts, named as in the CSV of `norewind forecast`.

    Args:
        entries: forecasts with the deviations and perhaps the intervals of each row.
        clock: the name of the column of times, if there is one.
    """
    columns: dict[str, list[Any]] = {}
    if clock is not None and "time" in entries[0]:
        columns[clock] = [entry["time"] for entry in entries]
    for name in entries[0]["forecast"]:
        columns[name] = [entry["forecast"][name] for entry in entries]
    for name in entries[0].get("deviation", {}):
        columns[f"{name} deviation"] = [entry["deviation"][name] for entry in entries]
    for name, levels in entries[0].get("interval", {}).items():
        for level in levels:
            for place, side in enumerate(SIDES):
                columns[f"{name} {level} {side}"] = [entry["interval"][name][level][place] for entry in entries]
    return columns


def check_is_frame(style: FrameStyle | None, caller: str) -> FrameStyle:
    """Return the style of a frame.

    Args:
        style: the style of the data; None if it is not a frame.
        caller: the name of the method, for the message.

    Raises:
        StreamError: the data is not a frame.
    """
    if style is None:
        raise StreamError(f"{caller} takes a pandas or Polars frame. For single rows, use predict_one and learn_one.")
    return style
