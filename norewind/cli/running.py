"""What commands share: training until the end or a signal, exit codes, messages without a traceback."""

import errno
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from norewind.runs.settings import Settings, SettingsError
from norewind.standard import drop_output

if TYPE_CHECKING:
    from norewind.runs.build import Opened
    from norewind.runs.fit import Fitted

BAD_INPUT = 1
"""Something is wrong with the stream, the settings, the folder or a checkpoint."""
DIVERGED = 3
"""The run diverged; its last good checkpoint is kept."""


OUTPUT_ERRORS = (errno.EBADF, errno.ENOSPC, errno.EFBIG, errno.EIO)
"""What may go wrong with standard output, which has no file name. (A closed one is a bad descriptor.)"""


HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)


class StopOnSignal:
    """Ctrl-C, SIGTERM and SIGHUP (a closed terminal) as a request to stop soon. A second Ctrl-C stops at once.

    A SIGHUP that is ignored, as `nohup` does, stays so.
    """

    signal: int | None = None

    def __enter__(self) -> "StopOnSignal":
        ignored = HANGUP is not None and signal.getsignal(HANGUP) is signal.SIG_IGN
        wanted = [signal.SIGINT, signal.SIGTERM, *([] if HANGUP is None or ignored else [HANGUP])]
        self._before = {number: signal.signal(number, self._request) for number in wanted}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number, frame):
        if self.signal == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    def __call__(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """The code that a shell expects of a process that was ended by a signal."""
        return 0 if self.signal is None else 128 + self.signal


@contextmanager
def friendly(command: str, folder: Path | None = None, stop: StopOnSignal | None = None) -> Iterator[None]:
    """End the command with a message and an exit code, not a traceback, on mistakes, full disks and divergence.

    `folder` is where a run is being trained. A failure because of a signal ends with the signal's code.
    """

    def fail(message: str, code: int = BAD_INPUT) -> NoReturn:
        leave(f"norewind {command}: {message}", (stop and stop.exit_code) or code)

    try:
        yield
    except BrokenPipeError:
        # The reader has seen enough (head, for example).
        drop_output()
        raise SystemExit(128 + signal.SIGPIPE) from None
    except OSError as error:
        drop_output()
        named = error.filename or ("standard output" if error.errno in OUTPUT_ERRORS else None)
        where = f"{named}: " if named else ""
        fail(f"{where}{error.strerror or error}.{_kept(folder, False)}")
    except Exception as error:
        # Imported now, so that --help need not wait for JAX.
        from norewind.checkpoint import CheckpointError
        from norewind.checks import ModelError
        from norewind.run import NonFiniteError
        from norewind.runs.folder import FolderInUse
        from norewind.runs.metrics import Diverged
        from norewind.runs.workers import SweepError
        from norewind.streams import StreamError

        if isinstance(error, CheckpointError | FolderInUse | ModelError | SettingsError | StreamError | SweepError):
            fail(str(error))
        if isinstance(error, NonFiniteError):
            where = int(error.run.samples) + 1
            fail(f"the run diverged: sample {where} gave numbers that are not finite.{_kept(folder, True)}", DIVERGED)
        if isinstance(error, Diverged):
            fail(f"the run diverged: {error}{_kept(folder, True)}", DIVERGED)
        if isinstance(error, MemoryError):
            fail(f"there is not enough memory. {error}.{_kept(folder, False)}")
        raise


def _kept(folder: Path | None, diverged: bool) -> str:
    from norewind.runs.folder import last_good

    if folder is None:
        return ""
    found = last_good(folder)
    kept = f" The last good checkpoint, {found}, is kept." if found else " There was no checkpoint yet."
    if diverged:
        return f"{kept} The same settings would diverge again: start a new run with a lower --rate or another --seed."
    return f"{kept} To continue: norewind resume {folder}" if found else kept


def leave(message: str, code: int) -> NoReturn:
    print(message, file=sys.stderr)
    raise SystemExit(code) from None


def run_in(command: str, path: Path, settings: Settings, *, quiet: bool, continues: bool = False, **hold: Any) -> None:
    """Train in a folder, and end the process. `hold` are options of the folder."""
    with StopOnSignal() as stop, friendly(command, path, stop):
        from norewind.runs.fit import Hooks
        from norewind.runs.folder import RunFolder
        from norewind.runs.progress import Progress
        from norewind.runs.train import train

        hooks = Hooks(should_stop=stop)
        with Progress(quiet=quiet) as progress, RunFolder(path, say=progress.say, **hold) as folder:
            fitted, opened = train(settings, folder, continues=continues, progress=progress, hooks=hooks)
        draw(path)
        draw_rows(path, fitted, opened)
    if not quiet:
        print(closing_words(path, fitted, opened), file=sys.stderr)
        if stop():
            print(f"Stopped; nothing is lost. To continue: norewind resume {path}", file=sys.stderr)
    raise SystemExit(stop.exit_code)


def run_shards(command: str, path: Path, settings: Settings, *, quiet: bool, new: bool, **workers: Any) -> NoReturn:
    """Train a fleet in parts, and end the process."""
    with friendly(command):
        from norewind.runs.progress import Progress
        from norewind.runs.shards import shard_words, train_shards
        from norewind.runs.workers import SweepError
        from norewind.streams import KeyedStream

        with Progress(max(2, settings.shards), quiet=quiet) as progress:
            try:
                train_shards(settings, path, progress, new=new, **workers)
            except SweepError as error:
                leave(f"norewind {command}: {error}\nTo continue: norewind resume {path}", BAD_INPUT)
            except KeyboardInterrupt:
                leave(f"Stopped; nothing is lost. To continue: norewind resume {path}", 128 + signal.SIGINT)
        if not quiet:
            print(shard_words(path, settings.shards, KeyedStream.key_name), file=sys.stderr)
    raise SystemExit(0)


def run_partitions(command: str, path: Path, settings: Settings, *, quiet: bool) -> NoReturn:
    """Train the partitions of a topic that a group hands out, and end the process."""
    with StopOnSignal() as stop, friendly(command, None, stop):
        from norewind.runs.partitions import train_partitions
        from norewind.runs.progress import Progress

        with Progress(None, quiet=quiet) as progress:
            train_partitions(settings, path, progress, stop)
            progress.say("Stopped; nothing is lost. To go on: the same command.")
    raise SystemExit(stop.exit_code)


def draw(*paths: Path, out: Path | None = None) -> None:
    """Draw the learning curves of runs in one figure; by default curve.png in the folder of the first."""
    from norewind.instruments.figures import draw_curves
    from norewind.runs.folder import CURVE, METRICS, read_log, settings_of
    from norewind.runs.train import unit_of

    all_settings = [settings_of(path) for path in paths]
    units = {unit_of(settings) for settings in all_settings}
    if len(units) > 1:
        raise SettingsError(f"these runs are measured in {' and '.join(sorted(units))}: draw them separately.")
    curves = [(str(path), read_log(path / METRICS)) for path in paths]
    first = all_settings[0]
    rows = "class frequencies so far" if first.loss == "classes" else "the mean so far"
    trivial = rows if first.kind in ("csv", "jsonl") else "order-0 entropy"
    draw_curves(curves, units.pop(), out or paths[0] / CURVE, trivial)


def draw_rows(path: Path, fitted: "Fitted", opened: "Opened") -> None:
    """Draw the newest rows of a table with their forecasts."""
    from norewind.instruments import row_figures
    from norewind.runs.folder import BY_STEP, METRICS, STRETCH, read_log
    from norewind.runs.row_scores import RowScore, steps_shown
    from norewind.runs.scores import ClassScore
    from norewind.runs.summary import summary

    score = opened.score
    if isinstance(score, RowScore) and len(score.state["recent"]):
        row_figures.draw_stretch(score.state["recent"], score.columns, fitted.samples, path / STRETCH)
        result = summary(read_log(path / METRICS), score.steps)
        if result and result.by_step:
            row_figures.draw_by_step(result.by_step, steps_shown(score.steps), path / BY_STEP)
    if isinstance(score, ClassScore) and score.was_scored:
        row_figures.draw_classes(score.state["stretch"], score.name, fitted.samples, path / STRETCH)


def _last_tenth(lines: list[dict[str, Any]], unit: str, trivial: str, *, fleet: bool) -> str:
    """The loss in the last tenth of a run beside simple ones. (For rows without keys, a table of these follows.)"""
    import numpy as np

    from norewind.runs.metrics import at_the_end

    ends = np.array([line["samples"] for line in lines])

    def mean(entry: str) -> tuple[int, float]:
        return at_the_end(ends, np.array([line.get(entry) for line in lines], float), 0.1)

    newest, loss = mean("loss")
    simple = {trivial: "baseline", **({"last value": "persistence"} if fleet else {})}
    known = [f"{name}: {value:.4f}" for name, entry in simple.items() if (value := mean(entry)[1]) == value]
    words = f", {loss:.4f} {unit} over the last {newest:,}" + (f" ({', '.join(known)})" if known else "")
    return words if loss == loss else ""


def closing_words(path: Path, fitted: "Fitted", opened: "Opened") -> str:
    from norewind.runs.fleet_scores import FleetScore, worst_in
    from norewind.runs.folder import BY_STEP, CURVE, METRICS, STRETCH, read_log
    from norewind.runs.metrics import counted, listed
    from norewind.runs.row_scores import RowScore
    from norewind.runs.scores import ClassScore, LineScore, class_words, top_words
    from norewind.runs.summary import summary, table

    words, fleet = counted(fitted.samples, "sample"), isinstance(opened.score, FleetScore)
    lines = read_log(path / METRICS)
    words += _last_tenth(lines, opened.score.unit, opened.score.trivial, fleet=fleet) if lines else ""
    for reason, count in opened.stream.counts.items():
        words += f", {count:,} {reason} skipped"
    if opened.stream.unfinished:
        words += (
            f". The end is incomplete ({counted(opened.stream.unfinished, 'byte')}), and waits for the file to grow "
            f"(if the file is complete: norewind resume {path} --final)"
        )
    if isinstance(opened.score, FleetScore):
        words += f".\n{worst_in(path, opened.score.name).removesuffix('.')}"
    if isinstance(opened.score, ClassScore):
        stretch = f" and {path / STRETCH}" if opened.score.was_scored else ""
        return f"{words}.\n{class_words(lines)}\nSee {path / CURVE}{stretch}."
    if isinstance(opened.score, RowScore):
        result = summary(lines, opened.score.steps, squared=not opened.score.gaussian)
        compared = f"\n{table(result)}" if result else ""
        figures = [path / CURVE, *([path / STRETCH] if len(opened.score.state["recent"]) else [])]
        figures += [path / BY_STEP] if result and result.by_step else []
        return f"{words}.{compared}\nSee {listed(figures)}."
    top = top_words(opened.score.state) if isinstance(opened.score, LineScore) else ""
    return f"{words}. See {path / CURVE}." + (f"\n{top}" if top else "")
