"""`make storm`: kill real runs at random moments, and compare them with undisturbed runs.

Every run is killed several times (SIGKILL, at a uniformly random moment of its duration, sometimes again right after
the next start), resumed each time, left to finish, and compared with an undisturbed one: parameters, metrics (except
for times), predictions and keys, byte for byte. A third of the runs are started like a user's; the others are forked
from a process that has imported everything, so that more kills hit compiling, learning and writing. Shards lose their
parent, a worker, or everything. The tally is written after every run, and an interrupted storm continues with it.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from norewind.storage.checkpoint import checkpoints
from norewind.sweeps.record import read_records, versions, write_record
from norewind.sweeps.shards import shard_folders
from tools import storm_child
from tools.same_end import difference
from tools.storm_kinds import BEFORE_SERVICE, KINDS, stream
from tools.storm_process import EVERYTHING, PARENT, PATIENCE, WORKER, Started
from tools.storm_service import Client, free_port

OUT = Path(__file__).parent.parent / "results/storm"
PRELOADED = [
    "norewind.cli",
    "norewind.training.train_folder",
    "norewind.training.progress",
    "norewind.plotting.figures",
    "norewind.serving.app",
]
SOON = 0.3
"""A fifth of the kills fall within this many seconds of the start."""


class Storm:
    """One kind of run, with its undisturbed run.

    Args:
        folder: a new folder for the stream and its runs.
        name: the name of the kind.
        samples: the number of samples in the longest stream.

    Attributes:
        problems: what else went wrong, by run.
    """

    def __init__(self, folder: Path, name: str, samples: int):
        self.folder, self.name, self.kind = folder, name, KINDS[name]
        self.samples = int(samples * self.kind.share)
        self.problems: dict[Path, str] = {}
        folder.mkdir()
        self.source = folder / f"stream.{self.kind.stream}"
        content = stream(self.kind.stream, self.samples)
        self.source.write_bytes(content)
        if self.kind.served:
            self.rows = [json.loads(line) for line in content.splitlines()]
            before = folder / f"before.{self.kind.stream}"
            before.write_bytes(b"".join(content.splitlines(keepends=True)[:BEFORE_SERVICE]))
            self._expect(self._run(folder / "base", ["train", before, "--out", folder / "base", *self.kind.options]))
        self.seconds: dict[bool, float] = {}
        for run, forked in (("first", False), ("whole", False), ("again", True)):  # the first one compiles
            self._expect(self.finish(folder / run, False, forked))
            if lost := self.differs(folder / run):
                raise SystemExit(f"two undisturbed runs of {name} differ: {lost}.")

    def _expect(self, problem: str | None) -> None:
        if problem:
            raise SystemExit(f"the undisturbed run of {self.name} failed: {problem}.")

    def _run(self, run: Path, arguments: list) -> str | None:
        code = self._process(run, arguments, False, False).wait()
        return f"exit code {code}" if code else None

    def _process(self, run: Path, arguments: list, pipe: bool, forked: bool) -> Started:
        place = run.with_suffix(".place")
        place.write_bytes(bytes(2))
        return Started((str(place), str(self.source) if pipe else "", list(map(str, arguments))), forked)

    def start(self, run: Path, pipe: bool, forked: bool) -> tuple[Started, Client | None]:
        """Start or resume a run.

        Args:
            run: the run folder.
            pipe: send the stream through a pipe.
            forked: fork the process.

        Returns:
            The process, and the client that sends rows if it is a service.
        """
        if self.kind.served:
            if not run.exists():
                shutil.copytree(self.folder / "base", run)
            port = free_port()
            started = self._process(run, ["serve", run, "--port", port], False, forked)
            end = partial(os.kill, started.pid, signal.SIGTERM)
            client = Client(port, self.rows, end, lambda: not started.over.is_set())
            client.start()
            return started, client
        if (run / "settings.toml").exists():
            arguments = ["resume", run, "--quiet"]
        else:
            arguments = ["train", "-" if pipe else self.source, "--out", run, *self.kind.options]
        return self._process(run, arguments, pipe, forked), None

    def finish(self, run: Path, pipe: bool, forked: bool) -> str | None:
        """Let a run end. The duration of a new run is the expected one of the next run of its kind.

        Args:
            run: the run folder.
            pipe: send the stream through a pipe.
            forked: fork the process.

        Returns:
            What went wrong; None if nothing did.
        """
        new, (started, client) = not run.exists(), self.start(run, pipe, forked)
        code = started.wait()
        if new:
            self.seconds[forked] = time.monotonic() - started.began
        self._note(run, client, started.outlived())
        problem = self.problems.pop(run, None)
        # A service ends when its client asks it to.
        return problem or (f"exit code {code}" if code != (128 + signal.SIGTERM if client else 0) else None)

    def _note(self, run: Path, client: Client | None, outlived: bool) -> None:
        if client:
            client.join()
            if client.problem:
                self.problems.setdefault(run, client.problem)
        if outlived:
            self.problems.setdefault(run, f"its workers did not notice for {PATIENCE:g} s that their parent was killed")

    def lives(self, run: Path, forked: bool) -> float:
        """The expected seconds until a run ends. About half of a whole run is learning and writing.

        Args:
            run: the run folder, whose latest checkpoint shows how much is done.
            forked: whether the process is forked.
        """
        found = checkpoints(self.folders(run)[0] / "checkpoints")
        done = int(found[-1].name[:15]) / self.samples if found else 0
        return self.seconds[forked] * (1 - done / 2)

    def folders(self, run: Path) -> list[Path]:
        """Return the folders with the checkpoints of a run."""
        return shard_folders(run, self.kind.shards) if self.kind.shards else [run]

    def kill(self, run: Path, pipe: bool, forked: bool, whom: str, chance: random.Random) -> str | None:
        """Start a run, and kill it after a random time.

        Args:
            run: the run folder.
            pipe: send the stream through a pipe.
            forked: fork the process.
            whom: which of its processes to kill.
            chance: the source of random numbers.

        Returns:
            The phase in which it was killed; None if it had already ended.
        """
        started, client = self.start(run, pipe, forked)
        phase = None
        if started.wait(chance.uniform(0, SOON if chance.random() < 0.2 else self.lives(run, forked))) is None:
            number, writing = run.with_suffix(".place").read_bytes()
            if started.kill(whom, chance):
                phase = storm_child.WRITING if writing else storm_child.PHASES[number]
        self._note(run, client, started.outlived())
        return phase

    def differs(self, run: Path) -> str | None:
        """The part of a run that differs from the undisturbed one; None if all are equal.

        Args:
            run: the run folder.
        """
        pairs = zip(self.folders(run), self.folders(self.folder / "first"), strict=True)
        return next((lost for pair in pairs if (lost := difference(*pair))), None)


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
        self.since, self.lock = time.monotonic(), threading.Lock()

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
    """Kill a run several times, and let it end.

    Args:
        storm: the stream.
        number: the number of the run.
        seed: the seed of the storm.

    Returns:
        Kills by stream, kills by phase, and the difference from the undisturbed run; None if there is none.
    """
    chance = random.Random(f"{seed} {number}")
    kind = storm.kind
    left = chance.randint(1, kind.most)
    pipe, forked = kind.pipe and chance.random() < 0.3, chance.random() < 2 / 3
    run, killed, fell = storm.folder / f"run{number}", Counter(), Counter()
    while left and run not in storm.problems:
        whom = chance.choice((EVERYTHING, PARENT, WORKER)) if kind.shards else EVERYTHING
        if not (where := storm.kill(run, pipe, forked, whom, chance)):
            break
        left -= 1
        how = whom if kind.shards else "requests" if kind.served else "pipe" if pipe else "file"
        killed[f"{storm.name}, {how}"] += 1
        fell[where] += 1
    lost = storm.finish(run, pipe, forked) or storm.differs(run)
    if not lost:
        shutil.rmtree(run)
    return killed, fell, f"run {number} of {storm.name}: {lost}" if lost else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--samples", type=int, default=100_000, help="samples in each stream")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS], help="kinds of runs")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the record")
    options = parser.parse_args()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, "tools.storm_child"])
    chosen = {name: getattr(options, name) for name in ("kills", "samples", "seed", "kinds")}
    tally = Tally(options.out, chosen)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(folder) / "cache")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        numbers = count(tally.record["runs"] + 1)

        def prepare(name: str) -> Storm:
            return Storm(Path(folder) / name.replace(" ", "-"), name, options.samples)

        def work(_: int) -> None:
            while tally.record["kills"] < options.kills:
                number = next(numbers)
                tally.add(*one_run(storms[number % len(storms)], number, options.seed))

        with ThreadPoolExecutor(options.jobs) as pool:
            storms = list(pool.map(prepare, options.kinds))
            list(pool.map(work, range(options.jobs)))
    record = tally.record
    print(f"{record['kills']} kills of {record['runs']} runs (seed {options.seed}); {len(record['losses'])} losses")
    for title, counts in (("on", tally.on), ("fell during", tally.fell)):
        print(f"{title}: " + ", ".join(f"{name} {count}" for name, count in counts.most_common()))
    print("".join(f"LOST: {loss}\n" for loss in record["losses"]), end="")
    sys.exit(bool(record["losses"]))


if __name__ == "__main__":
    main()
