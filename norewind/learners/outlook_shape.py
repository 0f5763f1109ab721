"""What the outlook of a row consists of, for learners."""

from typing import NamedTuple


class OutlookShape(NamedTuple):
    """What the outlook of a row consists of, at the end of its inputs: a block for the row itself and one per step.

    Attributes:
        entries: the calendar entries in a block, by name; see `norewind.streams.table.calendar_entries`.
        columns: the number of columns known in advance, whose values follow them.
    """

    entries: tuple[str, ...] = ()
    columns: int = 0

    @property
    def width(self) -> int:
        """The length of a block."""
        return len(self.entries) + self.columns
