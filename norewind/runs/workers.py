"""Runs side by side, each in its own process: on this machine, or in a Ray cluster."""

import importlib.util
import json
import logging
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

from norewind.runs.progress import Progress
from norewind.runs.settings import SettingsError

SECONDS_BETWEEN_LOOKS = 0.5
MOST = 1_000
"""Processes at a time."""
RESTARTS = 3
"""How many times a run whose process was killed is continued in another process."""

Task = tuple[Any, Path, Path]
"""The settings of a run, which say how many `samples` it has; the folder of all; and the run folder."""


class SweepError(RuntimeError):
    """Some runs of a sweep failed. The message says which, and why."""


class Active(NamedTuple):
    """A run under way, and what ends its process."""

    name: str
    end: Callable[[], None]


class Workers:
    """Runs under way. One that is killed does not take others with it, and goes on elsewhere.

    Args:
        work: called in a process of its own with the name of a run and its task; returns how it ended.
        progress: shows how far the runs are.
        jobs: how many at a time; by default one per core.
        ray: the address of a Ray cluster, or "auto"; None for processes on this machine.
    """

    def __init__(self, work: Callable[..., str], progress: Progress, jobs: int | None = None, ray: str | None = None):
        self.work, self.progress = work, progress
        if jobs is not None and not 1 <= jobs <= MOST:
            raise SettingsError(f"--jobs must be from 1 to {MOST}, but it is {jobs}.")
        self.place: Any = _Machine(jobs) if ray is None else _Ray(jobs, ray)
        self.active: dict[Future, Active] = {}

    def run(self, tasks: Mapping[str, Task]) -> None:
        waiting, failed, restarts = list(tasks), [], dict.fromkeys(tasks, RESTARTS)
        try:
            while waiting or self.active:
                while waiting and self.place.has_room():
                    self._start(waiting.pop(0), tasks)
                done, _ = wait(self.active, timeout=SECONDS_BETWEEN_LOOKS, return_when=FIRST_COMPLETED)
                self._look(tasks)
                for future in done:
                    name, problem, again = self._finish(future, restarts)
                    if again:
                        restarts[name] -= 1
                        waiting.append(name)
                    elif problem:
                        failed.append(f"{name}: {problem}")
        finally:
            self.place.stop()
            for active in self.active.values():
                active.end()
            self.place.close()
        if failed:
            raise SweepError("\n".join(failed))

    def _start(self, name: str, tasks: Mapping[str, Task]) -> None:
        future, end = self.place.start(self.work, name, *tasks[name])
        self.active[future] = Active(name, end)
        samples = tasks[name][0].samples
        self.progress.begin(name, "", 0, None if samples is None else int(samples))

    def _look(self, tasks: Mapping[str, Task]) -> None:
        """Show how far each run is, by its newest line of metrics."""
        for name, _ in self.active.values():
            line = _last_line(tasks[name][2] / "metrics.jsonl")
            if line and line["samples"] > self.progress.lines[name].samples and line["loss"] is not None:
                self.progress.advance(name, line["samples"], line["loss"])

    def _finish(self, future: Future, restarts: dict[str, int]) -> tuple[str, str | None, bool]:
        """The name of a run whose process has ended, what went wrong, and whether to continue it in another."""
        name, end = self.active.pop(future)
        end()
        try:
            ended = future.result()
        except Exception as error:
            again = self.place.was_killed(error) and restarts[name] > 0
            words = "its process was killed: continuing from its last checkpoint, if it has one" if again else "failed"
            self.progress.end(name, words, over=not again)
            cause = self.place.cause(error)
            return name, f"{type(cause).__name__}: {cause}", again
        self.progress.end(name, ended)
        return name, None, False


class _Machine:
    """Processes on this machine, one core each. Each has a pool of its own, which a killed one breaks."""

    def __init__(self, jobs: int | None):
        # Fresh interpreters: JAX does not survive a fork, and precision is set per process.
        self.context = multiprocessing.get_context("spawn")
        self.event = self.context.Event()
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]
        self.free = (cores * (jobs or len(cores)))[: jobs or len(cores)]

    def has_room(self) -> bool:
        return bool(self.free)

    def start(self, work: Callable, *arguments: Any) -> tuple[Future, Callable[[], None]]:
        core = self.free.pop(0)
        pool = ProcessPoolExecutor(1, self.context, initializer=_begin, initargs=(core, self.event))

        def end() -> None:
            pool.shutdown()
            self.free.append(core)

        return pool.submit(work, *arguments), end

    def was_killed(self, error: Exception) -> bool:
        return isinstance(error, BrokenProcessPool)

    def cause(self, error: Exception) -> Exception:
        return error

    def stop(self) -> None:
        self.event.set()

    def close(self) -> None:
        pass


class _Ray:
    """Processes of a Ray cluster, one processor each, wherever there is one. All machines must see the same folders."""

    def __init__(self, jobs: int | None, address: str):
        found = importlib.util.find_spec("ray")
        if found is None or found.origin is None:  # a folder that happens to have this name is not the package
            raise SettingsError(
                "ray: the package ray is not installed: pip install 'norewind[ray]', or leave out --ray."
            )
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # A worker sees the processors that it may use, and no other device.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray  # pyright: ignore[reportMissingImports] (an extra)

        self.ray, self.refs = ray, []
        self.owns = not ray.is_initialized()
        if self.owns:
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except ConnectionError:
                if address != "auto":
                    raise SettingsError(f"ray: no cluster answers at {address}.") from None
                _start_ray(jobs)
        self.jobs = jobs or max(1, int(ray.cluster_resources().get("CPU", 1)))

    def has_room(self) -> bool:
        return len(self.refs) < self.jobs

    def start(self, work: Callable, *arguments: Any) -> tuple[Future, Callable[[], None]]:
        # A killed run is started again by us, so that it is counted and said.
        ref = self.ray.remote(num_cpus=1, max_retries=0)(work).remote(*arguments)
        self.refs.append(ref)
        return ref.future(), lambda: self.refs.remove(ref)

    def was_killed(self, error: Exception) -> bool:
        lost = (self.ray.exceptions.WorkerCrashedError, self.ray.exceptions.NodeDiedError)
        return isinstance(error, lost)

    def cause(self, error: Any) -> Exception:
        """What went wrong in the worker, without Ray's traceback."""
        return error.cause if isinstance(error, self.ray.exceptions.RayTaskError) else error

    def stop(self) -> None:
        """End the runs under way. They can be continued from their checkpoints."""
        for ref in list(self.refs):
            self.ray.cancel(ref, force=True)

    def close(self) -> None:
        if self.owns:
            self.ray.shutdown()


def _start_ray(jobs: int | None) -> None:
    """Start a cluster on this machine, which ends with this process. Like every cluster, it listens on the network."""
    import ray  # pyright: ignore[reportMissingImports] (an extra)

    with warnings.catch_warnings():
        # Ray's processes begin as forks of this one, and JAX warns. They are other programs at once.
        warnings.filterwarnings("ignore", r"os\.fork\(\)", RuntimeWarning)
        try:
            ray.init(num_cpus=jobs, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray has no narrower one
            reason = str(error).partition("\n")[0]
            raise SettingsError(f"ray: no cluster could be started on this machine: {reason}") from None


_event: Any = None


def _begin(core: int, event: Any) -> None:
    global _event
    _event = event
    # Ctrl-C reaches all processes; the first one decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def stopping() -> Callable[[], bool]:
    """In a process of its own: whether to stop, which is also so when the process that started it is gone."""
    parent = os.getppid()
    return lambda: (_event is not None and _event.is_set()) or os.getppid() != parent


def _last_line(path: Path) -> dict[str, Any] | None:
    """The last complete line of a log that is being written."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 10_000))
            lines = file.read().split(b"\n")
        return json.loads(lines[-2]) if len(lines) > 1 else None
    except (OSError, ValueError):
        return None
