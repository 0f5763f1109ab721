"""The table of all boards. To add one, write a file with a `BOARD`, list it here, and write its section of the page."""

from collections.abc import Iterator
from pathlib import Path

from norewind.plotting.tables import markdown
from norewind.sweeps.record import read_records
from scoreboards import calgary, classes, dsof, intervals, nab, series

_ALL = dsof.BOARD, intervals.BOARD, classes.BOARD, nab.BOARD, calgary.BOARD, series.BOARD
BOARDS = {board.name: board for board in _ALL}


def quotes(results: Path) -> Iterator[tuple[str, str]]:
    """Yield every number and table that docs/scoreboards.md quotes, by name, and the table at its beginning.

    Args:
        results: the folder with a folder of records for every board.
    """
    rows = []
    for board in BOARDS.values():
        quoted = board.quote(read_records(results / board.name))
        yield from ((f"{board.name}/{name}", text) for name, text in quoted.items())
        if quoted:
            own = quoted["ours"], quoted["microseconds"]
            rows.append((f"[{board.title}](#{anchor_of(board.title)})", board.measure, board.published, *own))
    yield "scoreboards/summary", markdown(["benchmark", "measure", "best published", "norewind", "µs a row"], rows)


def anchor_of(title: str) -> str:
    """Return the anchor of a section.

    Args:
        title: its title.

    >>> anchor_of("Anomalies: the Numenta Anomaly Benchmark")
    'anomalies-the-numenta-anomaly-benchmark'
    """
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter == "-")
