"""Processes that tools/storm.py kills, with their children."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tools import storm_child

PATIENCE = 120.0
"""So long may the workers of a run take to notice that their parent was killed."""
EVERYTHING, PARENT, WORKER = "everything", "the parent", "a worker"


class Started:
    """A process, fresh or forked, that can be waited for and killed together with its children.

    Args:
        arguments: the arguments of `storm_child.main`.
        forked: fork it from a process that has imported everything.

    Attributes:
        over: set once the process has ended.
    """

    def __init__(self, arguments: tuple[str, str, list[str]], forked: bool):
        self.forked: Any = None
        self.over = threading.Event()
        self.began = time.monotonic()
        if forked:
            self.forked = multiprocessing.get_context("forkserver").Process(target=storm_child.main, args=arguments)
            self.forked.start()
        else:
            place, feed, rest = arguments
            command = [sys.executable, "-m", "tools.storm_child", place, feed, *rest]
            self.fresh = subprocess.Popen(command)
        self.pid: int = (self.forked or self.fresh).pid

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for the process to end.

        Args:
            seconds: the longest time to wait; None for no limit.

        Returns:
            The exit code, negative for a signal; None if the process is still running.
        """
        code = None
        if self.forked:
            self.forked.join(seconds)
            code = self.forked.exitcode
        else:
            with suppress(subprocess.TimeoutExpired):
                code = self.fresh.wait(seconds)
        if code is not None:
            self.over.set()
        return code

    def kill(self, whom: str, chance: random.Random) -> bool:
        """Kill the process, and return whether it was still running.

        Args:
            whom: `EVERYTHING` with its children; `PARENT` without them; `WORKER` for one child, and everything later.
            chance: the source of random numbers.
        """
        if whom == WORKER and (children := self.members() - {self.pid}):
            with suppress(ProcessLookupError):
                os.kill(chance.choice(sorted(children)), signal.SIGKILL)
            self.wait(chance.uniform(0, 3))
        if whom != PARENT:
            self.kill_group()
        (self.forked or self.fresh).kill()
        return self.wait() == -signal.SIGKILL

    def kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def outlived(self) -> bool:
        """Wait for the children of an ended process, and return whether some had to be killed."""
        deadline = time.monotonic() + PATIENCE
        while self.members():
            if time.monotonic() > deadline:
                self.kill_group()
                return True
            time.sleep(0.05)
        return False

    def members(self) -> set[int]:
        """Return the running processes of the group that this process leads."""
        found = set()
        for status in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, _, group = status.read_text().rpartition(")")[2].split()[:3]
                if int(group) == self.pid and state != "Z":
                    found.add(int(status.parts[2]))
        return found
