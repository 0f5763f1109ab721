"""Training runs for tests: the command line in this process, and everything in a run folder."""

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from norewind.cli import main
from norewind.fleets.store import KeyStore
from norewind.storage.checkpoint import checkpoints, read
from norewind.training import build
from norewind.training.log import read_log
from norewind.training.progress import Progress
from norewind.training.settings import CHANGEABLE, Settings

MODEST = ("--hidden", 4, "--metrics-every", 300, "--checkpoint-every", 250, "--quiet")
SMALL = ("--method", "uoro", *MODEST)
# Windows of three, so that metrics, checkpoints and the stream do not end with a window.
TEXT = ("--method", "uoro:window=3", "--predictions", "file", *MODEST)
ROWS = ("--predictions", "file", *SMALL)

_built: dict = {}


def cached_build(settings, shape):
    """Build a learner once for all runs with the same model, since compiling takes most of the time of these tests."""
    irrelevant = {*CHANGEABLE, "format", "bad", "metrics_every", "missing", "horizon", "alphabet", "inputs", "targets"}
    irrelevant |= {"copy", "top"}
    same = {name: getattr(Settings(), name) for name in irrelevant}
    if settings.key is not None:
        # A fleet holds its keys itself, so only its compiled programs are shared.
        built = build.build(settings, shape)
        key = replace(settings, **same, shards=1, shard=None), shape._replace(table=None)
        built.learner.program = _built.setdefault(key, built.learner.program)
        return built
    key = replace(settings, **same), shape
    if key not in _built:
        _built[key] = build.build(settings, shape)
    return _built[key]


def norewind(*arguments) -> int:
    """Run a command, and return its exit code."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
    return 0


def assert_rejected(capsys, code, *words, expected=1):
    """Assert that a command failed with this code, and explained why without a traceback."""
    output = capsys.readouterr().err
    assert code == expected, output
    assert "Traceback" not in output
    for word in words:
        assert word in output
    assert output.startswith("norewind"), output


def wait_for(condition, process, seconds=120) -> None:
    """Wait until a condition is true, while a process that must not fail runs."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None or process.returncode < 0, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


def flip(path: Path, place: int | None = None) -> None:
    """Damage a file: flip one bit of the byte at a place, by default in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 0x80
    path.write_bytes(content)


def everything(run: Path) -> dict:
    """Return everything that a run has produced, except times."""
    arrays, entries = read(checkpoints(run / "checkpoints")[-1])
    log = run / "predictions.jsonl"
    return {
        "metrics": [{**line, "seconds": None} for line in read_log(run / "metrics.jsonl")],
        "predictions": log.read_bytes() if log.exists() else None,
        "arrays": comparable(arrays),
        **{name: comparable(entries[name]) for name in ("samples", "position", "tally", "score", "divergence")},
    }


def keys_in(run: Path) -> dict:
    """Return the keys of a fleet with the record of each."""
    kept = KeyStore(run, None, write=False)
    found = dict(kept.all())
    kept.close()
    return found


def comparable(value):
    """Replace arrays by their dtype, shape and bytes, so that results can be compared with ==."""
    if isinstance(value, dict):
        return {name: comparable(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [comparable(entry) for entry in value]
    return (str(value.dtype), value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


def latest(run: Path) -> Path:
    return checkpoints(run / "checkpoints")[-1]


def at_sample(monkeypatch, samples: int, act) -> None:
    """Call a function once this many samples have been learned from."""
    advance = Progress.advance

    def acting(self, name, seen):
        advance(self, name, seen)
        if seen >= samples:
            act()

    monkeypatch.setattr(Progress, "advance", acting)


def crash():
    raise RuntimeError("a crash")


class Pipe:
    """A pipe that sends some pieces of data, as a source for the command line."""

    def __init__(self, *pieces: bytes, pause: float = 0.0):
        self._reading, self._writing = os.pipe()
        self.path = f"/dev/fd/{self._reading}"
        self._pause = threading.Event()
        self._thread = threading.Thread(target=self._send, args=(pieces, pause))

    def _send(self, pieces, pause):
        try:
            for piece in pieces:
                os.write(self._writing, piece)
                self._pause.wait(pause)
        except BrokenPipeError:
            pass
        finally:
            os.close(self._writing)

    def __enter__(self) -> str:
        self._thread.start()
        return self.path

    def __exit__(self, *_) -> None:
        os.close(self._reading)
        self._thread.join()


def holder(folder):
    """Return the process that trains in a folder, which holds its lock; None if there is none."""
    lock = str(folder / "lock")
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(fd) == lock and int(fd.parts[2]) != os.getpid():
                return int(fd.parts[2])
        except OSError:
            continue
    return None
