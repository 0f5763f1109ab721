"""`norewind check`: verify a whole run folder, without changing it, and say what is wrong and what can be saved."""

import json
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from tyro.conf import Positional

from norewind.cli.common import BAD_INPUT, as_options, explain_errors
from norewind.errors import NorewindError
from norewind.training.settings import SETTINGS, Settings, SettingsError

if TYPE_CHECKING:
    from norewind.training.folder import SavedRun

NO_RESUME = "The run cannot be continued"


class Problem(NamedTuple):
    """Something that is wrong in a run folder.

    Attributes:
        problem: what is wrong, and with which file.
        remedy: what to do, or what can be saved.
    """

    problem: str
    remedy: str = ""


def check(run: Annotated[Path, Positional]) -> None:
    """Verify a whole run folder: that nothing in it is damaged, and that its latest checkpoint resumes.

    Checks the settings, the checksums of all checkpoints, the logs against the latest
    checkpoint, the keys of a fleet, rows that wait for their labels, and all shards or
    partitions; then restores the run as `resume` does, and, if the source is a file that is
    still there, compares it with what the run has read. Nothing is changed. The exit code is
    1 if something is wrong; every problem is printed with what can be saved.

    Args:
        run: The run folder.
    """
    with explain_errors("norewind check"):
        failed = False
        for folder in _folders(run):
            found = list(problems(folder))
            failed = failed or bool(found)
            for problem, remedy in found:
                print(as_options(f"{problem} {remedy}".strip()))
            if not found:
                print(f"{folder}: {_describe(folder)}")
    if failed:
        raise SystemExit(BAD_INPUT)


def _folders(run: Path) -> list[Path]:
    """Return the folders to check: the run, and its shards or partitions.

    Raises:
        SettingsError: this is not a run folder.
    """
    from norewind.training.folder import CHECKPOINTS, LOCK_FILE, SHARDS

    partitions = sorted(run.glob("partition-*/"))
    signs = (SETTINGS, CHECKPOINTS, LOCK_FILE, SHARDS)
    if not partitions and not any((run / name).exists() for name in signs):
        raise SettingsError(f"{run} is not a run folder.")
    return partitions or [run, *sorted((run / SHARDS).glob("*/"))]


def problems(folder: Path) -> Iterator[Problem]:
    """Yield everything that is wrong in a run folder, except in its shards.

    Args:
        folder: the run folder.

    Raises:
        FolderInUse: another process is training in it.
    """
    from norewind.sweeps.shards import shard_folders
    from norewind.training.folder import CHECKPOINTS, read_settings

    settings = None
    yield from _lock_problems(folder)
    try:
        settings = read_settings(folder)
    except NorewindError as error:
        yield Problem(str(error), _saved_settings(folder))
    if settings is not None and settings.shards > 1 and settings.shard is None:
        missing = [path for path in shard_folders(folder, settings.shards) if not path.is_dir()]
        for path in missing:
            yield Problem(f"{path}: the shard is missing.", "resume starts it over. The other shards are not affected.")
        return
    checkpoints: list[SavedRun] = []
    yield from _checkpoint_problems(folder, checkpoints)
    if not checkpoints:
        if not list((folder / CHECKPOINTS).glob("*.safetensors")):
            yield Problem(f"{folder} has no checkpoint.", "resume starts from the beginning.")
        return
    latest = checkpoints[-1]
    yield from _log_problems(folder, checkpoints)
    yield from _json_problems(folder, settings)
    yield from _waiting_problems(folder)
    # Without samples, there is nothing to restore: resume starts from the beginning.
    if settings is not None and latest.entries["samples"]:
        yield from _resume_problems(folder, settings, latest)


def _saved_settings(folder: Path) -> str:
    """Return where the settings of a run can be found if their file is damaged."""
    from norewind.training.folder import latest_checkpoint
    from norewind.training.settings import write_toml

    with suppress(NorewindError, TypeError):
        saved = latest_checkpoint(folder, "stop")
        if saved and saved.entries["settings"]:
            return (
                f"{saved.path} has the settings. Write them to it:\n{write_toml(Settings(**saved.entries['settings']))}"
            )
    return ""


def _lock_problems(folder: Path) -> Iterator[Problem]:
    from norewind.training.folder import LOCK_FILE, MARKER, lock_folder

    path = folder / LOCK_FILE
    if not path.is_file():
        yield Problem(f"{path}: missing.", "resume writes it again.")
        return
    # An empty one was being written when the process ended.
    if path.read_bytes() not in (MARKER, b""):
        yield Problem(f"{path}: it is not the file that norewind wrote.", "Remove it: resume writes it again.")
        return
    with suppress(PermissionError), lock_folder(folder):
        pass


def _checkpoint_problems(folder: Path, good: list["SavedRun"]) -> Iterator[Problem]:
    """Yield the damaged checkpoints, and add the others to a list, oldest first."""
    from norewind.storage.checkpoint import CheckpointError, checkpoints
    from norewind.training.folder import CHECKPOINTS, read_checkpoint

    damaged = []
    paths = checkpoints(folder / CHECKPOINTS)
    for path in paths:
        try:
            good.append(read_checkpoint(path))
        except (CheckpointError, OSError) as error:
            damaged.append((path, str(error)))
    for path, problem in damaged:
        if not good:
            remedy = f"{NO_RESUME}: no checkpoint is left."
        elif path > good[-1].path:
            before = good[-1]
            remedy = f'resume can continue from {before.entries["samples"]} samples (damaged="skip").'
        else:
            remedy = "A newer one is good, so nothing is lost."
        yield Problem(problem, remedy)
    known = {*paths, *(folder / CHECKPOINTS).glob(".*.part"), *(folder / CHECKPOINTS).glob("*.damaged")}
    for path in sorted(set((folder / CHECKPOINTS).glob("*")) - known):
        yield Problem(f"{path}: not the name of a checkpoint.", "It is ignored. If it was renamed, rename it back.")


def _log_problems(folder: Path, checkpoints: list["SavedRun"]) -> Iterator[Problem]:
    """Yield what is wrong with the lines that the latest checkpoint counts."""
    latest = checkpoints[-1]
    for name in latest.entries["logs"]:
        problem = _log_problem(folder / name, latest)
        if problem is None:
            continue
        earlier = [saved for saved in checkpoints[:-1] if _log_fits(folder, saved)]
        remedy = "Restore it from a copy. The model itself can still be used (forecast, predict, sample)."
        if earlier:
            at = earlier[-1].entries["samples"]
            remedy += f" The checkpoint of {at} samples fits it: remove the later ones to continue from there."
        yield Problem(problem, remedy)


def _log_fits(folder: Path, saved: "SavedRun") -> bool:
    return all(_log_problem(folder / name, saved) is None for name in saved.entries["logs"])


def _log_problem(path: Path, saved: "SavedRun") -> str | None:
    """Return what is wrong with the lines of a log that a checkpoint counts; None if nothing is."""
    from norewind.training.log import as_entry

    length = saved.entries["logs"][path.name]
    size = path.stat().st_size if path.is_file() else 0
    if size < length:
        return f"{path} has only {size} of the {length} bytes it had at the checkpoint."
    if not length:
        return None
    limit = saved.entries["samples"] + saved.entries["predicted_early"]
    number = done = before = 0
    with path.open("rb") as file:
        while done < length:
            line = file.readline(length - done)
            done, number = done + len(line), number + 1
            entry = as_entry(line) or {}
            # Metrics have the number of samples, predictions that of their sample or, with per="line", of their line.
            name = next((name for name in ("samples", "sample", "line") if type(entry.get(name)) is int), None)
            if (
                not line.endswith(b"\n")
                or name is None
                or entry[name] < before
                or (name != "line" and entry[name] > limit)
            ):
                return f"{path}, line {number}: not a line that norewind wrote before this checkpoint."
            before = entry[name]
    return None


def _json_problems(folder: Path, settings: Settings | None) -> Iterator[Problem]:
    """Yield the files next to the checkpoints that are damaged, but not needed to continue."""
    from norewind.forecasting.base_model import MODEL_FILE
    from norewind.training.folder import COLUMNS

    uses = {
        COLUMNS: "Only readers of this file need it.",
        MODEL_FILE: "norewind.load needs it; without it, it guesses.",
    }
    for name, use in uses.items():
        path = folder / name
        try:
            is_object = isinstance(json.loads(path.read_bytes()), dict)
        except FileNotFoundError:
            is_object = name == MODEL_FILE or settings is None or not settings.has_rows
        except (ValueError, OSError, RecursionError):
            is_object = False
        if not is_object:
            yield Problem(f"{path}: missing or damaged.", use)


def _waiting_problems(folder: Path) -> Iterator[Problem]:
    """Yield whether the rows that wait for their labels are damaged."""
    if not (folder / "waiting.json").exists():
        return
    with suppress(ImportError):  # the packages of the service, without which nobody needs the file
        from norewind.serving.late_labels import WAITING_FILE, read_waiting

        try:
            read_waiting(folder / WAITING_FILE)
        except NorewindError as error:
            yield Problem(str(error), "The run itself is not affected.")


def _resume_problems(folder: Path, settings: Settings, latest: "SavedRun") -> Iterator[Problem]:
    """Yield why the run cannot be continued from its latest good checkpoint."""
    from norewind.forecasting.predict import open_at_end, restored_training
    from norewind.training.open_stream import open_stream

    # A fleet is built without memory for its keys.
    small = settings if settings.key is None else replace(settings, resident=1)
    try:
        latest.check_settings(settings)
        opened = open_at_end(small, latest)
        with opened.stream:
            training = restored_training(small, latest, opened)
    except (NorewindError, ValueError) as error:
        yield Problem(str(error), f"{NO_RESUME} until this is repaired.")
        return
    if settings.key is not None:
        yield from _key_problems(folder, training.learner, latest.entries["samples"])
    if settings.kind != "task" and Path(settings.source).is_file():
        try:
            open_stream(settings, latest.entries["position"]["stream"]).stream.close()
        except NorewindError as error:
            yield Problem(
                str(error), "Restore the source, or name its new place (source=). The model can still be used."
            )


def _key_problems(folder: Path, fleet: object, samples: int) -> Iterator[Problem]:
    from norewind.fleets.fleet import Fleet
    from norewind.fleets.store import KEYS, KeyStore

    assert isinstance(fleet, Fleet)
    try:
        with closing(KeyStore(folder, fleet.slots.layout, write=False)) as store:
            names, damaged = store.verify(samples)
            for problem in damaged:
                yield Problem(
                    problem, "The other keys can still be forecast. To continue, restore the file from a copy."
                )
        if damaged:
            return
        with closing(fleet.records(folder)) as records:
            rows = sum(int(records.read([name], samples)[0]["seen"]) for name in names)
        if rows != samples:
            yield Problem(
                f"{folder / KEYS}: its keys have seen {rows} rows, but the checkpoint has {samples} samples.",
                f"{NO_RESUME} as it was: restore the file from a copy.",
            )
    except NorewindError as error:
        yield Problem(str(error), NO_RESUME + ": restore the file from a copy.")


def _describe(folder: Path) -> str:
    """Describe a folder without problems."""
    from norewind.storage.checkpoint import checkpoints, samples_of
    from norewind.training.folder import CHECKPOINTS

    paths = checkpoints(folder / CHECKPOINTS)
    if not paths:
        return "all shards are there."
    word = "checkpoint" if len(paths) == 1 else "checkpoints"
    return f"nothing is wrong. {len(paths)} {word}, the latest after {samples_of(paths[-1]):,} samples."
