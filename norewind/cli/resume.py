"""`norewind resume`: continue a run."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from norewind.cli.processes import HERE, Processes
from norewind.runs.settings import option


def resume(
    run: Annotated[Path, tyro.conf.Positional],
    *,
    samples: Annotated[float | None, option("N", "as in the settings")] = None,
    source: Annotated[str | None, option("SOURCE", "as in the settings")] = None,
    continues: bool = False,
    final: bool = False,
    bad: Annotated[Literal["fail", "skip"] | None, option("{fail,skip}", "as in the settings")] = None,
    damaged: Literal["fail", "skip"] = "fail",
    quiet: bool = False,
    processes: Annotated[Processes, tyro.conf.arg(name="")] = HERE,
) -> None:
    """Continue a run from its newest checkpoint, bit for bit as if it had never been interrupted.

    A file is read again up to the position of the checkpoint, and must not have changed up
    to there. A pipe must send the same stream again from its start, unless --continues is given.

    Args:
        run: The run folder.
        samples: Stop after this many samples in total.
        source: Where the stream is now, if it was moved; - for standard input.
        continues: The source starts at the checkpoint, not at its beginning. A topic may have lost unread messages.
        final: The file is complete: use its last line even without a newline.
        bad: From now on, stop at bad input, or skip and count it.
        damaged: If the newest checkpoint is damaged, stop, or continue from the previous one.
        quiet: Print nothing unless something is wrong.
        processes: See below.
    """
    from norewind.cli.running import run_in, run_shards
    from norewind.runs.folder import settings_of

    options = {"samples": samples, "source": source, "bad": bad, "final": final or None}
    changed = {name: value for name, value in options.items() if value is not None}
    settings = replace(settings_of(run), **changed)
    if settings.shards > 1 and settings.shard is None:
        run_shards("resume", run, settings, quiet=quiet, new=False, ray=processes.ray, jobs=processes.jobs)
    run_in("resume", run, settings, quiet=quiet, continues=continues, damaged=damaged)
