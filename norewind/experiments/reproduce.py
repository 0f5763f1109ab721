"""From the name of an experiment to its records, figures, table and page."""

import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from norewind.experiments import influence, plans
from norewind.experiments.progress import make_progress
from norewind.experiments.report import write_report
from norewind.experiments.settings import TextSetting
from norewind.experiments.workers import finished, run_all

FULL = {
    "seeds": 3,
    "influence_seeds": 10,
    "more_seeds": 4,
    "steps": 200_000,
    "anbn": 10**7,
    "brackets": 3 * 10**6,
}
QUICK = {
    "seeds": 1,
    "influence_seeds": 10,
    "more_seeds": 0,
    "steps": 50_000,
    "anbn": 10**5,
    "brackets": 2 * 10**5,
}


def run_experiments(
    what: str,
    *,
    out: Path,
    quick: bool = False,
    seeds: int | None = None,
    characters: int | None = None,
    rates: Sequence[float] = influence.RATES,
    windows: Sequence[int] = influence.WINDOWS,
    controls: bool = True,
    run: bool = True,
    jobs: int | None = None,
) -> None:
    """Run one experiment, or `"all"`, and write everything about it to a folder.

    With `run=False` the figures, table and page are made from the records that are there.
    """
    began = time.perf_counter()
    if threading.current_thread() is threading.main_thread():
        # Being asked to end is no different from an interrupt at the keyboard, also in the background.
        for asked in (signal.SIGINT, signal.SIGTERM):
            signal.signal(asked, signal.default_int_handler)
    sizes = QUICK if quick else FULL
    texts = text_settings(what, sizes, seeds, characters, controls)
    try:
        if run and what in ("influence", "all"):
            chosen = influence.influence_settings(
                seeds=seeds or sizes["influence_seeds"], steps=sizes["steps"], rates=rates, windows=windows
            )
            influence.run_influence(list(chosen), out, say)
        if run and texts:
            with make_progress(len(texts)) as progress:
                run_all(texts, out, progress, jobs)
    except KeyboardInterrupt:
        say("interrupted: finished runs and checkpoints are kept, the same command goes on from there")
        raise SystemExit(130) from None
    finally:
        missing = [setting.slug for setting in texts if not finished(out, setting)]
        for path in write_report(out, missing):
            say(f"wrote {path}")
    say(f"done in {time.perf_counter() - began:.0f} s")


def text_settings(
    what: str, sizes: dict[str, int], seeds: int | None, characters: int | None, controls: bool
) -> list[TextSetting]:
    """The runs on text, the table first."""
    seeds = seeds or sizes["seeds"]
    anbn_size = {"seeds": seeds, "characters": characters or sizes["anbn"]}
    settings = []
    if what in ("anbn", "all"):
        settings += plans.anbn_table(**anbn_size)
    if what in ("brackets", "all"):
        settings += plans.brackets_curves(seeds=seeds, characters=characters or sizes["brackets"])
    if what in ("anbn", "all") and controls:
        settings += plans.anbn_controls(**anbn_size, more_seeds=sizes["more_seeds"])
    return settings


def say(line: str) -> None:
    """Tell the user, beside what the command writes."""
    print(line, file=sys.stderr, flush=True)
