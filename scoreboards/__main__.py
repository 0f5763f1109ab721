"""`python -m scoreboards [NAME ...]`: run public benchmarks."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from scoreboards.boards import BOARDS


def main(
    names: tyro.conf.Positional[tuple[str, ...]] = (),
    /,
    data: Path = Path("data"),
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
    quick: bool = False,
) -> int:
    """Run public benchmarks with norewind, and write a record of every run. Runs that have a record are not repeated.

    Args:
        names: the benchmarks; by default all whose data are there.
        data: a folder with a folder of data for each benchmark.
        out: the folder of the records; by default runs/scoreboards, and with --quick runs/scoreboards-quick.
        quick: use only a small part of each benchmark.

    Returns:
        The exit status: 2 if a benchmark is unknown, 1 if its data are missing.
    """
    if unknown := [name for name in names if name not in BOARDS]:
        print(f"unknown: {', '.join(unknown)}. The benchmarks are {', '.join(BOARDS)}.", file=sys.stderr)
        return 2
    missing = False
    for name in names or BOARDS:
        board = BOARDS[name]
        folder = data / board.folder
        if board.folder and not folder.exists():
            print(f"{name}: there is no folder {folder}. Its data are at {board.origin}", file=sys.stderr)
            missing = True
            continue
        print(f"## {board.title}", flush=True)
        board.run(folder, (out or Path("runs", "scoreboards-quick" if quick else "scoreboards")) / name, quick)
    return int(missing)


if __name__ == "__main__":
    sys.exit(tyro.cli(main, prog="python -m scoreboards"))
