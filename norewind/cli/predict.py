"""`norewind predict`: apply a trained run to a stream."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from norewind.runs.settings import option


def predict(
    run: Annotated[Path, Positional],
    source: Annotated[str | None, Positional, option("[SOURCE]", "the run's own stream, from where it stopped")] = None,
    *,
    learn: bool = False,
    fresh: bool = False,
    samples: Annotated[float | None, option("N", "the whole stream")] = None,
    flush: Annotated[float | None, option("SECONDS", "wait for full chunks")] = None,
) -> None:
    """Predict every sample of a stream before it is seen, and report how surprising it was, as JSON lines.

    The run itself is not changed; `norewind resume` continues it.

    Args:
        run: The run folder.
        source: What to predict: a file, - for standard input, or a task.
        learn: Keep learning along the way.
        fresh: Start from the initial state instead of the last state of the run.
        samples: Stop after this many samples; can be written as 1e6.
        flush: Predict at most this many seconds after a sample arrives.
    """
    from norewind.cli.running import StopOnSignal, friendly

    with StopOnSignal() as stop, friendly("predict", stop=stop):
        from norewind.runs.folder import saved_run
        from norewind.runs.predict import predictions
        from norewind.runs.train import print_lines

        settings, saved = saved_run(run)
        settings = replace(settings, samples=samples, flush=flush)
        for entries in predictions(settings, saved, source, learn=learn, fresh=fresh, should_stop=stop):
            print_lines(entries)
    raise SystemExit(stop.exit_code)
