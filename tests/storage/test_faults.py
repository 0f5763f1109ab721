"""Runs that are killed, lose power or get errors at every change of a file (tools/faults.py)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.fault_disk import KILLED, NAMES_KEPT, POWER_LOST, Change, Disk
from tools.faults import environment_with

needs_compiler = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("cc") is None, reason="a C compiler for Linux is needed"
)
ROOT = Path(__file__).parents[2]
FORGETFUL = "import os, sys; os.fsync = lambda descriptor: None; from tools.faults import main; main()"


def test_a_disk_forgets_what_was_not_synchronised(tmp_path):
    (tmp_path / "old").write_bytes(b"before")
    disk = Disk(tmp_path)
    path = os.fsencode(tmp_path)
    for change in (
        Change("c", 1, 0, path + b"/new", b""),
        Change("w", 1, 0, b"abc", b""),
        Change("s", 1, 0, b"", b""),
        Change("w", 1, 3, b"def", b""),
        Change("m", 2, 0, path + b"/folder", b""),
    ):
        disk.apply(change)
    assert disk.after(KILLED) == {"folder": None, "new": b"abcdef", "old": b"before"}
    assert disk.after(POWER_LOST) == {"old": b"before"}
    assert disk.after(NAMES_KEPT) == {"folder": None, "new": b"abc", "old": b"before"}
    disk.apply(Change("s", tmp_path.stat().st_ino, 0, b"", b""))
    disk.apply(Change("r", 0, 0, path + b"/new", path + b"/old"))
    assert disk.after(KILLED) == {"folder": None, "old": b"abcdef"}
    assert disk.after(POWER_LOST) == {"folder": None, "new": b"abc", "old": b"before"}


def faults(folder, *options, script=("-m", "tools.faults")):
    command = [sys.executable, *script, "--out", folder / "record", *options]
    process = subprocess.run(
        list(map(str, command)), cwd=ROOT, env=environment_with(folder), capture_output=True, text=True, check=False
    )
    record = json.loads((folder / "record" / "records.jsonl").read_text())
    return process.returncode, record, process.stdout + process.stderr


@needs_compiler
def test_some_points_of_a_run(tmp_path):
    code, record, said = faults(tmp_path, "--kinds", "rows", "--points", 12)
    assert code == 0, said
    assert record["changes"] > 12
    assert record["points"] > 60
    assert set(record["outcomes"]) == {"ended the same", "said what was wrong"}


@pytest.mark.slow
@needs_compiler
def test_every_point_of_every_kind_of_run(tmp_path):
    code, _, said = faults(tmp_path)
    assert code == 0, said


@pytest.mark.slow
@needs_compiler
def test_a_program_that_synchronises_nothing_is_found(tmp_path):
    code, record, _ = faults(tmp_path, "--kinds", "rows", "--points", 12, script=("-c", FORGETFUL))
    assert code == 1
    assert any("is gone, although it was reported as written" in problem for problem in record["problems"])
