"""What a board is: a public benchmark, how to run it, and what the page quotes of its records."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from norewind.sweeps.record import Record


class Board(NamedTuple):
    """A public benchmark.

    Attributes:
        name: its name on the command line. Its records are in `results/NAME`.
        title: the title of its section on the page.
        measure: what is measured, and in which direction it is better.
        published: the best published result, and whose it is.
        folder: the folder of its data inside `--data`; empty if a package contains them.
        origin: where to obtain the data.
        run: runs it, given the folder of its data, the folder of its records, and whether to be quick. Runs that have
            a record are not repeated.
        quote: returns what the page quotes of its records, by name. It must contain `ours`, our result in the unit of
            `published`, and `microseconds`, the processor time per row; it is empty while there are no records.
    """

    name: str
    title: str
    measure: str
    published: str
    folder: str
    origin: str
    run: Callable[[Path, Path, bool], None]
    quote: Callable[[dict[str, Record]], dict[str, str]]
