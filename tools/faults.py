"""`make faults`: short runs of every kind, disturbed at every change of a file: killed, without power or by errors.

Each run is recorded once: every write, fsync, rename, mkdir and so on below its folder, also those of SQLite
(tools/faults.c). Then, for every n, the folder is set up as a crash after the n-th change would have left it
(tools/fault_disk.py), and the run continues. And for every n, the run is repeated while the n-th change fails (EIO),
all changes from the n-th on fail (a full disk), or the n-th is a write that writes only half. Afterwards the run must
end like the undisturbed one, or have said what is wrong; what was reported as written must still be there.
"""

import argparse
import ctypes
import errno
import gc
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OUT = Path(__file__).parent.parent / "results/faults"
LIBRARY = "NOREWIND_FAULTS"
NEVER, ONCE, FROM_THEN_ON, SHORT = range(4)
ERRORS = {"an error": (errno.EIO, ONCE), "a full disk": (errno.ENOSPC, FROM_THEN_ON), "half a write": (0, SHORT)}
SAME, REJECTED = "ended the same", "said what was wrong"


def environment_with(folder: str) -> dict[str, str]:
    """Compile the library that records and disturbs, and return an environment in which it is preloaded.

    Args:
        folder: where to compile it.
    """
    path, source = f"{folder}/faults.so", Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", path, str(source), "-ldl", "-lpthread"], check=True)
    return {**os.environ, "LD_PRELOAD": path, LIBRARY: path}


def preloaded() -> ctypes.CDLL:
    """Return the preloaded library; if it is not loaded yet, start this command again with it."""
    if path := os.environ.get(LIBRARY):
        library = ctypes.CDLL(path)
        library.faults_trace.restype = ctypes.c_void_p
        return library
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tools.faults", *sys.argv[1:]]
        raise SystemExit(subprocess.run(command, env=environment_with(folder), check=False).returncode)


class Faults:
    """Disturbs runs of one kind.

    Args:
        library: the preloaded library.
        folder: an empty folder.
        name: the kind of run.
    """

    def __init__(self, library: ctypes.CDLL, folder: Path, name: str):
        from tools.fault_kinds import KINDS

        self.library, self.folder = library, folder
        self.kind = KINDS[name](name, folder, lambda text: library.faults_mark(text.encode()))
        self.root = folder / "root"
        self.whole = folder / "whole"
        self.changes = 0
        self.tried, self.outcomes, self.problems = Counter(), Counter(), []
        self.messages: set[str] = set()
        self._known: set[bytes] = set()

    def fresh(self) -> Path:
        """Empty the root, prepare a run there, and return its folder."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        self.kind.prepare(self.root / "run")
        return self.root / "run"

    def record(self) -> list[Any]:
        """Let an undisturbed run end, and return its changes."""
        from tools.fault_disk import Disk, read_trace

        self.kind.act(self.fresh())  # compiles
        run = self.fresh()
        self.disk = Disk(self.root)
        self.library.faults_begin(str(self.root).encode(), 0, 0, NEVER)
        self.kind.act(run)
        self.library.faults_end()
        length = ctypes.c_size_t()
        trace = ctypes.string_at(self.library.faults_trace(ctypes.byref(length)), length.value)
        run.rename(self.whole)
        return list(read_trace(trace))

    def crash_everywhere(self, changes: list[Any], chosen: set[int]) -> None:
        """Continue from what a crash leaves, after each of the chosen changes.

        Args:
            changes: the recorded changes.
            chosen: the numbers of the changes to crash after.
        """
        from tools.fault_disk import CRASHES, KILLED, File

        marks, number = [], 0
        for change in changes:
            if change.kind == "!":
                marks.append(change.a.decode())
                continue
            number += 1
            if number in chosen and change.kind == "w":
                # In the middle of a write. (Nothing of it is durable.)
                before = self.disk.after(KILLED)
                file = self.disk.by_inode[change.inode]
                assert isinstance(file, File)
                content = bytes(file.content)
                self.disk.apply(change, half=True)
                self.crash(f"{KILLED} in write {number}", KILLED, marks, self.disk.after(KILLED))
                file.content[:] = content
                assert self.disk.after(KILLED) == before
            self.disk.apply(change)
            for crash in CRASHES if number in chosen else ():
                self.crash(f"{crash} after change {number}", crash, marks, self.disk.after(crash))

    def crash(self, place: str, crash: str, marks: list[str], left: dict[str, bytes | None]) -> None:
        """Set the folder up as a crash has left it, and continue.

        Args:
            place: where it crashed, for the report.
            crash: how.
            marks: what was reported before.
            left: the content of the folder.
        """
        self.tried[crash] += 1
        state = hashlib.sha256(repr((sorted(left.items()), marks[-5:])).encode()).digest()
        if state in self._known:
            return
        self._known.add(state)
        shutil.rmtree(self.root)
        self.root.mkdir()
        for path, content in left.items():
            (self.root / path).mkdir() if content is None else (self.root / path).write_bytes(content)
        run = self.root / "run"
        try:
            lost = self.kind.lost(run, marks)
        except Exception as error:
            lost = f"{type(error).__name__}: {error}"
        self.report(place, lost or self.go_on(run, may_reject=False))

    def fail_everywhere(self, number: int, chosen: set[int], writes: set[int]) -> None:
        """Repeat the run with errors at each of the chosen changes, and continue without.

        Args:
            number: the number of changes.
            chosen: the numbers of the changes that fail.
            writes: those that are writes.
        """
        for name, (code, how) in ERRORS.items():
            for place in sorted(chosen & (writes if how == SHORT else chosen)):
                run = self.fresh()
                self.tried[name] += 1
                self.library.faults_begin(str(self.root).encode(), place, code, how)
                problem = self.go_on(run, may_reject=True)
                self.library.faults_end()
                if problem == REJECTED:
                    self.outcomes[REJECTED] += 1
                    problem = self.go_on(run, may_reject=False)
                self.report(f"{name} at change {place} of {number}", problem)

    def go_on(self, run: Path, *, may_reject: bool) -> str | None:
        """Start or continue the run, and let it end.

        Args:
            run: its folder.
            may_reject: whether it may end with a message.

        Returns:
            What went wrong; None if it has ended like the undisturbed one, or REJECTED.
        """
        from tools.fault_kinds import Disturbed

        try:
            self.kind.act(run)
            self.library.faults_end()  # to compare keys, SQLite must be able to make files
            different = self.kind.differs(run, self.whole)
        except Disturbed as message:
            self.messages.add(str(message)[:200])
            return REJECTED if may_reject else f"it does not continue: {message}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return different and f"the {different} differ"

    def report(self, place: str, problem: str | None) -> None:
        if problem is None:
            self.outcomes[SAME] += 1
        else:
            self.problems.append(f"{self.kind.name}, {place}: {problem}")
            print(f"PROBLEM: {self.problems[-1]}", file=sys.stderr, flush=True)


def spread(number: int, points: int | None) -> set[int]:
    """Return this many of the numbers from 1, evenly spread; all of them for None.

    >>> sorted(spread(10, 4))
    [1, 3, 6, 8]
    """
    if points is None or points >= number:
        return set(range(1, number + 1))
    return {1 + i * number // points for i in range(points)}


def disturb(library: ctypes.CDLL, names: list[str], points: int | None) -> Iterator[tuple[str, Faults]]:
    """Disturb runs of some kinds.

    Args:
        library: the preloaded library.
        names: the kinds.
        points: the number of changes of each kind to disturb; None for all.
    """
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            faults = Faults(library, Path(folder).resolve(), name)
            changes = faults.record()
            kinds = [change.kind for change in changes if change.kind != "!"]
            faults.changes, chosen = len(kinds), spread(len(kinds), points)
            faults.crash_everywhere(changes, chosen)
            writes = {number for number, kind in enumerate(kinds, 1) if kind == "w"}
            faults.fail_everywhere(len(kinds), chosen, writes)
            yield name, faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, help="changes of each kind of run to disturb (default: all)")
    parser.add_argument("--kinds", nargs="+", help="kinds of runs (default: all)")
    parser.add_argument("--out", type=Path, help="folder of the records, one for each kind (default: none)")
    options = parser.parse_args()
    library = preloaded()
    from norewind.sweeps.record import versions, write_record
    from tools.fault_kinds import KINDS, watch_checkpoints

    gc.freeze = lambda: None  # a service freezes what is there, which would be kept for ever
    watch_checkpoints(library)
    began, points, problems, messages = time.monotonic(), 0, [], set()
    for name, faults in disturb(library, options.kinds or [*KINDS], options.points):
        tried, now = faults.tried.total(), time.monotonic()
        record = {
            "settings": {"points": options.points},
            **versions(),
            "changes": faults.changes,
            "points": tried,
            "tried": dict(faults.tried),
            "outcomes": dict(faults.outcomes),
            "problems": faults.problems,
            "seconds": round(now - began, 1),
        }
        began, points = now, points + tried
        problems += faults.problems
        messages |= faults.messages
        if options.out:
            write_record(options.out, name, record)
        print(f"{name}: {tried} points, {len(faults.problems)} problems: {record['outcomes']}", flush=True)
    print("".join(f"said: {message}\n" for message in sorted(messages)), end="")
    print(f"{points} points, {len(problems)} problems")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
