"""Folders, disks and checkpoints that are not as they should be."""

import fcntl
import platform
import resource
import sys
from contextlib import contextmanager
from pathlib import Path

import jax
import pytest
from run_folders import (
    SMALL,
    TEXT,
    assert_refused,
    everything,
    newest,
    norewind,
)

from norewind import __version__
from norewind.checkpoint import checkpoints, read
from norewind.runs.folder import read_log, settings_of


@contextmanager
def largest_file(size):
    """Files of this process cannot grow beyond a size, like on a full disk."""
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
    assert_refused(
        capsys, code, "predictions.jsonl: File too large", f"{newest(run)}, is kept. To continue: norewind resume {run}"
    )
    assert 0 < int(newest(run).name[:15]) < 2_001
    assert norewind("resume", run, "--quiet") == 0
    assert everything(run) == everything(whole / "bytes")


def test_a_disk_too_full_for_a_checkpoint_says_so(whole, tmp_path, capsys):
    with largest_file(10_000):
        code = norewind("train", whole / "table.csv", "--out", tmp_path / "run", *SMALL, "--hidden", 24)
    assert_refused(capsys, code, "File too large", "no checkpoint yet")
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []


def test_predictions_to_a_full_device_end_in_one_message(whole, capsys, monkeypatch):
    # Closing it flushes it, as Python does at exit: nothing more may go wrong then.
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        code = norewind("predict", whole / "bytes", whole / "text", "--samples", 30)
        monkeypatch.undo()
    assert_refused(capsys, code, "norewind predict: standard output: No space left on device.\n")


@pytest.mark.parametrize("command", ["train", "resume", "predict", "sample", "plot"])
def test_a_folder_that_cannot_be_is_refused(whole, tmp_path, capsys, command):
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "run"
    arguments = [whole / "text", "--out", below] if command == "train" else [below]
    assert_refused(capsys, norewind(command, *arguments), str(tmp_path / "file"))


def test_a_folder_that_may_not_be_written_is_refused(whole, tmp_path, capsys, monkeypatch):
    def denied(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", denied)
    code = norewind("train", whole / "text", "--out", tmp_path / "run", *TEXT)
    assert_refused(capsys, code, f"{tmp_path / 'run'}: Permission denied")


def test_a_folder_belongs_to_one_process(whole, tmp_path, capsys):
    run = tmp_path / "run"
    assert norewind("train", whole / "text", "--out", run, *TEXT, "--samples", 600) == 0
    with (run / "predictions.jsonl").open("ab") as log:
        log.write(b"being written by another process\n")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with (run / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (["train", whole / "text", "--out", run, *TEXT], ["resume", run, "--damaged", "skip"]):
            assert_refused(capsys, norewind(*command), f"{run}: another process is training in it")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_folder_that_holds_a_run_is_refused(whole, capsys):
    before = everything(whole / "bytes")
    code = norewind("train", whole / "text", "--out", whole / "bytes", *TEXT, "--seed", 3)
    assert_refused(capsys, code, "already holds a run", f"norewind resume {whole / 'bytes'}", "--out")
    assert everything(whole / "bytes") == before
    assert settings_of(whole / "bytes").seed == 0


def test_a_mistake_does_not_take_the_folder(whole, tmp_path, capsys):
    for wrong in (("nothing.txt",), (whole / "text", "--method", "magic"), (whole / "table.csv", "--inputs", "moon")):
        assert_refused(capsys, norewind("train", *wrong, "--out", tmp_path / "run"))
        assert not (tmp_path / "run" / "settings.toml").exists()
    (tmp_path / "empty").write_bytes(b"")
    assert_refused(capsys, norewind("train", tmp_path / "empty", "--out", tmp_path / "run", *TEXT), "empty")
    assert norewind("train", whole / "text", "--out", tmp_path / "run", *TEXT, "--samples", 0) == 0


def flip(path, place=-3):
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_refused_or_skipped(whole, tmp_path, capsys):
    run = tmp_path / "run"
    assert norewind("train", whole / "text", "--out", run, *TEXT) == 0
    kept = checkpoints(run / "checkpoints")
    flip(kept[-1])
    for command in ("resume", "predict", "sample"):
        code = norewind(command, run)
        assert_refused(capsys, code, f"{kept[-1]}: damaged", f"norewind resume {run} --damaged skip")
    flip(kept[-2], 100)
    assert norewind("resume", run, "--damaged", "skip") == 0
    said = capsys.readouterr().err
    assert said.count("Continuing from the previous one") == 2
    assert everything(run) == everything(whole / "bytes")
    assert {path.suffix for path in (run / "checkpoints").iterdir()} == {".safetensors", ".damaged"}


def test_nothing_begins_again_in_silence(whole, tmp_path, capsys):
    run = tmp_path / "run"
    assert norewind("train", whole / "text", "--out", run, *TEXT, "--samples", 600, "--keep", 1) == 0
    flip(newest(run))
    code = norewind("resume", run, "--damaged", "skip", "--quiet")
    assert_refused(capsys, code, "all its checkpoints are damaged")
    assert len(read_log(run / "metrics.jsonl")) == 2
    assert len(checkpoints(run / "checkpoints")) == 1


@pytest.mark.parametrize("number", [1, 4, 6])
def test_a_checkpoint_of_another_format_is_refused_and_never_skipped(whole, tmp_path, capsys, monkeypatch, number):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("norewind.checkpoint.FORMAT", number)
        patch.setattr("norewind.__version__", "0.0.7")
        assert norewind("train", whole / "text", "--out", run, *TEXT, "--samples", 300) == 0
    for command in (["resume", run], ["resume", run, "--damaged", "skip"], ["predict", run]):
        code = norewind(*command)
        words = f"has format {number} and was written by norewind 0.0.7", "Use the version that wrote it"
        assert_refused(capsys, code, *words)
    assert newest(run).exists()


def test_another_jax_is_named_and_the_run_goes_on(whole, tmp_path, capsys, monkeypatch):
    run, options = tmp_path / "run", TEXT[:-1]
    with monkeypatch.context() as patch:
        patch.setattr(jax, "__version__", "0.0.7")
        assert norewind("train", whole / "text", "--out", run, *options, "--samples", 300) == 0
    beside = read(newest(run))[1]
    assert (beside["jax"], beside["python"], beside["version"]) == ("0.0.7", platform.python_version(), __version__)
    capsys.readouterr()
    assert norewind("resume", run, "--samples", 600) == 0
    assert (
        f"was trained with JAX 0.0.7, and this is JAX {jax.__version__}: the run continues" in capsys.readouterr().err
    )
    assert norewind("resume", run, "--samples", 900) == 0
    assert "was trained with" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("hidden", "5", ["says hidden = 5, but the checkpoint was made with 4", "Change it back"]),
        ("seed", "1", ["says seed = 1"]),
        ("method", '"rtrl"', ["says method = 'rtrl', but the checkpoint was made with 'uoro:window=3'"]),
        ("format", '"csv"', ["says format = 'csv'"]),
        ("hiden", "5", ["there is no setting 'hiden'", "hidden"]),
        ("hidden", '"5"', ["hidden is '5': Expected int, got str"]),
        ("hidden", "0", ["hidden is 0: Expected int >= 1"]),
        ("hidden", "= 3", ["not a TOML file"]),
    ],
)
def test_settings_that_contradict_a_checkpoint_are_refused(whole, tmp_path, capsys, name, value, words):
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoints").symlink_to(whole / "bytes" / "checkpoints")
    lines = (whole / "bytes" / "settings.toml").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(f"{name} ")]
    (run / "settings.toml").write_text("\n".join([*kept, f"{name} = {value}"]))
    for command in ("resume", "predict", "sample"):
        assert_refused(capsys, norewind(command, run), str(run / "settings.toml"), *words)


def test_settings_that_may_change_do(whole, tmp_path):
    run = tmp_path / "run"
    assert norewind("train", whole / "text", "--out", run, *TEXT, "--samples", 600) == 0
    settings = (run / "settings.toml").read_text()
    for predictions, samples in (("none", 900), ("file", 1_200)):
        (run / "settings.toml").write_text(
            settings.replace('predictions = "file"', f'predictions = "{predictions}"').replace("keep = 3", "keep = 1")
        )
        assert norewind("resume", run, "--samples", samples, "--quiet") == 0
    guesses = [entry["sample"] for entry in read_log(run / "predictions.jsonl")]
    assert guesses == [*range(1, 601), *range(901, 1_201)]
    assert len(checkpoints(run / "checkpoints")) == 1


def test_a_log_that_was_cut_is_refused(whole, tmp_path, capsys):
    run = tmp_path / "run"
    assert norewind("train", whole / "text", "--out", run, *TEXT, "--samples", 600) == 0
    (run / "metrics.jsonl").write_text("")
    assert_refused(
        capsys, norewind("resume", run, "--samples", 900), "metrics.jsonl: has 0 bytes", "Lines were removed"
    )
