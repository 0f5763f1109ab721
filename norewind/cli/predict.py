"""`norewind predict`: put a trained run to use on a stream."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tyro


def predict(
    run: Annotated[Path, tyro.conf.Positional],
    source: Annotated[str | None, tyro.conf.Positional] = None,
    *,
    learn: bool = False,
    fresh: bool = False,
    samples: float | None = None,
    flush: float | None = None,
) -> None:
    """Predict every sample of a stream before it is seen, and say how surprising it was: JSON lines.

    The run itself is not changed (`norewind resume` does that).

    Args:
        run: the run folder.
        source: a file, - for the standard input, or a task; by default the run's own stream, after where it stopped.
        learn: keep learning along the way.
        fresh: begin with the initial state instead of the one that the run ended with.
        samples: stop after so many samples (1e6 is understood).
        flush: answer at the latest after so many seconds; by default up to 4,000 samples are gathered.
    """
    from norewind.cli.endings import StopOnSignal, friendly
    from norewind.cli.running import set_precision

    with StopOnSignal() as stop, friendly("predict", stop=stop):
        from norewind.training.predicting import predictions, saved_run
        from norewind.training.session import print_lines

        saved = saved_run(run)
        set_precision(saved.settings)
        # Checked as the settings of a run are.
        asked = replace(saved.settings, samples=samples, flush=flush)
        limit = None if asked.samples is None else int(asked.samples)
        chunks = predictions(saved, source, learn=learn, fresh=fresh, samples=limit, patience=flush, should_stop=stop)
        for entries in chunks:
            print_lines(entries)
    raise SystemExit(stop.exit_code)
