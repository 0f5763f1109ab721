"""`norewind resume`: go on with a run."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional

from norewind.runs.settings import option


def resume(
    run: Annotated[Path, Positional],
    *,
    samples: Annotated[float | None, option("N", "as in the settings")] = None,
    source: Annotated[str | None, option("SOURCE", "as in the settings")] = None,
    continues: bool = False,
    final: bool = False,
    bad: Annotated[Literal["fail", "skip"] | None, option("{fail,skip}", "as in the settings")] = None,
    damaged: Literal["fail", "skip"] = "fail",
    quiet: bool = False,
    ray: Annotated[str | None, option("ADDRESS", "processes on this machine")] = None,
    jobs: Annotated[int | None, option("N", "one per core")] = None,
) -> None:
    """Go on with a run from its newest checkpoint, bit for bit as if it had never been interrupted.

    A file is read again up to that place and must not have changed. A pipe must send the
    same stream again from its start, unless it continues.

    Args:
        run: the run folder.
        samples: stop after this many samples in total.
        source: where the stream is now, if it was moved; - for standard input.
        continues: the stream starts where the checkpoint was written, instead of at its beginning; of a topic, at its
            oldest message if those before it were deleted.
        final: the file will not grow any more: use its last line although it has no newline.
        bad: stop at bad input, or skip and count it from now on.
        damaged: if the newest checkpoint is damaged, fail or skip to the one before it.
        quiet: print nothing unless something is wrong.
        ray: of a run with shards: go on in a Ray cluster (see train).
        jobs: of a run with shards: train so many at the same time.
    """
    from norewind.cli.running import run_in, run_shards
    from norewind.runs.folder import settings_of

    options = {"samples": samples, "source": source, "bad": bad, "final": final or None}
    changed = {name: value for name, value in options.items() if value is not None}
    settings = replace(settings_of(run), **changed)
    if settings.shards > 1 and settings.shard is None:
        run_shards("resume", run, settings, quiet=quiet, new=False, ray=ray, jobs=jobs)
    run_in("resume", run, settings, quiet=quiet, continues=continues, damaged=damaged)
