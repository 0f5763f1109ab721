"""The thread that learns: the training loop of `norewind train`, on the rows that requests bring."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from norewind.run import NonFiniteError
from norewind.runs.fit import Hooks
from norewind.runs.folder import RunFolder, saved_run
from norewind.runs.metrics import Diverged
from norewind.runs.settings import Settings, SettingsError
from norewind.runs.train import train
from norewind.serving.keyed import model_of
from norewind.serving.rows import rows_so_far
from norewind.streams.given import Given
from norewind.streams.position import Mark

FLUSH = 0.01
# How long the learning thread sleeps at most while nothing comes (in seconds).
IDLE = 0.5
# How long the first row waits for others, so that they are learned from together (in seconds).
GATHER = 0.02
# The most rows that are learned from in one go: short enough to let predictions through.
BATCH = 256


class Incoming(Given):
    """A source to which one thread adds rows, which another reads.

    Rows that come within a moment are read together, unless somebody waits for the answer. Each has
    the line that it would be in a file, so that positions are those of a file with the same rows.
    """

    name = "the service"

    def __init__(self, most: int):
        super().__init__(lasts=True)
        self.most, self._queue, self._lines = most, deque(), deque()
        self._new, self._hurry, self._idle = threading.Condition(), False, False

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, rows: list[tuple[dict[str, Any], bytes]], hurry: bool = False) -> bool:
        """Add rows with their lines, all or none: none if there would be too many, or if the source is closed."""
        with self._new:
            if self.closed or len(self._queue) + len(rows) > self.most:
                return False
            self._queue.extend(rows)
            self._hurry = self._hurry or hurry
            self._new.notify()
        return True

    def close(self) -> None:
        """Accept no more rows. Those that are there are still read."""
        with self._new:
            self.closed = True
            self._new.notify()

    def go_to(self, place: Mark) -> None:
        """The rows follow on what the run has read. If that ended inside a line, the line ends now."""
        if place.inside:
            self.progress.read(b"\n")

    def fragments(self, patience: float | None) -> Iterator[bytes]:
        """Wait for rows, unless some that were read before are still ahead."""
        if self._waiting:
            return iter(())
        with self._new:
            # Not long at first: rows that were read before may still wait for a place in a batch.
            self._new.wait_for(lambda: self._queue or self.closed, IDLE if self._idle else GATHER)
            if self._queue:
                self._new.wait_for(lambda: len(self._queue) >= BATCH or self.closed or self._hurry, GATHER)
            some = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            self._hurry = self._hurry and bool(self._queue)
            self._lasts = not self.closed or bool(self._queue)
        self._idle = not some
        for row, line in some:
            self.put(row)
            self._lines.append(line)
        return iter(())

    def move(self, size: int) -> None:
        for _ in range(size):
            self.discard()
        self.progress.read(b"".join([self._lines.popleft() for _ in range(size)]))


class Learning:
    """A run that learns in a thread of its own from rows that are added.

    `accepted`, `learned` and `durable` count samples: those that were accepted, those that
    were learned from, and those in a checkpoint. `problem` says why the run learns no more. `model` answers rows.

    Args:
        folder: the run folder, which is held until the thread has ended.
        most: the largest number of rows that wait.
        hooks: called in the learning thread: `metrics`, `lines` and `checkpoint`.
        ended: called there at its end, also if that is a problem.
    """

    model: Any
    training: Any = None

    def __init__(self, folder: Path, most: int, hooks: Hooks, ended: Callable[[], None] = lambda: None):
        self.folder, self.settings, self.hooks, self.ended = folder, _settings(folder), hooks, ended
        self.incoming: Any = Incoming(most)
        self.accepted = self.learned = self.durable = 0
        self.problem: str | None = None
        self.error: BaseException | None = None
        self._ready, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="learning")

    def start(self) -> None:
        """Start, and return when the model can answer. Errors before that are raised here."""
        self._thread.start()
        self._ready.wait()
        if self.error is not None:
            raise self.error

    def add(self, rows: list[tuple[dict[str, Any], bytes]], *, hurry: bool = False) -> int | None:
        """Accept rows with their lines, and return the number of the last; None if there are too many."""
        if not self.incoming.add(rows, hurry):
            return None
        self.accepted += len(rows)
        return self.accepted

    def stop(self, *, drain: bool = False) -> None:
        """Accept no more rows, and learn no more; with `drain`, not before all that wait were learned from."""
        if not drain:
            self._stop.set()
        self.incoming.close()

    def join(self, seconds: float | None = None) -> bool:
        """Wait until everything is saved and the folder is free. False if that takes longer."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        calls = {"begin": self._begin, "lines": self._lines, "checkpoint": self._checkpoint}
        hooks = replace(self.hooks, **calls, should_stop=self._stop.is_set)
        try:
            with RunFolder(self.folder) as folder:
                train(self.settings, folder, continues=True, source=self.incoming, hooks=hooks)
            self.durable = self.learned
        except (Diverged, NonFiniteError) as error:
            words = str(error) if isinstance(error, Diverged) else "a sample gave numbers that are not finite."
            self.problem = f"the run diverged: {words}"
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
        self.model = model_of(training)
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
