"""Files of a live run: those it learns from, and the folder it is saved in."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from norewind.runs.folder import COLUMNS, METRICS, RunFolder
from norewind.runs.settings import SETTINGS, Settings, SettingsError
from norewind.runs.train import columns_of
from norewind.streams import afresh


def file_settings(live: Any, path: str) -> tuple[Settings, dict[str, Any]]:
    """The settings and the position to read a file with."""
    settings = replace(live.settings, source=path, format="auto", final=True).settled()
    if settings.kind not in ("csv", "jsonl"):
        raise SettingsError(f"{path}: give a file that ends in .csv, .jsonl or .ndjson, or rows.")
    if live.opened is None:
        return settings, live.position
    if settings.kind != live.settings.kind:
        raise SettingsError(
            f"{path}: the model has learned from {live.settings.kind}, and this is {settings.kind}. "
            "Read it into a data frame, and give that."
        )
    return settings, {"stream": afresh(live.position["stream"]), "left": live.position["left"]}


def save(live: Any, path: Path) -> None:
    """Write the run as a folder that the command line can go on with."""
    if not live.open():
        raise SettingsError("there is nothing to save yet: fit the model, or let it learn some rows.")
    live.settle()
    assert live.opened is not None
    is_home = path.resolve() == live.home
    with RunFolder(path, keep=live.settings.keep, new=not is_home) as folder:
        if (path / SETTINGS).exists() and not is_home:
            raise SettingsError(f"{path} already holds a run. Choose another folder.")
        if folder.entries.get("samples", 0) > live.samples:
            raise SettingsError(f"{path} holds a later state of this run. Load it, or choose another folder.")
        folder.begin(live.settings)
        folder.note(COLUMNS, columns_of(live.opened.stream))
        log = folder.log(METRICS)
        log.write(live.lines[live.logged if is_home else 0 :])
        entries = live.entries(live.opened, live.position)
        folder.save(live.samples, live.run, entries, lambda path: None)
        folder.writer.wait()
        if closing := live.closing():
            log.write([closing])
    live.home, live.logged = path.resolve(), len(live.lines)
