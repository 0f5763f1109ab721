"""The thread that learns: the training loop of `norewind train`, on the lines that requests bring."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from norewind.run import NonFiniteError
from norewind.runs.fit import Hooks
from norewind.runs.folder import RunFolder, saved_run
from norewind.runs.metrics import Diverged
from norewind.runs.settings import Settings, SettingsError
from norewind.runs.train import train
from norewind.serving.incoming import Incoming
from norewind.serving.rows import rows_so_far

FLUSH = 0.01


class Learning:
    """A run that learns in a thread of its own from lines that are added.

    `accepted`, `learned` and `durable` count samples: those that were taken on, those that
    were learned from, and those in a checkpoint. `problem` says why the run learns no more.

    Args:
        folder: the run folder, which is held until the thread has ended.
        make_model: called with the training before the first line; what it returns is told to `publish()`
            whenever more was learned.
        most: the largest number of lines that wait.
        hooks: called in the learning thread: `metrics`, `lines` and `checkpoint`.
        ended: called there at its end, also if that is a problem.
    """

    def __init__(
        self,
        folder: Path,
        make_model: Callable[[Any], Any],
        most: int,
        hooks: Hooks,
        ended: Callable[[], None] = lambda: None,
    ):
        self.folder, self.settings = folder, _settings(folder)
        self.make_model, self.hooks, self.ended = make_model, hooks, ended
        self.incoming = Incoming(most)
        self.model: Any = None
        self.training: Any = None
        self.accepted = self.learned = self.durable = 0
        self.problem: str | None = None
        self.error: BaseException | None = None
        self._ready, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="learning")

    def start(self) -> None:
        """Begin, and return when the model can answer. What goes wrong before is raised here."""
        self._thread.start()
        self._ready.wait()
        if self.error is not None:
            raise self.error

    def add(self, lines: list[bytes], samples: int, *, hurry: bool = False) -> int | None:
        """Accept lines that bring this many samples, and return the number of the last; None if there are too many."""
        if not self.incoming.add(lines, hurry):
            return None
        self.accepted += samples
        return self.accepted

    def drain(self) -> None:
        """Take no more lines."""
        self.incoming.close()

    def stop(self) -> None:
        """Learn no more, whatever waits."""
        self._stop.set()
        self.incoming.close()

    def join(self, seconds: float | None = None) -> bool:
        """Wait until everything is saved and the folder is free. False if that takes longer."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            with RunFolder(self.folder) as folder:
                hooks = replace(
                    self.hooks,
                    begin=self._begin,
                    lines=self._lines,
                    checkpoint=self._checkpoint,
                    should_stop=self._stop.is_set,
                )
                train(self.settings, folder, continues=True, source=self.incoming, hooks=hooks)
            self.durable = self.learned
        except (Diverged, NonFiniteError) as error:
            words = str(error) if isinstance(error, Diverged) else "a sample gave numbers that are not finite."
            self.problem = f"the run diverged: {words}"
            if self.training is not None:
                self.model.go_back()
        except BaseException as error:
            self.error = error
            self.problem = f"learning ended: {error}"
        finally:
            self.incoming.close()
            self._ready.set()
            self.ended()

    def _begin(self, training: Any) -> None:
        self.training = training
        self.model = self.make_model(training)
        self.accepted = self.learned = self.durable = rows_so_far(training)
        self._ready.set()

    def _lines(self, entries: list[dict[str, Any]]) -> None:
        self.model.publish()
        self.learned = rows_so_far(self.training)
        if self.hooks.lines:
            self.hooks.lines(entries)

    def _checkpoint(self, path: Path) -> None:
        if self.training.is_healthy():
            self.model.keep(samples_in(path))
        self.hooks.checkpoint(path)
        # Not before what belongs to it is written too. Rows that wait for their window are in the checkpoint, but its
        # name does not count them.
        self.durable = max(self.durable, samples_in(path))


def samples_in(path: Path) -> int:
    """The number of samples in the name of a checkpoint."""
    return int(path.name.split("-")[0])


def _settings(folder: Path) -> Settings:
    """The settings of a trained run on rows, for rows that come with requests."""
    settings, _ = saved_run(folder)
    problem = None
    if settings.kind not in ("csv", "jsonl"):
        problem = "predicts symbols, and only runs on rows can be served"
    elif settings.share:
        problem = "has one model for all keys, which learns many rows at a time: a row would be answered far too late"
    if problem:
        raise SettingsError(
            f"{folder} {problem}. Use a topic (docs/kafka.md), or a pipe: norewind train - --flush 1 --predictions "
            f"stdout. Its page: norewind watch {folder}"
        )
    written = "file" if settings.predictions == "file" else "none"
    return replace(settings, samples=None, flush=FLUSH, final=False, bad="fail", predictions=written, tensorboard=False)
