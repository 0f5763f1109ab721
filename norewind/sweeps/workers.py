"""Train runs at the same time, each in its own process: on this machine, or in a Ray cluster."""

import importlib.util
import logging
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from norewind.errors import NorewindError
from norewind.training.log import METRICS, LogTail
from norewind.training.progress import Progress
from norewind.training.settings import SettingsError
from norewind.wording import missing_package

POLL_SECONDS = 0.5
# The maximum number of processes at a time.
MAX_JOBS = 1_000
# How often a run whose process was killed is continued in another one.
RESTARTS = 3

# The arguments of `work` after the name: settings with a number of `samples`, the run folder, and others.
Task = tuple[Any, ...]


class SweepError(NorewindError, RuntimeError):
    """Some runs of a sweep failed; the message says which, and why."""


def train_in_processes(
    work: Callable[..., str],
    tasks: Mapping[str, Task],
    progress: Progress,
    *,
    jobs: int | None = None,
    ray: str | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Train runs at the same time. If the process of one is killed, it continues in another; the rest are unaffected.

    Args:
        work: called in its own process with the name and the task of a run; returns how the run ended.
        tasks: the further arguments of `work` for each run, by name.
        progress: shows the progress of the runs.
        jobs: the number of runs at a time; by default one per core.
        ray: the address of a Ray cluster, or "auto"; None for processes on this machine.
        stop: called while waiting. Once it returns True, the active runs are saved and this returns.

    Raises:
        SettingsError: the number of jobs is out of range, or Ray cannot be used.
        SweepError: at the end, if some runs have failed.
    """
    if jobs is not None and not 1 <= jobs <= MAX_JOBS:
        raise SettingsError(f"jobs must be from 1 to {MAX_JOBS}, but it is {jobs}.")
    processes = _LocalProcesses(jobs) if ray is None else _RayProcesses(jobs, ray)
    waiting = list(tasks)
    failures = []
    restarts = dict.fromkeys(tasks, RESTARTS)
    active: dict[Future, str] = {}
    try:
        while (waiting or active) and not stop():
            while waiting and len(active) < processes.jobs:
                name = waiting.pop(0)
                active[processes.start(work, name, *tasks[name])] = name
                samples = tasks[name][0].samples
                progress.begin(name, "", 0, None if samples is None else int(samples))
            done, _ = wait(active, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
            show_progress(progress, {name: tasks[name][1] for name in active.values()})
            for future in done:
                name, error = active.pop(future), future.exception()
                processes.end(future)
                if error is None:
                    progress.end(name, future.result())
                elif isinstance(error, processes.killed) and restarts[name] > 0:
                    restarts[name] -= 1
                    waiting.append(name)
                    news = "its process was killed; continuing from its last checkpoint, if there is one"
                    progress.end(name, news, over=False)
                else:
                    cause = getattr(error, "cause", error)  # without the traceback that Ray adds
                    failures.append(f"{name}: {type(cause).__name__}: {cause}")
                    progress.end(name, "failed")
    finally:
        processes.stop()
    for future, name in active.items():  # they were stopped
        error = future.exception() if future.done() and not future.cancelled() else None
        if error is not None and not isinstance(error, processes.killed):
            failures.append(f"{name}: {type(error).__name__}: {error}")
    if failures:
        raise SweepError("\n".join(failures))


def show_progress(progress: Progress, folders: Mapping[str, Path]) -> None:
    """Show the progress of runs that other processes train.

    Args:
        progress: shows the progress.
        folders: the run folder of each run, by name.
    """
    for name, folder in folders.items():
        _, lines = LogTail(folder / METRICS, last=1).new()
        for line in lines:
            if line["samples"] > progress.runs[name].last and line["loss"] is not None:
                progress.runs[name].average(line)
                progress.advance(name, line["samples"])


class _LocalProcesses:
    """Processes on this machine, one core each. Each has its own pool, since a killed process breaks its whole pool.

    Attributes:
        jobs: the number of runs at a time.
        killed: the errors of a run whose process was killed.
    """

    def __init__(self, jobs: int | None):
        # Fresh interpreters: JAX does not survive a fork, and precision is set per process.
        self.context = multiprocessing.get_context("spawn")
        self.event = self.context.Event()
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]
        self.jobs = jobs or len(cores)
        self.free = (cores * self.jobs)[: self.jobs]
        self.pools: dict[Future, tuple[ProcessPoolExecutor, int]] = {}
        self.killed = BrokenProcessPool

    def start(self, work: Callable, *arguments: Any) -> Future:
        """Call `work` with these arguments in a new process."""
        core = self.free.pop(0)
        pool = ProcessPoolExecutor(1, self.context, initializer=_prepare_process, initargs=(core, self.event))
        future = pool.submit(_run_locked, work, *arguments)
        self.pools[future] = pool, core
        return future

    def end(self, future: Future) -> None:
        """Release the process of a run that has ended."""
        pool, core = self.pools.pop(future)
        pool.shutdown()
        self.free.append(core)

    def stop(self) -> None:
        """End the active runs, which can be continued from their checkpoints."""
        self.event.set()
        for future in list(self.pools):
            self.end(future)


class _RayProcesses:
    """Processes of a Ray cluster, one processor each, on any machine. All machines must see the same folders.

    It has the attributes and methods of `_LocalProcesses`.
    """

    def __init__(self, jobs: int | None, address: str):
        package = importlib.util.find_spec("ray")
        if package is None or package.origin is None:  # a folder that happens to have this name is not the package
            raise SettingsError(f"ray: {missing_package('ray', 'ray')}, or leave out ray=.")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # A worker sees only its own processors, and no other device.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray  # pyright: ignore[reportMissingImports] (an extra)

        self.ray = ray
        self.owns = not ray.is_initialized()
        self.refs: dict[Future, Any] = {}
        ended = ray.exceptions
        self.killed = ended.WorkerCrashedError, ended.NodeDiedError, ended.TaskCancelledError
        if self.owns:
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
            try:
                ray.init(address=address, **options)
            except ConnectionError:
                if address != "auto":
                    raise SettingsError(
                        f"ray: there is no cluster at {address}. Check the address, or start one there."
                    ) from None
                self._start_cluster(num_cpus=jobs, include_dashboard=False, **options)
        self.jobs = jobs or max(1, int(ray.cluster_resources().get("CPU", 1)))

    def _start_cluster(self, **options: Any) -> None:
        """Start a cluster on this machine that ends with this process. Like any cluster, it listens on the network."""
        with warnings.catch_warnings():
            # Ray forks this process and then runs another program, so the warning of JAX does not apply.
            warnings.filterwarnings("ignore", r"os\.fork\(\)", RuntimeWarning)
            try:
                self.ray.init(**options)
            except Exception as error:  # Ray has no narrower one
                reason = str(error).partition("\n")[0]
                raise SettingsError(f"ray: no cluster could be started on this machine: {reason}") from None

    def start(self, work: Callable, *arguments: Any) -> Future:
        # A killed run is restarted by us, so that it is counted and reported.
        ref = self.ray.remote(num_cpus=1, max_retries=0)(work).remote(*arguments)
        future = ref.future()
        self.refs[future] = ref
        return future

    def end(self, future: Future) -> None:
        del self.refs[future]

    def stop(self) -> None:
        for ref in self.refs.values():
            self.ray.cancel(ref, force=True)
        if self.owns:
            self.ray.shutdown()


_event: Any = None
# Held while this process works.
_working = threading.Lock()


def _prepare_process(core: int, event: Any) -> None:
    global _event
    _event = event
    # Signals to a terminal or a process group reach all processes; the parent decides what to do.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def _run_locked(work: Callable, *arguments: Any) -> Any:
    with _working:
        return work(*arguments)


def _end_with_parent() -> None:
    """End this process when its parent has ended, but not before its work is saved.

    Otherwise it would wait for its next work, and hold standard error open, forever.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    with _working:
        os._exit(1)


def stop_check() -> Callable[[], bool]:
    """Return a function that tells a process whether to stop: when it is asked to, or when its parent has ended."""
    parent = os.getppid()
    return lambda: (_event is not None and _event.is_set()) or os.getppid() != parent
