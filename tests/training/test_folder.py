"""Run folders: locking, and checkpoints, settings and logs that are damaged or contradict each other."""

import fcntl
import platform
import shutil
from pathlib import Path

import jax
import pytest
from run_folders import (
    SMALL,
    TEXT,
    assert_rejected,
    everything,
    flip,
    latest,
    norewind,
)

from norewind import __version__
from norewind.storage.checkpoint import FORMAT, CheckpointError, checkpoints, read
from norewind.storage.files import write_atomically
from norewind.training.folder import MARKER, read_settings
from norewind.training.log import read_log

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.mark.parametrize("command", ["train", "resume", "predict", "sample", "plot"])
def test_a_folder_that_cannot_be_created_is_rejected(whole, tmp_path, capsys, command):
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "run"
    arguments = [whole / "text", "--out", below] if command == "train" else [below]
    assert_rejected(capsys, norewind(command, *arguments), str(tmp_path / "file"))


def test_a_read_only_folder_is_rejected(whole, tmp_path, capsys, monkeypatch):
    def denied(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", denied)
    code = norewind("train", whole / "text", "--out", tmp_path / "run", *TEXT)
    assert_rejected(capsys, code, f"{tmp_path / 'run'}: Permission denied")


def test_a_folder_belongs_to_one_process(whole, tmp_path, capsys):
    run = tmp_path / "run"
    assert norewind("train", whole / "text", "--out", run, *TEXT, "--samples", 600) == 0
    with (run / "predictions.jsonl").open("ab") as log:
        log.write(b"being written by another process\n")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with (run / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (["train", whole / "text", "--out", run, *TEXT], ["resume", run, "--damaged", "skip"]):
            assert_rejected(capsys, norewind(*command), f"{run}: another process is training in it")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_folder_that_holds_a_run_is_rejected(whole, capsys):
    before = everything(whole / "bytes")
    code = norewind("train", whole / "text", "--out", whole / "bytes", *TEXT, "--seed", 3)
    assert_rejected(capsys, code, "already holds a run", f"norewind resume {whole / 'bytes'}", "another folder")
    assert everything(whole / "bytes") == before
    assert read_settings(whole / "bytes").seed == 0


def test_a_mistake_leaves_the_folder_unlocked(whole, tmp_path, capsys):
    for wrong in (("nothing.txt",), (whole / "text", "--method", "magic"), (whole / "table.csv", "--inputs", "moon")):
        assert_rejected(capsys, norewind("train", *wrong, "--out", tmp_path / "run"))
        assert not (tmp_path / "run" / "settings.toml").exists()
    (tmp_path / "empty").write_bytes(b"")
    assert_rejected(capsys, norewind("train", tmp_path / "empty", "--out", tmp_path / "run", *TEXT), "empty")
    assert norewind("train", whole / "text", "--out", tmp_path / "run", *TEXT, "--samples", 0) == 0


def test_a_damaged_checkpoint_is_rejected_or_skipped(whole, tmp_path, capsys):
    run = tmp_path / "run"
    assert norewind("train", whole / "text", "--out", run, *TEXT) == 0
    kept = checkpoints(run / "checkpoints")
    flip(kept[-1], -3)
    for command in ("resume", "predict", "sample"):
        code = norewind(command, run)
        assert_rejected(capsys, code, f"{kept[-1]}: damaged", f"norewind resume {run} --damaged skip")
    flip(kept[-2], 100)
    assert norewind("resume", run, "--damaged", "skip") == 0
    output = capsys.readouterr().err
    assert output.count("Continuing from the previous one") == 2
    assert everything(run) == everything(whole / "bytes")
    assert {path.suffix for path in (run / "checkpoints").iterdir()} == {".safetensors", ".damaged"}


def test_no_run_silently_starts_over(whole, tmp_path, capsys):
    run = tmp_path / "run"
    assert norewind("train", whole / "text", "--out", run, *TEXT, "--samples", 600, "--keep", 1) == 0
    flip(latest(run), -3)
    code = norewind("resume", run, "--damaged", "skip", "--quiet")
    assert_rejected(capsys, code, "all its checkpoints are damaged")
    assert len(read_log(run / "metrics.jsonl")) == 2
    assert len(checkpoints(run / "checkpoints")) == 1


@pytest.mark.parametrize("number", [1, FORMAT - 1, FORMAT + 1])
def test_a_checkpoint_of_another_format_is_rejected_and_never_skipped(whole, tmp_path, capsys, monkeypatch, number):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("norewind.storage.checkpoint.FORMAT", number)
        patch.setattr("norewind.__version__", "0.0.7")
        assert norewind("train", whole / "text", "--out", run, *TEXT, "--samples", 300) == 0
    for command in (["resume", run], ["resume", run, "--damaged", "skip"], ["predict", run]):
        code = norewind(*command)
        words = f"has format {number} and was written by norewind 0.0.7", "Use the version that wrote it"
        assert_rejected(capsys, code, *words)
    assert latest(run).exists()


def test_another_version_of_jax_is_named_and_the_run_continues(whole, tmp_path, capsys, monkeypatch):
    run, options = tmp_path / "run", TEXT[:-1]
    with monkeypatch.context() as patch:
        patch.setattr(jax, "__version__", "0.0.7")
        assert norewind("train", whole / "text", "--out", run, *options, "--samples", 300) == 0
    entries = read(latest(run))[1]
    assert (entries["jax"], entries["python"], entries["version"]) == ("0.0.7", platform.python_version(), __version__)
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
        ("hidden", "= 3", ["not a valid TOML file"]),
    ],
)
def test_settings_that_contradict_a_checkpoint_are_rejected(whole, tmp_path, capsys, name, value, words):
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoints").symlink_to(whole / "bytes" / "checkpoints")
    lines = (whole / "bytes" / "settings.toml").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(f"{name} ")]
    (run / "settings.toml").write_text("\n".join([*kept, f"{name} = {value}"]))
    for command in ("resume", "predict", "sample"):
        assert_rejected(capsys, norewind(command, run), str(run / "settings.toml"), *words)


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


def test_a_truncated_log_is_rejected(whole, tmp_path, capsys):
    run = tmp_path / "run"
    assert norewind("train", whole / "text", "--out", run, *TEXT, "--samples", 600) == 0
    (run / "metrics.jsonl").write_text("")
    assert_rejected(
        capsys,
        norewind("resume", run, "--samples", 900),
        "metrics.jsonl has only 0 of the",
        "Restore the missing lines",
    )


@pytest.mark.parametrize("name", ["settings.toml", "metrics.jsonl", "notes.txt", "lock"])
def test_a_folder_that_is_not_ours_is_rejected(whole, tmp_path, capsys, name):
    run = tmp_path / "run"
    run.mkdir()
    (run / name).write_text("mine")
    code = norewind("train", whole / "text", "--out", run, *SMALL)
    assert_rejected(capsys, code, f"{run} is not empty", "another folder")
    assert {path.name: path.read_text() for path in run.iterdir()} == {name: "mine"}


@pytest.mark.parametrize(
    "options",
    [("nothing",), ("text", "--method", "magic"), ("empty",), ("text", "--format", "csv")],
    ids=lambda o: o[-1],
)
def test_a_failed_start_leaves_no_folder(tmp_path, options):
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_bytes(b'"')
    assert norewind("train", tmp_path / options[0], "--out", tmp_path / "runs" / "run", *SMALL, *options[1:]) == 1
    assert not (tmp_path / "runs").exists()


def test_a_run_killed_before_its_first_checkpoint_can_start_over(whole, tmp_path):
    for place, content in (("lock", MARKER), ("settings.toml", b"seed = 3\n"), ("metrics.jsonl", b"{")):
        write_atomically(tmp_path / "run" / place, content)
    write_atomically(tmp_path / "empty" / "lock", b"")
    write_atomically(tmp_path / "cut" / "lock", MARKER[:20])
    for name in ("run", "empty", "cut"):
        assert norewind("train", whole / "text", "--out", tmp_path / name, *TEXT) == 0
        assert everything(tmp_path / name) == everything(whole / "bytes")


@pytest.mark.parametrize(
    "line", [b"[]", b"3", b'{"loss": "low"}', b'{"samples": [1]}', b'{"loss": 1e999}', b"[" * 99_999]
)
def test_metrics_written_by_another_program_are_rejected(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"samples": 3, "loss": null}\n' + line + b"\n")
    with pytest.raises(CheckpointError, match="line 2: not a line that norewind wrote"):
        read_log(tmp_path / "metrics.jsonl")


def test_a_run_does_not_learn_from_its_own_predictions(whole, tmp_path, capsys):
    shutil.copytree(whole / "bytes", tmp_path / "run")
    code = norewind("resume", tmp_path / "run", "--source", tmp_path / "run" / "predictions.jsonl")
    assert_rejected(capsys, code, "one of this run's own logs", "Copy it first")


def test_a_start_that_fails_after_its_settings_were_saved_leaves_no_folder(whole, tmp_path, monkeypatch):
    """Even if the mistake is ours."""

    def fail(*_, **__):
        raise RuntimeError("ours")

    monkeypatch.setattr("norewind.training.train_folder.fit", fail)
    for source, options in ((whole / "table.csv", SMALL), (whole / "text", TEXT)):
        with pytest.raises(RuntimeError, match="ours"):
            norewind("train", source, "--out", tmp_path / "new" / "run", *options)
        assert not (tmp_path / "new").exists()
