"""A lock for the state of a model: one thread at a time, and no change is interrupted by Ctrl-C."""

import threading

# The functions of `signal` itself convert their arguments to enums, which would cost 25 µs per row.
from _signal import getsignal, signal  # pyright: ignore[reportMissingImports]
from collections.abc import Callable
from functools import wraps
from signal import SIGINT
from typing import Any


class UninterruptibleLock:
    """A reentrant lock that also defers Ctrl-C, as a context manager.

    Ctrl-C is handled at the end of the outermost block, so changes made inside are complete. A copy is a new lock.

    >>> with UninterruptibleLock():
    ...     print("Ctrl-C would be handled after this line")
    Ctrl-C would be handled after this line
    """

    def __init__(self):
        self.thread_lock = threading.RLock()
        # The state of the main thread, in which Python handles signals.
        self._blocks = 0
        self._before: Any = None
        self._interrupt: tuple | None = None

    def __enter__(self) -> None:
        # The handler is installed before the lock is taken and removed after its release: Ctrl-C never leaves it taken.
        if threading.current_thread() is threading.main_thread():
            if self._blocks == 0:
                before = getsignal(SIGINT)
                self._before, self._interrupt = None, None
                if callable(before):  # Ctrl-C is neither ignored nor handled outside Python
                    self._before = before
                    signal(SIGINT, self._note)
            self._blocks += 1
        self.thread_lock.acquire()

    def _note(self, *interrupt: Any) -> None:
        """Handle Ctrl-C: later while this thread holds the lock, otherwise now."""
        if self.thread_lock._is_owned():  # pyright: ignore[reportAttributeAccessIssue]
            self._interrupt = interrupt
            return
        try:
            self._before(*interrupt)
        except BaseException:
            signal(SIGINT, self._before)
            self._blocks = 0
            raise

    def __exit__(self, *_) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        self._blocks -= is_main
        is_last = is_main and self._blocks == 0
        self.thread_lock.release()
        if is_last and self._before is not None:
            signal(SIGINT, self._before)
            if self._interrupt is not None:
                self._before(*self._interrupt)

    def __reduce__(self) -> tuple:
        return UninterruptibleLock, ()


def locked(method: Callable) -> Callable:
    """Decorate a method of an object with a `_lock`, so that only one thread at a time runs such methods."""

    @wraps(method)
    def with_lock(self: Any, *arguments: Any, **options: Any) -> Any:
        with self._lock.thread_lock:
            return method(self, *arguments, **options)

    return with_lock


def uninterrupted(method: Callable) -> Callable:
    """Decorate a method of an object with a `_lock` that Ctrl-C must not interrupt."""

    @wraps(method)
    def without_interruption(self: Any, *arguments: Any, **options: Any) -> Any:
        with self._lock:
            return method(self, *arguments, **options)

    return without_interruption
