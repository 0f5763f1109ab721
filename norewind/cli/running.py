"""What train and resume have in common: run until the end or a signal, and say how it ended."""

import sys
from pathlib import Path
from typing import Any

from norewind.cli.endings import StopOnSignal, friendly
from norewind.training.settings import Settings


def run_in(command: str, folder: Path, settings: Settings, *, quiet: bool, **options: Any) -> None:
    """Train in a folder. Ends the process with a code of its own if it was stopped or diverged."""
    with StopOnSignal() as stop, friendly(command, folder, stop):
        set_precision(settings)
        from norewind.training.logs import read_log
        from norewind.training.session import CURVE, METRICS, run_training

        fitted, opened = run_training(folder, settings, quiet=quiet, should_stop=stop, **options)
    if quiet:
        raise SystemExit(stop.exit_code)
    lines = read_log(folder / METRICS)
    say = f"{fitted.samples:,} samples"
    if lines and lines[-1]["loss"] is not None:
        say += f", {lines[-1]['loss']:.4f} {opened.score.unit} lately"
        if lines[-1].get("level") is not None:
            say += f" (knowing nothing: {lines[-1]['level']:.4f})"
    for reason, count in opened.stream.counts.items():
        say += f", {count:,} {reason} skipped"
    print(f"{say}. See {folder / CURVE}.", file=sys.stderr)
    if stop():
        print(f"Stopped; nothing is lost. To go on: norewind resume {folder}", file=sys.stderr)
    raise SystemExit(stop.exit_code)


def set_precision(settings: Settings) -> None:
    """Single or double precision, for the whole process."""
    import jax

    jax.config.update("jax_enable_x64", settings.precision == "double")
