"""`make storm`: real runs, killed at random moments, against runs that nothing happened to.

Every run is killed several times (SIGKILL, at a uniformly random moment, sometimes twice in a row),
resumed each time, then left to end, and compared with the undisturbed one: parameters, metrics
(but for the clock) and predictions, byte for byte.
"""

import argparse
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from norewind.checkpoint import checkpoints, read
from norewind.runs.folder import read_log
from norewind.tasks import anbn

COMMON = (
    *("--hidden", 8, "--predictions", "file", "--metrics-every", 1_000),
    *("--checkpoint-every", 500, "--keep", 2, "--quiet"),
)
KINDS = {
    "bytes": ("--format", "bytes", "--method", "uoro", *COMMON),
    "windows": ("--format", "text", "--method", "uoro:window=3", *COMMON),
    "rows": ("--format", "csv", "--horizon", 6, "--method", "uoro:window=4", *COMMON),
}
PHASES = ("starting Python", "imports", "opening and reading again", "building", "compiling", "learning")
WRITING = "writing a checkpoint"
# Tells in a shared byte where the process is, and in another whether it is writing.
CHILD = """
import mmap, sys
file = open(sys.argv.pop(1), "r+b")
place = mmap.mmap(file.fileno(), 2)
place[0] = 1
import norewind.checkpoint, norewind.learner, norewind.learners.ahead, norewind.runs.train as train
def during(module, name, before, after, byte=0):
    inner = getattr(module, name)
    def outer(*arguments, **options):
        # The first call compiles; it never goes back to an earlier place.
        place[byte] = before if byte else max(place[0], before)
        try:
            return inner(*arguments, **options)
        finally:
            place[byte] = after
    setattr(module, name, outer)
during(train, "open_stream", 2, 2)
during(train, "build", 3, 4)
during(norewind.learner.Learner, "scan", 4, 5)
during(norewind.checkpoint, "_write", 1, 0, byte=1)
from norewind.__main__ import main
main()
"""


def stream(kind: str, samples: int) -> bytes:
    if kind == "rows":
        values = np.random.default_rng(0).normal(size=samples).cumsum() % 10
        return b"level\n" + b"".join(b"%.2f\n" % value for value in values)
    text = anbn()
    return text.decode(next(text.chunks(0, samples))).encode()


class Storm:
    """One kind of stream in a folder, with its undisturbed run."""

    def __init__(self, folder: Path, kind: str, samples: int):
        self.folder, self.kind = folder, kind
        folder.mkdir()
        self.source, self.place = folder / "stream", folder / "place"
        self.source.write_bytes(stream(kind, samples))
        self.place.write_bytes(bytes(2))
        self.file = self.place.open("r+b")
        self.shared = mmap.mmap(self.file.fileno(), 2)
        for name in ("first", "whole"):  # the second time, everything is compiled
            began = time.monotonic()
            if self.start(folder / name, False).wait():
                raise SystemExit(f"the undisturbed run on {kind} failed.")
            self.seconds = time.monotonic() - began

    def start(self, run: Path, pipe: bool) -> subprocess.Popen:
        self.shared[:] = bytes(2)
        cache = {
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        if (run / "settings.toml").exists():
            arguments = ["resume", run, "--quiet"]
        else:
            arguments = ["train", "-" if pipe else self.source, "--out", run, *KINDS[self.kind]]
        command = [sys.executable, "-c", CHILD, self.place, *arguments]
        stdin = subprocess.Popen(["cat", self.source], stdout=subprocess.PIPE).stdout if pipe else None
        process = subprocess.Popen(list(map(str, command)), stdin=stdin, env={**os.environ, **cache})
        if stdin:
            stdin.close()  # so that cat ends with the process that reads from it
        return process

    def kill(self, run: Path, pipe: bool, chance: random.Random, fell: Counter) -> bool:
        """Start, and kill after a random time; whether there was something left to kill."""
        process = self.start(run, pipe)
        soon = chance.random() < 0.2
        try:
            process.wait(chance.uniform(0, 0.3 if soon else self.seconds))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            return False
        fell[WRITING if self.shared[1] else PHASES[self.shared[0]]] += 1
        return True

    def differs(self, run: Path) -> str | None:
        """What is not as in the undisturbed run."""
        ours, theirs = (read(checkpoints(folder / "checkpoints")[-1])[0] for folder in (run, self.folder / "whole"))
        if {name: array.tobytes() for name, array in ours.items()} != {n: a.tobytes() for n, a in theirs.items()}:
            return "arrays"
        lines = [
            [{**line, "seconds": None} for line in read_log(folder / "metrics.jsonl")]
            for folder in (run, self.folder / "whole")
        ]
        if lines[0] != lines[1]:
            return "metrics"
        logs = [(folder / "predictions.jsonl").read_bytes() for folder in (run, self.folder / "whole")]
        return None if logs[0] == logs[1] else "predictions"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--samples", type=int, default=20_000, help="samples in each stream")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, fell, kills, runs, losses = random.Random(options.seed), Counter(), Counter(), 0, []
    with tempfile.TemporaryDirectory() as folder:
        storms = [Storm(Path(folder) / kind, kind, options.samples) for kind in KINDS]
        while kills.total() < options.kills:
            storm, pipe, runs = storms[runs % len(storms)], chance.random() < 0.3, runs + 1
            run, wanted = storm.folder / f"run{runs}", chance.randint(1, 12)
            while wanted and storm.kill(run, pipe, chance, fell):
                wanted -= 1
                kills[f"{storm.kind}, {'pipe' if pipe else 'file'}"] += 1
            code = storm.start(run, pipe).wait()
            lost = f"exit code {code}" if code else storm.differs(run)
            if lost:
                losses.append(f"run {runs} on {storm.kind}: {lost}")
            print(f"{kills.total()} kills, {runs} runs, {len(losses)} losses", file=sys.stderr, flush=True)
    print(f"{kills.total()} kills of {runs} runs (seed {options.seed}); {len(losses)} losses")
    for title, counts in (("on", kills), ("fell during", fell)):
        print(f"{title}: " + ", ".join(f"{name} {count}" for name, count in counts.most_common()))
    print("".join(f"LOST: {loss}\n" for loss in losses), end="")
    sys.exit(bool(losses))


if __name__ == "__main__":
    main()
