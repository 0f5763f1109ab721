"""`norewind resume`: go on with a run."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import tyro


def resume(
    run: Annotated[Path, tyro.conf.Positional],
    *,
    samples: Annotated[
        float | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: as in the settings)")
    ] = None,
    source: Annotated[
        str | None, tyro.conf.arg(metavar="SOURCE", help_behavior_hint="(default: as in the settings)")
    ] = None,
    continues: bool = False,
    damaged: Literal["fail", "skip"] = "fail",
    quiet: bool = False,
) -> None:
    """Go on with a run from its newest checkpoint, bit for bit as if it had never been interrupted.

    A file is read again up to that place and must not have changed. A pipe must send the
    same stream again from its start, unless it continues.

    Args:
        run: the run folder.
        samples: stop after this many samples in total.
        source: where the stream is now, if it was moved; - for standard input.
        continues: the stream starts where the checkpoint was written, instead of at its beginning.
        damaged: if the newest checkpoint is damaged, fail or skip to the one before it.
        quiet: print nothing unless something is wrong.
    """
    from norewind.cli.endings import BAD_INPUT, leave
    from norewind.cli.running import run_in
    from norewind.runs.settings import SETTINGS, Settings, read_toml

    if not (run / SETTINGS).exists():
        leave(f"norewind resume: {run} holds no run: there is no {SETTINGS} in it.", BAD_INPUT)

    def settings() -> Settings:
        changed = {"samples": samples, "source": source}
        return replace(read_toml(run / SETTINGS), **{name: new for name, new in changed.items() if new is not None})

    run_in("resume", run, settings, quiet=quiet, continues=continues, damaged=damaged)
