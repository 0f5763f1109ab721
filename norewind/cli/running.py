"""What train and resume share: train until the end or a signal, and say how it ended."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from norewind.cli.endings import StopOnSignal, friendly
from norewind.runs.settings import Settings

if TYPE_CHECKING:
    from norewind.runs.train import Trained


def run_in(
    command: str, path: Path, settings: Callable[[], Settings], *, quiet: bool, continues: bool = False, **hold: Any
) -> None:
    """Train in a folder, and end the process. `settings` is called inside the folder; `hold` are its options."""
    with StopOnSignal() as stop, friendly(command, path, stop):
        from norewind.runs.build import set_precision
        from norewind.runs.fit import Hooks
        from norewind.runs.folder import RunFolder
        from norewind.runs.progress import Progress
        from norewind.runs.train import train

        with Progress(quiet=quiet) as progress, RunFolder(path, say=progress.say, **hold) as folder:
            chosen = settings()
            set_precision(chosen)
            trained = train(chosen, folder, continues=continues, progress=progress, hooks=Hooks(should_stop=stop))
        draw(path)
    if not quiet:
        print(closing_words(path, trained), file=sys.stderr)
        if stop():
            print(f"Stopped; nothing is lost. To go on: norewind resume {path}", file=sys.stderr)
    raise SystemExit(stop.exit_code)


def draw(*paths: Path, out: Path | None = None) -> Path:
    """Draw the learning curves of runs in one figure; by default curve.png in the folder of the first."""
    from norewind.instruments.figures import draw_curves
    from norewind.runs.folder import CURVE, METRICS, read_log, settings_of
    from norewind.runs.settings import SettingsError
    from norewind.runs.train import unit_of

    units = {unit_of(settings_of(path)) for path in paths}
    if len(units) > 1:
        raise SettingsError(f"these runs are measured in {' and '.join(sorted(units))}: draw them separately.")
    out = out or paths[0] / CURVE
    draw_curves([(str(path), read_log(path / METRICS)) for path in paths], units.pop(), out)
    return out


def closing_words(path: Path, trained: "Trained") -> str:
    """How far a run has come, its loss beside the baseline, and where to look."""
    from norewind.runs.folder import CURVE, METRICS, read_log

    fitted, opened = trained
    words = f"{fitted.samples:,} samples"
    lines = read_log(path / METRICS)
    if lines and lines[-1]["loss"] is not None:
        words += f", {lines[-1]['loss']:.4f} {opened.score.unit} in the last interval"
        if lines[-1].get("baseline") is not None:
            words += f" ({opened.score.trivial}: {lines[-1]['baseline']:.4f})"
    for reason, count in opened.stream.counts.items():
        words += f", {count:,} {reason} skipped"
    return f"{words}. See {path / CURVE}."
