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
        from norewind.training.figure import draw_curves
        from norewind.training.logs import read_log
        from norewind.training.session import METRICS, settings_of, unit_of

        units = {unit_of(settings_of(run)) for run in runs}
        if len(units) > 1:
            leave(
                f"norewind plot: these runs are measured in {' and '.join(sorted(units))}: draw them apart.", BAD_INPUT
            )
        out.parent.mkdir(parents=True, exist_ok=True)
        draw_curves([(str(run), read_log(run / METRICS)) for run in runs], units.pop(), out)
    print(f"See {out}.")
