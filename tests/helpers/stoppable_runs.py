"""Two runs in processes that work until they are stopped, and then save; `python stoppable_runs.py FOLDER`."""

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from norewind.cli.common import until_stopped
from norewind.sweeps.workers import stop_check, train_in_processes
from norewind.training.progress import Progress


def work(name, settings, folder):
    should_stop = stop_check()
    (folder / "pid").write_text(str(os.getpid()))
    while not should_stop():
        time.sleep(0.05)
    time.sleep(0.5)
    (folder / "saved").write_text("")
    return "interrupted"


if __name__ == "__main__":
    folders = {name: Path(sys.argv[1]) / name for name in ("one", "two")}
    for folder in folders.values():
        folder.mkdir()
    tasks = {name: (SimpleNamespace(samples=None), folder) for name, folder in folders.items()}
    with until_stopped("train") as stop, Progress(2, quiet=True) as progress:
        train_in_processes(work, tasks, progress, jobs=2, stop=stop)
