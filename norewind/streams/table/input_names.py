"""Names of the inputs of a row, for reports."""

from typing import Any

from norewind.streams.table.columns import CATEGORIES, MANY_CATEGORIES
from norewind.streams.table.scaling import TableLayout


def input_names(layout: TableLayout, position: dict[str, Any]) -> list[str]:
    """Return a name for each input of a row, in the order of `TableLayout`.

    Args:
        layout: how the columns in use become inputs.
        position: the position of the stream, which names the columns and the categories.
    """
    table, times = list(position["kinds"]), list(position["cycles"])
    names = [
        table[column] if column < len(table) else f"time since the row before ({times[column - len(table)]})"
        for column in layout.numbers.tolist()
    ]
    for name in (table[column] for column in layout.categories.tolist()):
        known, size = position["categories"][name], MANY_CATEGORIES if name in position.get("wide", ()) else CATEGORIES
        also = " (and later values)" if len(known) == size else ""
        names += [f"{name} = {value}{also}" for value in known] + [f"{name}: another value"] * (size - len(known))
    for name, cycles in position["cycles"].items():
        names += [f"{cycle} of {name}, {wave}" for cycle in cycles if cycle != "gap" for wave in ("cosine", "sine")]
    before = (layout.width - len(names)) // len(position["targets"]) if layout.before else 0
    return names + [f"{name} of the row before" for name in position["targets"] for _ in range(before)]
