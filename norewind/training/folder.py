"""A run folder: the settings, logs and checkpoints of one run, owned by one process at a time."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, NamedTuple

import filelock
import jax
import msgspec
import numpy as np

from norewind.core.trees import Tree
from norewind.errors import NorewindError
from norewind.scoring.score import Score
from norewind.storage import checkpoint, decoded
from norewind.storage.checkpoint import CheckpointError, DamagedError, checkpoints, samples_of
from norewind.storage.files import make_folder, name_in_errors, open_itself, write_atomically
from norewind.training.checkpoint_schema import check_entries, check_saved_arrays
from norewind.training.log import Log
from norewind.training.settings import CHANGEABLE, SETTINGS, Settings, SettingsError, read_toml, write_toml

CHECKPOINTS = "checkpoints"
CURVE = "curve.png"
# The file that one process holds at a time. Its content marks the folder as a run folder.
LOCK_FILE, MARKER = "lock", b"This folder belongs to a run of norewind.\n"
COLUMNS = "columns.json"
RECENT_FIGURE = "recent.png"
FORECAST = "forecast.png"
BY_STEP = "by_step.png"
# The folder of the run folders of shards.
SHARDS = "shards"

Damaged = Literal["stop", "skip"]
Mode = Literal["new", "resume", "either"]
Say = Callable[[str], None]


class FolderInUse(NorewindError, RuntimeError):
    """Another process is training in this folder."""


class SavedRun(NamedTuple):
    """A checkpoint that was read.

    Attributes:
        path: its file.
        arrays: its arrays, by name.
        entries: the other entries saved with them.
    """

    path: Path
    arrays: dict[str, np.ndarray]
    entries: dict[str, Any]

    def restore(self, like: Tree) -> Tree:
        """Return the run in the checkpoint.

        Args:
            like: a run of the same structure.
        """
        return checkpoint.restore_run(self.path, self.arrays, like)

    def restore_score(self, score: Score) -> None:
        """Continue a score from the state in the checkpoint.

        Args:
            score: a new score of the same stream.

        Raises:
            CheckpointError: the state is not that of such a score.
        """
        state = None
        with suppress(msgspec.ValidationError):
            state = decoded.as_kind(self.entries["score"], type(score.state))
        if state is None or not state.fits(score.state):
            raise CheckpointError(f"{self.path}: its score does not fit this stream. Start a new run.")
        score.state = deepcopy(state)

    def check_settings(self, settings: Settings) -> None:
        """Reject settings other than those the checkpoint was made with.

        Args:
            settings: the settings to continue with.

        Raises:
            SettingsError: they differ in a setting that may not change.
        """
        before, now = self.entries.get("settings", {}), settings.as_json()
        for name in sorted((before.keys() | now.keys()) - CHANGEABLE):
            if before.get(name) != now.get(name):
                differ = f"says {name} = {now.get(name)!r}, but the checkpoint was made with {before.get(name)!r}"
                path = self.path.parent.parent / SETTINGS
                raise SettingsError(f"{path} {differ}. Change it back, or start a new run.")


def read_checkpoint(path: Path) -> SavedRun:
    """Read a checkpoint and check all of it.

    Args:
        path: the file.

    Raises:
        CheckpointError: it is damaged, or of another version.
    """
    saved = SavedRun(path, *checkpoint.read(path))
    check_entries(path, saved.entries)
    check_saved_arrays(path, saved.arrays)
    return saved


def latest_checkpoint(folder: Path, damaged: Damaged = "stop", say: Say = lambda line: None) -> SavedRun | None:
    """Return the latest checkpoint in a run folder; None if there is none.

    Args:
        folder: the run folder.
        damaged: "stop" to raise an error for a damaged checkpoint, "skip" to try the previous one.
        say: called with messages for the user.

    Raises:
        CheckpointError: a checkpoint is damaged, or with "skip" all of them are.
    """
    aside = []
    for path in reversed(checkpoints(folder / CHECKPOINTS)):
        try:
            saved = read_checkpoint(path)
        except DamagedError as error:
            if not os.path.lexists(path):
                # Another process is training the run and has replaced this checkpoint with a newer one.
                return latest_checkpoint(folder, damaged, say)
            if damaged == "stop":
                raise CheckpointError(f"{error} To skip it: norewind resume {folder} --damaged skip") from None
            say(f"{error} Continuing from the previous one.")
            aside.append(path)
        else:
            for other in aside:
                other.rename(other.with_suffix(".damaged"))
            return saved
    if aside:
        raise CheckpointError(f"{folder}: all its checkpoints are damaged. Start a new run in another folder.")
    return None


def last_good_checkpoint(folder: Path) -> Path | None:
    """Return the latest checkpoint that was not written while the loss was above the baseline."""
    for path in reversed(checkpoints(folder / CHECKPOINTS)):
        with suppress(CheckpointError):
            if not read_checkpoint(path).entries["divergence"]["bad"]:
                return path
    return None


def read_settings(folder: Path) -> Settings:
    """Return the settings of a run folder.

    Raises:
        SettingsError: there are none, or they are invalid.
    """
    if not (folder / SETTINGS).exists():
        raise SettingsError(f"{folder} holds no run: there is no {SETTINGS} in it. Start one with norewind train.")
    return read_toml(folder / SETTINGS)


def saved_run(folder: Path) -> tuple[Settings, SavedRun]:
    """Return the settings and the latest checkpoint of a run folder.

    Raises:
        CheckpointError: there is no checkpoint, or it is damaged.
        SettingsError: there are no settings, or they differ from those of the checkpoint.
    """
    saved = latest_checkpoint(folder)
    settings = read_settings(folder)
    if saved is None:
        raise CheckpointError(f"{folder} has no checkpoint yet. Train it first: norewind resume {folder}")
    saved.check_settings(settings)
    return settings, saved


class RunFolder:
    """A run folder, held by this process between `with` and the end of its block.

    Args:
        path: the folder, which is created if needed. A folder with other files in it is rejected.
        keep: the number of checkpoints to keep; fewer if they exceed 100 MB together.
        mode: "new" to reject a folder that already holds a run; "resume" to leave the settings in the folder as they
            are; "either" to save settings only if there is no checkpoint.
        damaged: "stop" to raise an error for a damaged checkpoint, "skip" to use the previous one.
        say: called with messages for the user.

    Attributes:
        saved: the latest checkpoint at the time of entering; None if there was none.
        entries: its entries other than the run.
        is_new: whether the run is new, so that `begin` saves its settings.

    Raises:
        FolderInUse: on entering, if another process holds the folder.
        SettingsError: on entering, if the folder has other files, or holds a run although it must be new.
        CheckpointError: on entering, if the latest checkpoint is damaged.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        keep: int = 3,
        mode: Mode = "either",
        damaged: Damaged = "stop",
        say: Say = lambda line: None,
    ):
        self.path = Path(path)
        self.keep = keep
        self.say = say
        self.damaged: Damaged = damaged
        self.is_new = False
        self._mode = mode
        self.saved: SavedRun | None = None
        self.entries: dict[str, Any] = {}
        self.settings: Settings | None = None
        self._logs: dict[str, Log] = {}
        self._before_checkpoints: list[Callable[[int], None]] = []
        self._saves = False
        self._extra_checkpoint: Path | None = None

    def __enter__(self) -> "RunFolder":
        created = make_folder(self.path)
        with ExitStack() as stack:
            stack.push(lambda error, *_: _remove_unused(created) if error and created and not self._saves else None)
            _check_is_ours(self.path)
            stack.enter_context(lock_folder(self.path))
            if self._mode == "new" and (checkpoints(self.path / CHECKPOINTS) or (self.path / SHARDS).exists()):
                raise SettingsError(
                    f"{self.path} already holds a run: norewind resume {self.path}, or choose another folder."
                )
            self._find_latest()
            self.is_new = self.saved is None and self._mode != "resume"
            before = self.entries.get("jax", jax.__version__)
            if before != jax.__version__:
                versions = f"was trained with JAX {before}, and this is JAX {jax.__version__}"
                self.say(f"{self.path} {versions}: the run continues, but its numbers may differ in rounding.")
            self.writer = checkpoint.Writer(self.path / CHECKPOINTS, self.keep)
            # In reverse order: a checkpoint that is being written needs the logs.
            stack.callback(lambda: [log.close() for log in self._logs.values()])
            stack.callback(self.writer.wait)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error) -> None:
        # Even if waiting for the last checkpoint fails, the logs are closed and the lock is released.
        self._stack.__exit__(*error)

    def continue_from(self, path: Path | None) -> None:
        """Continue from an earlier checkpoint, and remove those that were written after it.

        Args:
            path: the checkpoint; None for the beginning.
        """
        for later in checkpoints(self.path / CHECKPOINTS):
            if later != path and (path is None or samples_of(later) >= samples_of(path)):
                later.unlink()
        self._find_latest()

    def _find_latest(self) -> None:
        self.saved = latest_checkpoint(self.path, self.damaged, self.say)
        self.entries = self.saved.entries if self.saved else {}

    def begin(self, settings: Settings, columns: dict[str, Any] | None = None) -> None:
        """Set the settings to train with. A new run saves them, and the columns of its table.

        Args:
            settings: saved with every checkpoint; `keep` limits the number of checkpoints.
            columns: the columns that the run uses and ignores; None if its stream has no columns.
        """
        self.settings, self.writer.keep = settings, settings.keep
        if self.is_new:
            write_atomically(self.path / SETTINGS, write_toml(settings).encode())
        if self.is_new and columns is not None:
            text = json.dumps(columns, ensure_ascii=False, indent=1) + "\n"
            write_atomically(self.path / COLUMNS, text.encode())

    def log(self, name: str) -> "Log":
        """Return a log, continued at its length in the latest checkpoint.

        Args:
            name: the name of its file.
        """
        if name not in self._logs:
            self._logs[name] = Log(self.path / name, self.entries.get("logs", {}).get(name, 0))
        return self._logs[name]

    def at_end(self, do: Callable[[], None]) -> None:
        """Register a function to call when the folder is left, before it is unlocked.

        Args:
            do: the function.
        """
        self._stack.callback(do)

    def before_checkpoints(self, do: Callable[[int], None]) -> None:
        """Register a function to call with the number of samples before each checkpoint is written.

        Args:
            do: the function.
        """
        self._before_checkpoints.append(do)

    @property
    def oldest(self) -> int:
        """The number of samples of the oldest checkpoint, after waiting for the latest."""
        self.writer.wait()
        paths = checkpoints(self.path / CHECKPOINTS)
        return samples_of(paths[0]) if paths else 0

    def save(
        self,
        samples: int,
        run: Tree,
        entries: dict[str, Any],
        *,
        after: Callable[[Path], None] = lambda path: None,
        replaces: bool = True,
    ) -> None:
        """Write a checkpoint in the background.

        Args:
            samples: the number of samples learned from.
            run: the run, copied before this returns.
            entries: the other entries to save.
            after: called with the path of the checkpoint when it has been written.
            replaces: whether it replaces the oldest checkpoint. Otherwise it is kept in addition, until the next one.
        """
        for do in self._before_checkpoints:
            do(samples)
        self._saves = True
        # A log that is not written in this session may be continued in a later one.
        lengths = {name: log.length for name, log in self._logs.items()}
        entries = {**entries, "logs": self.entries.get("logs", {}) | lengths}
        if self.settings is not None:
            entries["settings"] = self.settings.as_json()

        def finish(path: Path) -> None:
            after(path)
            if self._extra_checkpoint is not None and self._extra_checkpoint != path:
                self._extra_checkpoint.unlink(missing_ok=True)
            self._extra_checkpoint = None if replaces else path

        sync = lambda: [log.sync() for log in self._logs.values()]  # noqa: E731
        self.writer.submit(samples, run, entries, before=sync, after=finish, replaces=replaces)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold a run folder during a block.

    Args:
        folder: the run folder.

    Raises:
        FolderInUse: another process holds it.
    """
    path = folder / LOCK_FILE
    os.close(open_itself(path, os.O_RDWR | os.O_CREAT))
    try:
        lock = filelock.FileLock(path, timeout=0).acquire()
    except filelock.Timeout:
        raise FolderInUse(f"{folder}: another process is training in it. Wait until it ends.") from None
    with lock:
        if path.stat().st_size < len(MARKER):
            with name_in_errors(path), path.open("wb", 0) as file:
                file.write(MARKER)
                os.fsync(file.fileno())
        yield


def _check_is_ours(folder: Path) -> None:
    """Reject a folder with files that are not from a run, since training might overwrite them."""
    lock = folder / LOCK_FILE
    begins = lock.read_bytes()[: len(MARKER)] if lock.is_file() and not lock.is_symlink() else None
    # A process that was killed while it marked the folder has written nothing else.
    unfinished = begins is not None and begins != MARKER and MARKER.startswith(begins)
    names = set(os.listdir(folder)) - ({LOCK_FILE} if unfinished else set())
    if names and begins != MARKER and not checkpoints(folder / CHECKPOINTS):
        raise SettingsError(f"{folder} is not empty, and its files are not from a run. Choose another folder.")


def _remove_unused(created: list[Path]) -> None:
    """Remove folders, innermost first, that were created for a run that failed before it had anything to keep."""
    folder, begun = created[0], (LOCK_FILE, SETTINGS, COLUMNS, CHECKPOINTS)
    with suppress(OSError):
        kept = [path for path in folder.iterdir() if path.name not in begun]
        if any(path.is_dir() or path.stat().st_size for path in kept):
            return
        with suppress(FileNotFoundError):
            (folder / CHECKPOINTS).rmdir()
        for path in (*kept, *(folder / name for name in begun[:-1])):
            path.unlink(missing_ok=True)
        for path in created:
            path.rmdir()
