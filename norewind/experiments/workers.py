"""Many runs side by side: one process each, one core each, finished ones kept."""

import multiprocessing
import os
import queue
import shutil
import signal
import traceback
from collections.abc import Sequence
from pathlib import Path

from norewind.experiments.progress import Progress
from norewind.experiments.records import load, save
from norewind.experiments.settings import TextSetting


def record_path(out: Path, setting: TextSetting) -> Path:
    """Where the record of a run is kept."""
    return out / "runs" / f"{setting.slug}.json"


def finished(out: Path, setting: TextSetting) -> bool:
    """Whether the record of exactly this setting is there."""
    record = load(record_path(out, setting))
    return record is not None and TextSetting.from_json(record["setting"]) == setting


def cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def run_all(settings: Sequence[TextSetting], out: Path, progress: Progress, jobs: int | None = None) -> None:
    """Make the records of all settings that have none yet, `jobs` at a time (by default one per core).

    On an interrupt every unfinished run writes a checkpoint, from which a second call goes on.
    """
    waiting = []
    for setting in settings:
        if finished(out, setting):
            progress.already_there(setting.slug)
        else:
            waiting.append(setting)
    # A fresh interpreter for each run: precision and thread settings are per process,
    # and on cores that share nothing two processes beat any batching of small models.
    context = multiprocessing.get_context("spawn")
    messages, stop = context.Queue(), context.Event()
    free = (cores() * (jobs or len(cores())))[: jobs or len(cores())]
    active: dict[str, tuple] = {}
    failed = []
    try:
        while waiting or active:
            while waiting and free:
                setting, core = waiting.pop(0), free.pop(0)
                process = context.Process(target=_work, args=(setting, out, core, messages, stop), daemon=True)
                process.start()
                active[setting.slug] = (process, core)
                progress.begin(setting.slug, setting.characters)
            slug, kind, *values = _next_message(messages, active)
            if kind == "chunk":
                progress.advance(slug, *values)
            elif kind != "nothing":
                process, core = active.pop(slug)
                process.join()
                free.append(core)
                if kind == "done":
                    progress.end(slug, *values)
                else:
                    failed.append(f"{slug} failed: {values[0]}")
                    progress.fail(slug)
    finally:
        stop.set()
        for process, _ in active.values():
            process.join(timeout=60)
    if failed:
        raise RuntimeError("\n".join(failed))


def _next_message(messages, active: dict[str, tuple]) -> tuple:
    """What a process has to say: (run, kind, values...). One that was killed says nothing, so we say it."""
    try:
        return messages.get(timeout=1)
    except queue.Empty:
        gone = [slug for slug, (process, _) in active.items() if not process.is_alive()]
        if gone and messages.empty():
            return gone[0], "failed", "its process ended without a word"
        return "", "nothing"


def _work(setting: TextSetting, out: Path, core: int, messages, stop) -> None:
    """What one process does: one run, from its checkpoint if there is one to its record."""
    # An interrupt from the keyboard reaches all processes; only the first one decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    import jax

    from norewind.experiments.train import Interrupted, train

    jax.config.update("jax_enable_x64", setting.precision == "double")
    checkpoint = out / "checkpoints" / setting.slug
    try:
        record = train(
            setting,
            checkpoint=checkpoint,
            report=lambda characters, bpc: messages.put((setting.slug, "chunk", characters, bpc)),
            should_stop=lambda: stop.is_set() or os.getppid() != parent,
        )
    except Interrupted:
        return
    except Exception:
        messages.put((setting.slug, "failed", traceback.format_exc()))
        return
    save(record_path(out, setting), record)
    shutil.rmtree(checkpoint, ignore_errors=True)
    messages.put((setting.slug, "done", record["recent"], record["diverged_at"]))
