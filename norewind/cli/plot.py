"""`norewind plot`: learning curves of several runs in one figure."""

from pathlib import Path
from typing import Annotated

import tyro


def plot(runs: Annotated[tuple[Path, ...], tyro.conf.Positional], *, out: Path = Path("curves.png")) -> None:
    """Draw the learning curves of runs in one figure.

    Args:
        runs: run folders.
        out: the figure; .png, .pdf or .svg.
    """
    from norewind.cli.endings import BAD_INPUT, friendly, leave

    if not runs:
        leave("norewind plot: name at least one run folder.", BAD_INPUT)
    if out.suffix not in (".png", ".pdf", ".svg"):
        leave(f"norewind plot: --out must end in .png, .pdf or .svg, not {out}.", BAD_INPUT)
    with friendly("plot"):
        from norewind.cli.running import draw

        out.parent.mkdir(parents=True, exist_ok=True)
        draw(*runs, out=out)
    print(f"See {out}.")
