"""Ctrl-C, or another thread, at every place of a call where Python would handle a signal."""

import dis
import os
import signal
import sys
import threading
from functools import cache

import pytest

import norewind

PACKAGE = os.path.dirname(norewind.__file__) + os.sep


@cache
def places_of(code) -> frozenset[int]:
    """The offsets of the instructions before which Python handles signals: after calls, and where loops begin.

    An error after a call belongs to the call. A tracer can only raise it at the next instruction, so that one must be
    in the same block of `try` or `with`.
    """
    found, called = set(), None
    for instruction in dis.get_instructions(code):
        if called is not None and _handler(code, called) == _handler(code, instruction.offset):
            found.add(instruction.offset)
        name = instruction.opname
        called = instruction.offset if name.startswith("CALL") or name == "RESUME" else None
        if name == "JUMP_BACKWARD":
            found.add(instruction.argval)
    return frozenset(found)


def _handler(code, offset):
    ranges = dis._parse_exception_table(code)
    return next((entry.target for entry in ranges if entry.start <= offset < entry.end), None)


class Interrupted:
    """Does something at the n-th place of a call inside the package, in this thread.

    Args:
        at: the number of the place; 0 to count them only.
        act: what to do; by default, Ctrl-C.

    Attributes:
        count: the number of places so far.
        where: the place.
    """

    def __init__(self, at: int = 0, act=lambda: signal.raise_signal(signal.SIGINT)):
        self.at, self.act, self.count, self.where = at, act, 0, ""

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)

    def _enter(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame, event, _):
        if event == "opcode" and frame.f_lasti in places_of(frame.f_code):
            self.count += 1
            if self.count == self.at:
                self.where = f"{os.path.relpath(frame.f_code.co_filename, PACKAGE)}:{frame.f_lineno}"
                self.act()
        return self._step


# Of the places in a call, `make test` tries this many, evenly spread.
FEW = 25
every_place = pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["few", "every"]
)


@pytest.fixture(autouse=True)
def default_interrupts():
    """Ctrl-C raises KeyboardInterrupt, however the tests were started."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def places(call, every):
    """The numbers of the places in a call; a few of them, with the last one, unless `every`."""
    with Interrupted() as counted:
        call()
    assert counted.count > 10
    return reversed(range(counted.count, 0, -1 if every else -max(1, counted.count // FEW)))


def lock_is_free(lock):
    """Whether another thread can take the lock."""
    taken = []

    def take():
        if lock.thread_lock.acquire(timeout=5):
            taken.append(True)
            lock.thread_lock.release()

    other = threading.Thread(target=take)
    other.start()
    other.join()
    return bool(taken)


def switch_to(work):
    """An `act` in which another thread works, for as long as it can; and that thread, to be joined."""
    thread = threading.Thread(target=work)

    def switch():
        thread.start()
        thread.join(0.02)

    return switch, thread
