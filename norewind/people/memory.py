"""What `fit` needs of a run folder, without a folder: one checkpoint, in memory."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from norewind.runs.folder import RunFolder


class Memory(RunFolder):
    """Holds a run with its entries, or none, and afterwards what was saved (`kept`) and the lines up to there."""

    def __init__(self, run: Any, entries: dict[str, Any]):
        self.entries, self.kept, self.lines, self._written = entries, None, [], []
        self.saved: Any = SimpleNamespace(path=Path("memory"), restore=lambda like: run) if entries else None
        self.writer: Any = SimpleNamespace(wait=lambda: None)

    def log(self, name: str) -> Any:
        return SimpleNamespace(write=self._written.extend)

    def save(self, samples: int, run: Any, entries: dict[str, Any], after: Any, *, replaces: bool = True) -> None:
        self.kept, self.lines = (run, entries), list(self._written)
