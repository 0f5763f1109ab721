"""`make storm`: real runs, killed at random moments, compared with undisturbed runs.

Every run is killed several times (SIGKILL, at a uniformly random moment of its duration, sometimes again right after
the next start), resumed each time, then left to end, and compared with the undisturbed one: parameters, metrics (except
for times) and predictions, byte for byte. A third of the runs are started like a user's; the others are forked from a
process that has imported everything, so that more of the kills fall on compiling, learning and writing. The tally is
written after every run, and an interrupted storm continues with it.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from norewind.storage.checkpoint import checkpoints, read
from norewind.sweeps.record import read_records, versions, write_record
from norewind.tasks import anbn
from norewind.training.log import read_log
from tools import storm_child

OUT = Path(__file__).parent.parent / "results/storm"
COMMON = (
    *("--cell", "rnn", "--hidden", 4, "--predictions", "file", "--metrics-every", 500),
    *("--checkpoint-every", 1_000, "--keep", 2, "--quiet"),
)
KINDS = {
    "bytes": ("--format", "bytes", "--method", "uoro", *COMMON),
    "windows": ("--format", "text", "--method", "uoro:window=3", *COMMON),
    "rows": ("--format", "csv", "--horizon", 6, "--method", "uoro:window=4", *COMMON),
}
PRELOADED = ["norewind.cli", "norewind.training.train", "norewind.training.progress", "norewind.plotting.figures"]
MOST = 14
"""The most kills of one run."""
SOON = 0.3
"""A fifth of the kills fall within this many seconds of the start."""


def stream(kind: str, samples: int) -> bytes:
    if kind == "rows":
        values = np.random.default_rng(0).normal(size=samples).cumsum() % 10
        return b"level\n" + b"".join(b"%.2f\n" % value for value in values)
    text = anbn()
    return text.decode(next(text.chunks(0, samples))).encode()


class Started:
    """A process, fresh or forked, that can be waited for and killed.

    Args:
        arguments: the arguments of `storm_child.main`.
        forked: fork it from a process that has imported everything.
    """

    def __init__(self, arguments: tuple[str, str, list[str]], forked: bool):
        self.forked: Any = None
        self.began = time.monotonic()
        if forked:
            self.forked = multiprocessing.get_context("forkserver").Process(target=storm_child.main, args=arguments)
            self.forked.start()
        else:
            place, feed, rest = arguments
            command = [sys.executable, "-m", "tools.storm_child", place, feed, *rest]
            self.fresh = subprocess.Popen(command)

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for the process to end.

        Args:
            seconds: the longest time to wait; None for no limit.

        Returns:
            The exit code, negative for a signal; None if the process is still running.
        """
        if self.forked:
            self.forked.join(seconds)
            return self.forked.exitcode
        try:
            return self.fresh.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> bool:
        """Kill the process, and return whether it was still running."""
        (self.forked or self.fresh).kill()
        return self.wait() == -signal.SIGKILL


class Storm:
    """One kind of stream, with its undisturbed run.

    Args:
        folder: a new folder for the stream and its runs.
        kind: the kind of stream.
        samples: the number of samples.
    """

    def __init__(self, folder: Path, kind: str, samples: int):
        self.folder, self.kind, self.samples = folder, kind, samples
        folder.mkdir()
        self.source = folder / "stream"
        self.source.write_bytes(stream(kind, samples))
        self.seconds: dict[bool, float] = {}
        for name, forked in (("first", False), ("whole", False), ("again", True)):  # the first one compiles
            if self.finish(folder / name, False, forked):
                raise SystemExit(f"the undisturbed run on {kind} failed.")
            if lost := self.differs(folder / name):
                raise SystemExit(f"two undisturbed runs on {kind} differ: {lost}.")

    def start(self, run: Path, pipe: bool, forked: bool) -> Started:
        place = run.with_suffix(".place")
        place.write_bytes(bytes(2))
        if (run / "settings.toml").exists():
            arguments = ["resume", run, "--quiet"]
        else:
            arguments = ["train", "-" if pipe else self.source, "--out", run, *KINDS[self.kind]]
        return Started((str(place), str(self.source) if pipe else "", list(map(str, arguments))), forked)

    def finish(self, run: Path, pipe: bool, forked: bool) -> int | None:
        """Let a run end. The duration of a new run is the expected one of the next run of its kind.

        Args:
            run: the run folder.
            pipe: send the stream through a pipe.
            forked: fork the process.

        Returns:
            The exit code.
        """
        new, started = not run.exists(), self.start(run, pipe, forked)
        code = started.wait()
        if new:
            self.seconds[forked] = time.monotonic() - started.began
        return code

    def lives(self, run: Path, forked: bool) -> float:
        """The expected seconds until a run ends. About half of a whole run is learning and writing.

        Args:
            run: the run folder, whose newest checkpoint shows how much is done.
            forked: whether the process is forked.
        """
        found = checkpoints(run / "checkpoints")
        done = int(found[-1].name[:15]) / self.samples if found else 0
        return self.seconds[forked] * (1 - done / 2)

    def kill(self, run: Path, pipe: bool, forked: bool, chance: random.Random) -> str | None:
        """Start a run, and kill it after a random time.

        Args:
            run: the run folder.
            pipe: send the stream through a pipe.
            forked: fork the process.
            chance: the source of random numbers.

        Returns:
            The phase in which it was killed; None if it had already ended.
        """
        started = self.start(run, pipe, forked)
        if started.wait(chance.uniform(0, SOON if chance.random() < 0.2 else self.lives(run, forked))) is None:
            phase, writing = run.with_suffix(".place").read_bytes()
            if started.kill():
                return storm_child.WRITING if writing else storm_child.PHASES[phase]
        return None

    def differs(self, run: Path) -> str | None:
        """The part of a run that differs from the undisturbed one; None if all are equal.

        Args:
            run: the run folder.
        """
        pair = (run, self.folder / "first")
        ours, theirs = (read(checkpoints(folder / "checkpoints")[-1])[0] for folder in pair)
        if {name: array.tobytes() for name, array in ours.items()} != {n: a.tobytes() for n, a in theirs.items()}:
            return "parameters"
        lines = [[{**line, "seconds": None} for line in read_log(folder / "metrics.jsonl")] for folder in pair]
        if lines[0] != lines[1]:
            return "metrics"
        logs = [(folder / "predictions.jsonl").read_bytes() for folder in pair]
        return None if logs[0] == logs[1] else "predictions"


class Tally:
    """The result so far, as a record that the next storm with the same options continues.

    Args:
        path: the folder of the record.
        options: the options of the storm.
    """

    def __init__(self, path: Path, options: dict[str, Any]):
        self.path, fresh = path, {"settings": options, **versions()}
        before = read_records(path).get("storm", {})
        goes_on = all(before.get(name) == value for name, value in fresh.items())
        self.record = before if goes_on else {**fresh, "runs": 0, "kills": 0, "losses": [], "seconds": 0.0}
        self.on, self.fell = Counter(self.record.get("on", {})), Counter(self.record.get("fell", {}))
        self.since, self.lock = time.monotonic(), Lock()

    def add(self, killed: Counter, fell: Counter, lost: str | None) -> None:
        """Add the result of one run.

        Args:
            killed: kills by stream.
            fell: kills by phase.
            lost: the difference from the undisturbed run; None if there is none.
        """
        with self.lock:
            self.on.update(killed)
            self.fell.update(fell)
            self._write(killed.total(), lost)

    def _write(self, kills: int, lost: str | None) -> None:
        record, now = self.record, time.monotonic()
        record["runs"] += 1
        record["kills"] += kills
        record["losses"] += [lost] if lost else []
        record |= {"on": dict(self.on.most_common()), "fell": dict(self.fell.most_common())}
        record |= {"seconds": round(record["seconds"] + now - self.since, 1)}
        self.since = now
        write_record(self.path, "storm", record)
        words = f"{record['kills']} kills, {record['runs']} runs, {len(record['losses'])} losses"
        print(words, file=sys.stderr, flush=True)


def one_run(storm: Storm, number: int, seed: int) -> tuple[Counter, Counter, str | None]:
    """Kill a run up to `MOST` times, and let it end.

    Args:
        storm: the stream.
        number: the number of the run.
        seed: the seed of the storm.

    Returns:
        Kills by stream, kills by phase, and the difference from the undisturbed run; None if there is none.
    """
    chance = random.Random(f"{seed} {number}")
    pipe, forked, left = chance.random() < 0.3, chance.random() < 2 / 3, chance.randint(1, MOST)
    run, killed, fell = storm.folder / f"run{number}", Counter(), Counter()
    while left and (where := storm.kill(run, pipe, forked, chance)):
        left -= 1
        killed[f"{storm.kind}, {'pipe' if pipe else 'file'}"] += 1
        fell[where] += 1
    code = storm.finish(run, pipe, forked)
    lost = f"exit code {code}" if code else storm.differs(run)
    if not lost:
        shutil.rmtree(run)
    return killed, fell, f"run {number} on {storm.kind}: {lost}" if lost else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--samples", type=int, default=100_000, help="samples in each stream")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the record")
    options = parser.parse_args()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, "tools.storm_child"])
    tally = Tally(options.out, {"kills": options.kills, "samples": options.samples, "seed": options.seed})
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(folder) / "cache")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        storms = [Storm(Path(folder) / kind, kind, options.samples) for kind in KINDS]
        numbers = count(tally.record["runs"] + 1)

        def work(_: int) -> None:
            while tally.record["kills"] < options.kills:
                number = next(numbers)
                tally.add(*one_run(storms[number % len(storms)], number, options.seed))

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(work, range(options.jobs)))
    record = tally.record
    print(f"{record['kills']} kills of {record['runs']} runs (seed {options.seed}); {len(record['losses'])} losses")
    for title, counts in (("on", tally.on), ("fell during", tally.fell)):
        print(f"{title}: " + ", ".join(f"{name} {count}" for name, count in counts.most_common()))
    print("".join(f"LOST: {loss}\n" for loss in record["losses"]), end="")
    sys.exit(bool(record["losses"]))


if __name__ == "__main__":
    main()
