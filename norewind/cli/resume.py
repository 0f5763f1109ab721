"""`norewind resume`: go on with a run."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import tyro


def resume(
    run: Annotated[Path, tyro.conf.Positional],
    *,
    samples: float | None = None,
    source: str | None = None,
    continues: bool = False,
    damaged: Literal["fail", "skip"] = "fail",
    quiet: bool = False,
) -> None:
    """Go on with a run exactly where its newest checkpoint was taken, as if it had never been interrupted.

    A file is read again up to that place and checked to be the same. A pipe must send
    the same stream again from its start, unless it continues.

    Args:
        run: the run folder.
        samples: stop after so many samples in all, instead of what the settings say.
        source: where the stream is now, if it was moved; - for the standard input.
        continues: the stream goes on right where the checkpoint was taken, instead of beginning again.
        damaged: what to do about a checkpoint that is damaged: fail, or skip to the one before.
        quiet: say nothing unless something is wrong.
    """
    from norewind.cli.endings import friendly
    from norewind.cli.running import run_in
    from norewind.training.session import settings_of

    with friendly("resume"):
        settings = settings_of(run)
        changed = {"samples": samples, "source": source}
        settings = replace(settings, **{name: value for name, value in changed.items() if value is not None})
    run_in("resume", run, settings, quiet=quiet, continues=continues, damaged=damaged)
