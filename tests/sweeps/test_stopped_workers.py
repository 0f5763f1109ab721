"""Runs in several processes are saved, and their processes end, however they are stopped."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from run_folders import norewind, wait_for
from stoppable_runs import __file__ as script

from norewind.cli import train_session
from norewind.storage.checkpoint import checkpoints


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def stopped(command, to, number, begun):
    """Start a command in its own process group, and send a signal once it has begun; returns its exit code."""
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, start_new_session=True, text=True)
    try:
        wait_for(begun, process)
        (os.kill if to == "parent" else os.killpg)(process.pid, number)
        # Standard error is closed only once the workers have also ended.
        process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode


@pytest.mark.parametrize(
    ("to", "number", "code"),
    [
        *(
            pytest.param(to, number, 128 + number, marks=pytest.mark.slow)
            for to, number in (
                ("parent", signal.SIGTERM),
                ("group", signal.SIGTERM),
                ("group", signal.SIGHUP),
                ("group", signal.SIGINT),
            )
        ),
        ("parent", signal.SIGKILL, -9),
    ],
)
def test_workers_save_and_end_with_their_parent(tmp_path, to, number, code):
    pids = [tmp_path / name / "pid" for name in ("one", "two")]

    def begun():
        return all(path.exists() and path.read_text() for path in pids)

    assert stopped([sys.executable, script, tmp_path], to, number, begun) == code
    assert all((path.parent / "saved").exists() for path in pids)
    assert not any(is_alive(path.read_text()) for path in pids)


def test_a_signal_to_a_sharded_run_is_passed_on(tmp_path, monkeypatch, capsys):
    def train_shards(*_, stop, new, **__):
        assert new
        assert not stop()
        signal.raise_signal(signal.SIGHUP)
        assert stop()

    monkeypatch.setattr(train_session, "train_shards", train_shards)
    (tmp_path / "rows.csv").write_text("key,x\na,1\n")
    code = norewind("train", tmp_path / "rows.csv", "--key", "key", "--shards", 2, "--out", tmp_path / "run")
    assert code == 129
    assert "nothing is lost. To continue: norewind resume" in capsys.readouterr().err


@pytest.mark.slow
def test_a_sharded_run_is_continued_after_a_signal(tmp_path):
    rows = "".join(f"s{i * i % 50},{i % 17},{i % 5}\n" for i in range(400_000))
    (tmp_path / "rows.csv").write_text("key,x,y\n" + rows)
    run = tmp_path / "run"
    options = ["--key", "key", "--shards", 2, "--out", run, "--quiet"]
    command = [sys.executable, "-m", "norewind", "train", tmp_path / "rows.csv", *options]
    logs = [run / "shards" / f"000{number}" / "metrics.jsonl" for number in range(2)]

    def begun():
        return all(log.exists() and log.stat().st_size for log in logs)

    assert stopped(command, "group", signal.SIGTERM, begun) == 143
    assert all(checkpoints(log.parent / "checkpoints") for log in logs)
    assert norewind("resume", run, "--quiet") == 0
