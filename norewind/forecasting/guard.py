"""A guard around the state of a model: one thread at a time, and changes that Ctrl-C cannot cut in half."""

import threading

# The functions of `signal` itself convert their arguments to enums, which takes a row 25 µs.
from _signal import getsignal, signal  # pyright: ignore[reportMissingImports]
from collections.abc import Callable
from functools import wraps
from signal import SIGINT
from typing import Any


class Guard:
    """A lock that also holds back Ctrl-C, as a context manager. In its block, the state of a model may change.

    Threads wait for each other. Ctrl-C is handled at the end of the block, so its changes are made completely. A block
    may contain others, and a copy of a guard is a new one.

    >>> with Guard():
    ...     print("Ctrl-C would be handled after this line")
    Ctrl-C would be handled after this line
    """

    def __init__(self):
        self.lock = threading.RLock()
        # Of the main thread, in which Python handles signals.
        self._blocks = 0
        self._before: Any = None
        self._interrupt: tuple | None = None

    def __enter__(self) -> None:
        # The handler comes before the lock and goes after it, so that Ctrl-C never leaves the lock taken.
        if threading.current_thread() is threading.main_thread():
            if self._blocks == 0:
                before = getsignal(SIGINT)
                self._before, self._interrupt = None, None
                if callable(before):  # Ctrl-C is neither ignored nor handled outside Python
                    self._before = before
                    signal(SIGINT, self._note)
            self._blocks += 1
        self.lock.acquire()

    def _note(self, *interrupt: Any) -> None:
        """Handle Ctrl-C: later while this thread holds the lock, otherwise now."""
        if self.lock._is_owned():  # pyright: ignore[reportAttributeAccessIssue]
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
        self.lock.release()
        if is_last and self._before is not None:
            signal(SIGINT, self._before)
            if self._interrupt is not None:
                self._before(*self._interrupt)

    def __reduce__(self) -> tuple:
        return Guard, ()


def locked(method: Callable) -> Callable:
    """Decorate a method of an object with a `_guard`, so that one thread at a time is in such methods."""

    @wraps(method)
    def with_lock(self: Any, *arguments: Any, **options: Any) -> Any:
        with self._guard.lock:
            return method(self, *arguments, **options)

    return with_lock


def uninterrupted(method: Callable) -> Callable:
    """Decorate a method of an object with a `_guard` that makes a change, or a short calculation, completely."""

    @wraps(method)
    def with_guard(self: Any, *arguments: Any, **options: Any) -> Any:
        with self._guard:
            return method(self, *arguments, **options)

    return with_guard
