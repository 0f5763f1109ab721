"""What is kept of a run on disk: its lines of metrics and its checkpoints."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from norewind.checkpoint import Writer, checkpoints, load
from norewind.training.lock import locked
from norewind.training.logs import Log
from norewind.trees import Tree


class Keeper:
    """Keeps a run in a folder that belongs to this process alone meanwhile; without a folder, keeps nothing."""

    def __init__(self, folder: Path | None, keep: int, on_checkpoint: Callable[[Path], None]):
        """Checkpoints are written in the background; `on_checkpoint` gets the path of each."""
        self.folder, self.keep, self.on_checkpoint = folder, keep, on_checkpoint
        self.logs: list[Log] = []
        self.has_checkpoint = False
        self._lengths: dict[str, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "Keeper":
        """Take hold of the folder."""
        if self.folder is not None:
            self._stack.enter_context(locked(self.folder))
            self._writer = Writer(self.folder / "checkpoints", self.keep)
        return self

    def __exit__(self, *error) -> None:
        """Finish the checkpoint that is being written, and let go of the folder."""
        self._stack.__exit__(*error)

    def restore(self, run: Tree, logs: Sequence[Log]) -> tuple[Tree, dict[str, Any]]:
        """The run in the newest checkpoint and what was saved beside it, or the given run; its logs are kept too."""
        if self.folder is None:
            return run, {}
        extra: dict[str, Any] = {}
        found = checkpoints(self.folder / "checkpoints")
        if found:
            run, extra = load(found[-1], run)
        self.has_checkpoint = bool(found)
        self._lengths = extra.get("logs", {})
        self.logs = [Log(self.folder / "metrics.jsonl", self._lengths.get("metrics.jsonl", 0)), *logs]
        for log in self.logs:
            self._stack.callback(log.close)
        # Called before the logs are closed: the checkpoint that is being written needs them.
        self._stack.callback(self._writer.wait)
        return run, extra

    def write(self, line: dict[str, Any]) -> None:
        """Append a line of metrics."""
        for log in self.logs[:1]:
            log.write([line])

    def save(self, samples: int, run: Tree, entries: dict[str, Any]) -> None:
        """Write a checkpoint. The lines that it counts must be on disk before it is."""
        if self.folder is None:
            return
        self.has_checkpoint = True
        # A log that is not written this time may be continued another time.
        self._lengths = {**self._lengths, **{log.path.name: log.length for log in self.logs}}
        entries = {**entries, "logs": self._lengths}
        self._writer.submit(samples, run, entries, before=self._sync, after=self.on_checkpoint)

    def wait(self) -> None:
        """Until everything is on disk."""
        if self.folder is not None:
            self._writer.wait()

    def _sync(self) -> None:
        for log in self.logs:
            log.sync()
