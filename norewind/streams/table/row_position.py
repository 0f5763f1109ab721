"""The position of a stream of rows: what its columns are, and what is known of their values."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from norewind.streams.position import (
    Count,
    MessagesPosition,
    SourcePosition,
    check_position,
    damaged_position_error,
)
from norewind.streams.table.calendar_entries import Entry
from norewind.streams.table.columns import KEPT_TIMES, MANY_CATEGORIES, MAX_NUMBER, Kind

# In positions None stands for NaN, which JSON does not have.
SavedNumber = Annotated[float, msgspec.Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
SavedSize = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]
# Count, mean, variance, latest value, reach and first values of a column.
SavedColumn = tuple[Count, SavedNumber, SavedSize, SavedNumber | None, SavedSize, list[SavedNumber]]
ColumnNames = Annotated[list[str], msgspec.Meta(min_length=1)]


class RowPosition(SourcePosition):
    """The fields of the position of a stream of rows."""

    inside: bool
    format: str
    steps: Annotated[list[Count], msgspec.Meta(min_length=1)]
    standardise: bool
    columns: list[str]
    inputs: ColumnNames
    targets: ColumnNames
    kinds: dict[str, Kind]
    cycles: dict[str, list[str]]
    categories: dict[str, Annotated[list[str], msgspec.Meta(max_length=MANY_CATEGORIES)]]
    clock: str | None
    times: Annotated[list[str | int | float | None], msgspec.Meta(max_length=KEPT_TIMES)]
    statistics: list[SavedColumn]
    waiting: Any
    messages: MessagesPosition | None = None
    calendar: tuple[Entry, ...] = ()
    plan: tuple[list[SavedNumber | None], ...] = ()
    carries_plans: bool = False
    wide: tuple[str, ...] = ()


def check_row_position(position: Any, same: dict[str, Any]) -> None:
    """Check that a saved position fits a stream of rows, and that its parts fit each other.

    Args:
        position: a position from a checkpoint, which may be anything.
        same: options that must have the same value as when the position was saved.

    Raises:
        StreamError: the position is damaged, belongs to another kind of stream, or was saved with other options.
    """
    check_position(position, "rows", RowPosition, same)
    kinds, names = position["kinds"], position["columns"]
    times = {name for name, kind in kinds.items() if kind == "time"}
    used = list(dict.fromkeys([*position["inputs"], *position["targets"]]))
    if list(kinds) != used or times != set(position["cycles"]):
        raise damaged_position_error("its kinds or cycles do not match its columns")
    if position["clock"] not in ([] if position["times"] else [None]) + names or len(set(names)) < len(names):
        raise damaged_position_error("its clock is not one of its columns, or two columns have the same name")


def optional_fields(plan: np.ndarray, *, carried: bool, wide: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a position that only some streams have.

    Args:
        plan: the planned columns of the next rows (rows, columns).
        carried: whether rows are sent with plans.
        wide: the columns of categories that have many inputs.
    """
    rows = [[None if value != value else value for value in row] for row in plan.tolist()]
    has_plans = plan.shape[1] > 0
    fields = {"carries_plans": carried and has_plans, "wide": list(wide), "plan": rows}
    return {name: value for name, value in fields.items() if value}


def saved_plan(position: dict[str, Any], columns: int) -> np.ndarray:
    """Return the plan of a saved position (rows, columns), with NaN for missing values.

    Args:
        position: the position, which `check_row_position` has accepted.
        columns: the number of planned columns.

    Raises:
        StreamError: the plan has another number of columns.
    """
    plan = position.get("plan", ())
    if any(len(row) != columns for row in plan):
        raise damaged_position_error("its plan does not match its columns")
    return np.array(plan, np.float64).reshape(len(plan), columns)
