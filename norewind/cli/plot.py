"""`norewind plot`: learning curves of several runs in one figure."""

from pathlib import Path
from typing import Annotated

import tyro

from norewind.cli.running import draw
from norewind.runs.settings import SettingsError


def plot(runs: Annotated[tuple[Path, ...], tyro.conf.Positional], *, out: Path = Path("curves.png")) -> None:
    """Draw the learning curves of several runs in one figure.

    Args:
        runs: The run folders.
        out: The file of the figure: .png, .pdf or .svg.
    """
    if not runs:
        raise SettingsError("name at least one run folder.")
    if out.suffix not in (".png", ".pdf", ".svg"):
        raise SettingsError(f"--out must end in .png, .pdf or .svg, not {out}.")
    out.parent.mkdir(parents=True, exist_ok=True)
    draw(*runs, out=out)
    print(f"See {out}.")
