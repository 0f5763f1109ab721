"""Real runs on a topic, in threads that wait before every step of the protocol, so that a schedule can be followed."""

import threading
from contextlib import ExitStack, contextmanager

import pytest
from run_folders import cached_build

from norewind.storage import checkpoint
from norewind.training import folder as run_folder
from norewind.training import kafka_answers
from norewind.training.folder import RunFolder
from norewind.training.hooks import Hooks
from norewind.training.train_folder import train_folder

# The steps, by the names of tests/helpers/protocol_model.py.
LEARN, WRITE, OFFSETS, COMMIT, REMOVE = "learn", "write", "offsets", "commit", "remove"
SECONDS = 300
_current = threading.local()


class Crash(BaseException):
    """The process is killed here."""


class ScheduledRun(threading.Thread):
    """A process: it trains until the end, and waits before every step."""

    def __init__(self, settings, path):
        super().__init__(daemon=True)
        self.settings, self.path = settings, path
        self.step, self.go, self.waits = None, threading.Event(), threading.Event()
        self.crashed = self.leaves = False
        self.error = None

    def run(self):
        _current.run = self
        try:
            with RunFolder(self.path) as folder:
                train_folder(self.settings, folder, hooks=Hooks(should_stop=lambda: self.leaves))
        except BaseException as error:
            self.error = error
        self.step = None
        self.waits.set()

    def wait_before(self, step):
        """Called before every step."""
        if self.crashed:
            raise Crash
        self.step = step
        self.waits.set()
        assert self.go.wait(SECONDS)
        self.go.clear()
        if self.crashed:
            raise Crash

    def proceed(self):
        """Let the next step happen, and return the one after it; None if the run has ended."""
        assert self.step is not None, f"the run has ended: {self.error!r}"
        self.waits.clear()
        self.go.set()
        assert self.waits.wait(SECONDS)
        return self.step

    def crash(self):
        self.crashed = True
        self.proceed()
        self.join(SECONDS)
        assert isinstance(self.error, Crash), self.error

    def leave(self):
        """Its partition is revoked. It waits before a row that it has not learned yet, which is not part of it."""
        self.leaves = True
        while self.step is not None:
            self.proceed()


@contextmanager
def scheduling(*, order=None, lock=True):
    """Runs that are started in this block wait before every step.

    Args:
        order: "remove before commit" breaks the protocol.
        lock: whether a run folder can be locked, which is not so on every shared file system.
    """
    with pytest.MonkeyPatch.context() as patch, ExitStack():
        write, submit = kafka_answers.Answers.write, checkpoint.Writer.submit
        commit, abandon = kafka_answers.Answers.commit, kafka_answers.Answers.abandon

        def waiting_write(self, entries):
            self.run = _current.run
            self.run.wait_before(LEARN)
            write(self, entries)

        def waiting_commit(self, path):
            retry, steps = self._retry, iter((OFFSETS, COMMIT))

            def waiting_retry(act):
                if act != self._producer.begin_transaction:
                    self.run.wait_before(next(steps))
                return retry(act)

            self._retry = waiting_retry
            try:
                commit(self, path)
            finally:
                self._retry = retry

        def dying_abandon(self):
            if getattr(_current.run, "crashed", False):
                self._open = False  # a process that is killed says nothing to the brokers
            abandon(self)

        def waiting_submit(self, samples, run, extra, *, before=lambda: None, after=lambda path: None, replaces=True):
            who = _current.run

            def waiting_before():
                before()
                who.wait_before(WRITE)

            def waiting_after(path):
                if order == "remove before commit":
                    checkpoint._clean(path, self.keep)
                after(path)
                who.wait_before(REMOVE)

            submit(self, samples, run, extra, before=waiting_before, after=waiting_after, replaces=replaces)

        patch.setattr(kafka_answers.Answers, "write", waiting_write)
        patch.setattr(kafka_answers.Answers, "commit", waiting_commit)
        patch.setattr(kafka_answers.Answers, "abandon", dying_abandon)
        patch.setattr(checkpoint.Writer, "submit", waiting_submit)
        patch.setattr("norewind.training.train_folder.build", cached_build)
        if not lock:
            patch.setattr(run_folder, "lock_folder", _unlocked)
        yield


@contextmanager
def _unlocked(folder):
    path = folder / run_folder.LOCK_FILE
    if not path.exists():
        path.write_bytes(run_folder.MARKER)
    yield


def follow(schedule, settings, path, state):
    """Follow a schedule of the model, and call `state` after every step."""
    runs = [None, None]
    for who, action in schedule:
        if action == "start":
            runs[who] = run = ScheduledRun(settings, path)
            run.start()
            assert run.waits.wait(SECONDS)
        elif action == "crash" and runs[who].step is not None:
            runs[who].crash()
        elif action == "leave":
            runs[who].leave()
        elif runs[who].step == action:
            runs[who].proceed()
        state((who, action), runs)
    for run in runs:
        if run is not None and run.is_alive():
            run.crash()
