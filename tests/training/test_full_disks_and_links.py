"""Disks that fill up or become read-only, folders that vanish, and symbolic links where a run writes."""

import errno
import os
import resource
import shutil
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from run_folders import SMALL, TEXT, assert_rejected, at_sample, everything, latest, norewind

from norewind.training.folder import MARKER
from norewind.training.log import Log

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.mark.parametrize("how", ["folder", "link"])
def test_a_latest_checkpoint_that_cannot_be_read_can_be_skipped(whole, tmp_path, capsys, how):
    shutil.copytree(whole / "bytes", tmp_path / "run")
    path = latest(tmp_path / "run")
    path.unlink()
    path.mkdir() if how == "folder" else path.symlink_to(tmp_path / "nowhere")
    assert_rejected(capsys, norewind("resume", tmp_path / "run"), "cannot be read", "--damaged skip")
    assert norewind("resume", tmp_path / "run", "--damaged", "skip", "--quiet") == 0
    assert everything(tmp_path / "run") == everything(whole / "bytes")


def test_a_folder_that_is_deleted_in_mid_run(whole, tmp_path, monkeypatch, capsys):
    """The run reports it at its next checkpoint, and does not create the folder again."""
    run, times = tmp_path / "run", iter([1])

    def delete():
        for _ in times:  # once
            while run.exists():  # a checkpoint may be written at the same time
                shutil.rmtree(run, ignore_errors=True)

    at_sample(monkeypatch, 600, delete)
    code = norewind("train", whole / "text", "--out", run, *SMALL)
    assert_rejected(capsys, code, str(run))
    assert not run.exists()


@pytest.fixture
def small_disk(tmp_path):
    """A separate file system of 4 MB, which only root may mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("not permitted to mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_filled_in_mid_run(whole, small_disk, monkeypatch, capsys):
    """The last checkpoint is complete, the message names the file, and the resumed run ends the same."""
    run = small_disk / "run"

    def fill():
        with suppress(OSError), (small_disk / "filler").open("ab", 0) as file:
            while True:
                file.write(b"x" * 4_096)

    with monkeypatch.context() as patch:
        at_sample(patch, 600, fill)
        code = norewind("train", whole / "text", "--out", run, *TEXT)
    assert_rejected(capsys, code, str(run), "No space left", "To continue")
    assert_rejected(capsys, norewind("resume", run), str(run), "No space left")
    (small_disk / "filler").unlink()
    assert norewind("resume", run, "--quiet") == 0
    assert everything(run) == everything(whole / "bytes")


def test_a_full_disk_under_a_log_is_named_by_the_log(tmp_path):
    log = Log(tmp_path / "metrics.jsonl")
    log._file.close()
    log._file = open("/dev/full", "ab")  # noqa: SIM115
    with pytest.raises(OSError, match="No space left") as rejected:
        log.write([{"samples": 1}])
    assert rejected.value.filename == str(tmp_path / "metrics.jsonl")


def test_a_disk_that_becomes_read_only(whole, small_disk, monkeypatch, capsys):
    run = small_disk / "run"

    def fails(descriptor):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        at_sample(patch, 600, lambda: patch.setattr("os.fsync", fails))
        code = norewind("train", whole / "text", "--out", run, *TEXT)
    assert_rejected(capsys, code, str(run), "Read-only file system", "To continue")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert_rejected(capsys, norewind("resume", run), str(run), "Read-only file system")
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert norewind("resume", run, "--quiet") == 0
    assert everything(run) == everything(whole / "bytes")


@pytest.mark.parametrize("name", ["lock", "metrics.jsonl", "predictions.jsonl"])
def test_nothing_is_written_through_a_link(whole, tmp_path, capsys, name):
    mine, run = tmp_path / "mine", tmp_path / "run"
    mine.write_text("mine")
    run.mkdir()
    if name != "lock":
        (run / "lock").write_bytes(MARKER)
    (run / name).symlink_to(mine)
    code = norewind("train", whole / "text", "--out", run, *TEXT)
    assert_rejected(capsys, code, "not empty" if name == "lock" else "a symbolic link")
    assert mine.read_text() == "mine"


def test_a_checkpoint_that_is_a_dangling_link(tmp_path, capsys, text):
    (tmp_path / "text").write_bytes(text)
    run = tmp_path / "run"
    assert norewind("train", tmp_path / "text", "--out", run, *TEXT, "--samples", 600) == 0
    (run / "checkpoints" / ("9" * 15 + "-" + "0" * 16 + ".safetensors")).symlink_to(tmp_path / "nowhere")
    assert_rejected(capsys, norewind("resume", run), "cannot be read: No such file")


@contextmanager
def largest_file(size):
    """Limit the size of files in this process, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_last_checkpoint(whole, tmp_path, capsys):
    run = tmp_path / "run"
    with largest_file(80_000):
        code = norewind("train", whole / "text", "--out", run, *TEXT)
    assert_rejected(
        capsys, code, "predictions.jsonl: File too large", f"{latest(run)}, is kept. To continue: norewind resume {run}"
    )
    assert 0 < int(latest(run).name[:15]) < 2_001
    assert norewind("resume", run, "--quiet") == 0
    assert everything(run) == everything(whole / "bytes")


def test_a_disk_too_full_for_a_checkpoint_is_reported(whole, tmp_path, capsys):
    with largest_file(10_000):
        code = norewind("train", whole / "table.csv", "--out", tmp_path / "run", *SMALL, "--hidden", 24)
    assert_rejected(capsys, code, "File too large", "no checkpoint yet")
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []


def test_predictions_to_a_full_device_end_in_one_message(whole, capsys, monkeypatch):
    # Closing flushes it, as Python does at exit; this must not raise another error.
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        code = norewind("predict", whole / "bytes", whole / "text", "--samples", 30)
        monkeypatch.undo()
    assert_rejected(capsys, code, "norewind predict: standard output: No space left on device.\n")
