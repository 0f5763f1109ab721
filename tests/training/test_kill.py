"""Processes killed at random moments: nothing is lost or repeated, and the result is the same."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from run_folders import comparable

from norewind.storage.checkpoint import checkpoints, read
from norewind.tasks import anbn
from norewind.training.log import read_log

pytestmark = pytest.mark.usefixtures("shared_programs")

SAMPLES = 12_000
OPTIONS = [
    *("--hidden", 8, "--predictions", "file"),
    *("--metrics-every", 1_000, "--checkpoint-every", 500, "--keep", 2, "--quiet"),
]
KINDS = {
    "bytes": ["--format", "bytes", "--samples", SAMPLES, "--method", "uoro:window=2", *OPTIONS],
    # Rows pending for their targets and for their window.
    "rows": ["--format", "csv", "--samples", SAMPLES // 3, "--horizon", 6, "--method", "uoro:window=4", *OPTIONS],
}
# A process that is killed before or after the k-th call of fsync, while it writes metrics or checkpoints.
DYING = """
import os, signal, sys
calls, deadly, fsync = 0, int(sys.argv[1]), os.fsync
def dying(descriptor):
    global calls
    calls += 1
    if calls == deadly and deadly % 2:
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(descriptor)
    if calls == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
os.fsync = dying
from norewind.cli import main
main(sys.argv[2:])
"""


def stage_of(folder, kind):
    """A stream in a file, and an uninterrupted run on it."""
    if kind == "bytes":
        text = anbn()
        (folder / kind).write_text(text.decode(next(text.chunks(0, SAMPLES + 1_000))))
    else:
        values = np.random.default_rng(0).normal(size=SAMPLES // 3 + 1_000).cumsum() % 10
        (folder / kind).write_text("level\n" + "".join(f"{value:.2f}\n" for value in values))
    assert start(folder, "train", folder / kind, "--out", folder / "whole", *KINDS[kind]).wait() == 0
    return folder


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    return stage_of(tmp_path_factory.mktemp("kill"), "bytes")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return stage_of(tmp_path_factory.mktemp("kill"), "rows")


def kind_of(stage):
    return next(kind for kind in KINDS if (stage / kind).exists())


def start(folder, *arguments, script=("-m", "norewind"), pipe=False):
    environment = {
        **os.environ,
        # Hundreds of processes compile the same program.
        "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
    stdin = subprocess.Popen(["cat", folder / kind_of(folder)], stdout=subprocess.PIPE).stdout if pipe else None
    command = [sys.executable, *script, *map(str, arguments)]
    return subprocess.Popen(command, stdin=stdin, stderr=subprocess.PIPE, env=environment)


def begin_or_resume(stage, run, pipe, **how):
    kind = kind_of(stage)
    source = "-" if pipe else stage / kind
    if (run / "settings.toml").exists():
        return start(stage, "resume", run, "--source", source, "--quiet", pipe=pipe, **how)
    return start(stage, "train", source, "--out", run, *KINDS[kind], pipe=pipe, **how)


def kill_at_random(stage, run, pipe, generator):
    """Start a process, kill it somewhere in the middle, and return whether it was still running."""
    process = begin_or_resume(stage, run, pipe)
    if generator.random() < 0.8:
        wait_for_work(run, process)
        time.sleep(generator.expovariate(10))
    else:
        time.sleep(3 * generator.random())
    process.kill()
    return process.wait() == -signal.SIGKILL


def wait_for_work(run: Path, process):
    """Wait until the process has written something new."""
    log = run / "predictions.jsonl"
    before = log.stat().st_mtime_ns if log.exists() else 0
    while process.poll() is None and (not log.exists() or log.stat().st_mtime_ns == before):
        time.sleep(0.005)


def assert_sound(run: Path):
    for path in checkpoints(run / "checkpoints"):
        read(path)


def assert_same_end(run: Path, whole: Path):
    lines, expected = (
        [{**line, "seconds": None} for line in read_log(folder / "metrics.jsonl")] for folder in (run, whole)
    )
    assert lines == expected
    assert (run / "predictions.jsonl").read_bytes() == (whole / "predictions.jsonl").read_bytes()
    (ours, entries), (theirs, expected) = (read(checkpoints(folder / "checkpoints")[-1]) for folder in (run, whole))
    assert entries["samples"] == expected["samples"] >= SAMPLES // 3
    assert comparable(entries["position"]) == comparable(expected["position"])
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert np.array_equal(array, theirs[name], equal_nan=True), name


def survive(stage, run, pipe, kills, seed):
    """Kill a number of times, over as many runs as needed, and compare every run that ends."""
    generator, done, number = random.Random(seed), 0, 0
    while done < kills:
        folder = run / str(number)
        while done < kills and kill_at_random(stage, folder, pipe, generator):
            done += 1
            assert_sound(folder)
        process = begin_or_resume(stage, folder, pipe)
        assert process.wait() == 0, process.stderr.read()
        assert_same_end(folder, stage / "whole")
        number += 1


def test_survives_kills_in_the_middle_of_a_write_and_at_random(stage, tmp_path):
    """One run, alternately from a file and from a pipe, since every process takes seconds."""
    run, generator = tmp_path / "run", random.Random(1)
    for deadly in (4, 5, 7):
        process = begin_or_resume(stage, run, deadly == 5, script=("-c", DYING, str(deadly)))
        assert process.wait() == -signal.SIGKILL
        assert_sound(run)
    for pipe in (True, False):
        kill_at_random(stage, run, pipe, generator)
        assert_sound(run)
    process = begin_or_resume(stage, run, True)
    assert process.wait() == 0, process.stderr.read()
    assert_same_end(run, stage / "whole")


@pytest.mark.slow
def test_rows_survive_a_few_kills(rows, tmp_path):
    survive(rows, tmp_path, pipe=True, kills=2, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("pipe", [False, True], ids=["file", "pipe"])
def test_survives_many_kills(stage, tmp_path, pipe):
    survive(stage, tmp_path, pipe, kills=30, seed=2)


@pytest.mark.slow
def test_rows_survive_many_kills(rows, tmp_path):
    survive(rows, tmp_path, pipe=False, kills=30, seed=4)
