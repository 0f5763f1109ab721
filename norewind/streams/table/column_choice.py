"""The choice of columns: which can be inputs and targets, and messages about those that cannot."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from norewind.streams.stream import StreamError
from norewind.streams.table.columns import NOT_YEAR_FIRST, InferredKind, Kind
from norewind.streams.table.formats import DELIMITERS
from norewind.wording import first_few


class ColumnChoice(NamedTuple):
    """The columns that a stream is to use.

    Attributes:
        source: the name of the source, for messages.
        inputs: the names of the inputs.
        targets: the names of the targets.
        copied: the names of the columns to copy.
        key: the name of the column of the keys; None for none.
    """

    source: str
    inputs: Sequence[str]
    targets: Sequence[str]
    copied: Sequence[str]
    key: str | None

    def kind(self, name: str, column: InferredKind, *, classes: bool) -> Kind:
        """Return how to read a column that is used.

        Args:
            name: its name.
            column: its inferred kind.
            classes: whether targets are classes.

        Raises:
            StreamError: it cannot be used.
        """
        is_target = name in self.targets
        if is_target and classes:
            return "category"
        if is_target and column.kind == "category":
            remedy = 'Learn it as a class: loss="classes".' if column.why_unused == "text" else "Use a decimal point."
            raise StreamError(f"{self.source}: the target {name!r} is {column.why_unused}. {remedy}")
        if column.kind is None:
            inside = f" Name one of the values inside it, such as {name}.0 or {name}.key."
            remedy = "" if column.why_unused.startswith("dates") else inside
            raise StreamError(f"{self.source}: the column {name!r} is {column.why_unused}.{remedy}")
        return "number" if is_target and column.kind == "time" else column.kind

    def check(self, seen: dict[str, InferredKind], columns: Sequence[str], hint: str, *, same_row: bool) -> None:
        """Reject columns that do not exist, or that leave nothing to learn.

        Args:
            seen: the kinds of the columns, without the key.
            columns: the names of all columns.
            hint: what to add to the message that a column does not exist.
            same_row: whether targets are those of the same row.

        Raises:
            StreamError: the choice is rejected.
        """
        source, names, key = self.source, list(seen), self.key
        listed = first_few([repr(name) for name in names], 20)
        if key in [*self.inputs, *self.targets, *self.copied]:
            raise StreamError(f"column {key!r} is the key, so it cannot be an input, a target or copied.")
        if key not in [None, *columns]:
            raise StreamError(f"{source} has no column {key!r} to take keys from. It has {listed}.")
        missing = [name for name in [*self.inputs, *self.targets, *self.copied] if name not in seen]
        sign = next((sign for sign in DELIMITERS if sign in names[0]), None) if len(names) == 1 else None
        if sign and (missing or not (self.inputs and self.targets)):
            parts = f"has only one column, {names[0]!r}, with {sign!r} between its parts"
            raise StreamError(f"{source} {parts}: pass delimiter={json.dumps(sign)}.")
        if missing:
            if all(part in seen for part in missing[0].split(",")):
                hint = f". Name the columns separately: {missing[0].replace(',', ' ')}"
            raise StreamError(f"{source} has no column {missing[0]!r}. It has {listed}{hint}.")
        if self.inputs and self.targets:
            return
        why = [f"{name!r} ({column.why_unused})" for name, column in seen.items() if column.why_unused][:20]
        raise StreamError(
            f"{source} has no usable numeric column to {'forecast' if self.inputs else 'learn from'}"
            + (" besides the targets" if same_row and self.targets else "")
            + f" (row counters and timestamps are ignored). Its columns are {listed}. Name the inputs and the targets"
            + (f"; by default these are not used: {', '.join(why)}." if why else ".")
        )

    def time_warning(self, seen: dict[str, InferredKind], unsorted: str | None) -> str | None:
        """Return what is wrong with the times of a table, as a sentence; None if nothing is.

        Args:
            seen: the kinds of the columns.
            unsorted: the column of times, if they are not in ascending order.
        """
        if unsorted is not None:
            return (
                f"the times in the column {unsorted!r} are not in ascending order, but rows are learned in the order "
                "of the source. Sort them or, if they belong to several series, name the column of the keys."
            )
        names = [name for name, column in seen.items() if NOT_YEAR_FIRST in column.why_unused]
        if not names or self.key is not None:
            return None
        why = f"the column {names[0]!r} has {seen[names[0]].why_unused}, since day and month cannot be told apart"
        return f"{why}. The model sees no times, and no calendar."

    def check_planned(self, columns: Sequence[str], kinds: dict[str, Kind]) -> None:
        """Reject columns that cannot be known in advance.

        Args:
            columns: the names of the columns.
            kinds: the kinds of all columns in use.

        Raises:
            StreamError: one of them is a target, or holds neither numbers nor booleans.
        """
        for name in columns:
            if kinds[name] not in ("number", "boolean") or name in self.targets:
                raise StreamError(f"known_future: {name!r} must hold numbers or booleans, and cannot be a target.")
