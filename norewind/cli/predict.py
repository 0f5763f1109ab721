"""`norewind predict`: put a trained run to use on a stream."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tyro


def predict(
    run: Annotated[Path, tyro.conf.Positional],
    source: Annotated[
        str | None,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="[SOURCE]", help_behavior_hint="(default: the run's own stream, from where it stopped)"),
    ] = None,
    *,
    learn: bool = False,
    fresh: bool = False,
    samples: Annotated[
        float | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: the whole stream)")
    ] = None,
    flush: Annotated[
        float | None, tyro.conf.arg(metavar="SECONDS", help_behavior_hint="(default: wait for full chunks)")
    ] = None,
) -> None:
    """Predict every sample of a stream before it is seen, and report how surprising it was, as JSON lines.

    The run itself is not changed (`norewind resume` does that).

    Args:
        run: the run folder.
        source: what to predict: a file, - for standard input, or a task.
        learn: keep learning along the way.
        fresh: begin with the initial state instead of the one that the run ended with.
        samples: stop after this many samples. 1e6 is understood.
        flush: predict at most this many seconds after a sample arrives.
    """
    from norewind.cli.endings import StopOnSignal, friendly

    with StopOnSignal() as stop, friendly("predict", stop=stop):
        from norewind.runs.build import set_precision
        from norewind.runs.folder import saved_run
        from norewind.runs.predict import predictions
        from norewind.runs.train import print_lines

        settings, saved = saved_run(run)
        set_precision(settings)
        settings = replace(settings, samples=samples, flush=flush)
        for entries in predictions(settings, saved, source, learn=learn, fresh=fresh, should_stop=stop):
            print_lines(entries)
    raise SystemExit(stop.exit_code)
