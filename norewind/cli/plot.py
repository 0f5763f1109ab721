"""`norewind plot`: learning curves of several runs in one figure."""

from pathlib import Path
from typing import Annotated

import tyro

from norewind.runs.settings import SettingsError


def plot(runs: Annotated[tuple[Path, ...], tyro.conf.Positional], *, out: Path = Path("curves.png")) -> None:
    """Draw the learning curves of runs in one figure.

    Args:
        runs: run folders.
        out: the figure; .png, .pdf or .svg.
    """
    from norewind.cli.endings import friendly

    if not runs:
        raise SettingsError("name at least one run folder.")
    if out.suffix not in (".png", ".pdf", ".svg"):
        raise SettingsError(f"--out must end in .png, .pdf or .svg, not {out}.")
    with friendly("plot"):
        from norewind.cli.running import draw

        out.parent.mkdir(parents=True, exist_ok=True)
        draw(*runs, out=out)
    print(f"See {out}.")
