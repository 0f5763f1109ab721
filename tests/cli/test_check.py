"""`norewind check` names everything that is damaged in a run folder, and run folders of other versions are read."""

import os
import shutil
import sqlite3
from pathlib import Path

import filelock
import pytest
from kept_runs import ALL, RUNS, unpack
from run_folders import flip, latest, norewind

from norewind.storage import checkpoint
from norewind.storage.checkpoint import CheckpointError, read

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A function that unpacks the run of a kind; its sources are found from the working directory."""
    monkeypatch.chdir(tmp_path)
    return lambda kind: unpack(kind, tmp_path).relative_to(tmp_path)


def checked(capsys, run) -> tuple[int, str]:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and "sqlite-" not in path.name}
    capsys.readouterr()
    code = norewind("check", run)
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and "sqlite-" not in path.name}
    assert after == before, "check changed the folder"
    return code, said.out + said.err


def use(kind, run) -> list[int]:
    """Use a run with all commands that do not need a cluster, and return their exit codes."""
    if kind == "kafka":
        return [norewind("forecast", run, "--steps", 2)]
    codes = [norewind("resume", run, "--quiet")]
    if kind in ("bytes", "text", "lines"):
        return [
            *codes,
            norewind("sample", run, "--length", 3),
            norewind("predict", run, "letters.txt", "--samples", 20),
        ]
    codes.append(norewind("forecast", run))
    return codes if kind in ("fleet", "shards") else [*codes, norewind("predict", run, "rows.csv", "--samples", 20)]


def test_a_run_of_every_kind_is_kept():
    assert sorted(path.name for path in RUNS.iterdir()) == sorted(f"{kind}.tar.gz" for kind in ALL)


@pytest.mark.parametrize(
    "kind", [kind if kind in ("bytes", "fleet") else pytest.param(kind, marks=pytest.mark.slow) for kind in ALL]
)
def test_the_kept_runs_are_read_or_rejected_by_name(kept, capsys, kind):
    run = kept(kind)
    code, said = checked(capsys, run)
    if code == 0:
        assert "nothing is wrong" in said
        assert set(use(kind, run)) == {0}
        assert checked(capsys, run)[0] == 0
    else:
        # Another format: all commands name the version that wrote it.
        assert f"This is norewind {checkpoint.norewind.__version__}, which reads format {checkpoint.FORMAT}" in said
        assert set(use(kind, run)) == {1}
        assert "was written by norewind" in capsys.readouterr().err


def test_the_kept_runs_have_this_format(kept):
    """Remove this test in the commit that reads older formats; remake the runs if older ones are to be rejected."""
    read(latest(kept("rows")))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip_oldest(run: Path) -> None:
    flip(checkpoint.checkpoints(run / "checkpoints")[0])


def flip_all(run: Path) -> None:
    for path in checkpoint.checkpoints(run / "checkpoints"):
        flip(path)


def rename(run: Path) -> None:
    latest(run).rename(run / "checkpoints/copy.safetensors")


def on(name, change):
    return lambda run: change(run / name)


def in_keys(*statements):
    def change(run: Path):
        base = sqlite3.connect(run / "keys.sqlite")
        for statement in statements:
            base.execute(statement)
        base.commit()
        base.close()

    return change


def edit(name, old, new):
    def change(run: Path):
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new, 1))

    return change


WRONG_KEY = "UPDATE runs SET crc = crc + 1 WHERE rowid = (SELECT max(rowid) FROM runs)"
NO_KEY = "DELETE FROM runs WHERE key = (SELECT max(key) FROM runs)"
NOT_KEPT = "only readers of this file need it"
DAMAGES = [
    ("rows", on("lock", flip), "lock: it is not the file", "resume writes it again"),
    ("rows", on("lock", Path.unlink), "lock: missing", "resume writes it again"),
    ("rows", on("settings.toml", Path.unlink), "there is no settings.toml", "horizon = 2"),
    ("rows", on("settings.toml", flip), "settings.toml: not a valid TOML", "has the settings"),
    ("rows", edit("settings.toml", "hidden = 2", "hidden = 3"), "says hidden = 3", "cannot be continued until"),
    ("rows", edit("settings.toml", '"symbol"', '"line"'), "per = 'line'", "cannot be"),
    ("rows", on("columns.json", cut), "columns.json: missing or damaged", NOT_KEPT),
    ("rows", on("columns.json", Path.unlink), "columns.json: missing or damaged", NOT_KEPT),
    ("rows", lambda run: flip(latest(run)), "do not match the checksum", "continue from 100 samples (--damaged skip)"),
    ("rows", lambda run: cut(latest(run)), "do not match the checksum", "continue from 100 samples (--damaged skip)"),
    ("rows", flip_oldest, "do not match the checksum", "a newer one is good"),
    ("rows", flip_all, "do not match the checksum", "no checkpoint is left"),
    ("rows", rename, "copy.safetensors: not the name of a checkpoint", "rename it back"),
    ("rows", lambda run: shutil.rmtree(run / "checkpoints"), "has no checkpoint", "from the beginning"),
    ("rows", on("metrics.jsonl", cut), "metrics.jsonl has only", "the checkpoint of 100 samples fits"),
    ("rows", on("metrics.jsonl", Path.unlink), "metrics.jsonl has only 0 of the", "can still be used"),
    ("rows", on("metrics.jsonl", flip), "not a line that norewind wrote", "can still be used"),
    ("rows", on("predictions.jsonl", cut), "predictions.jsonl has only", "the checkpoint of 100 samples fits"),
    ("rows", edit("predictions.jsonl", '"sample": 60,', '"sample": 20,'), "predictions.jsonl, line 60", "can still"),
    ("rows", lambda run: flip(run.parent / "rows.csv"), "rows.csv", "restore the source"),
    ("lines", on("predictions.jsonl", cut), "predictions.jsonl has only", "can still be used"),
    ("late-labels", on("waiting.json", cut), "waiting.json is damaged", "the run itself is not affected"),
    ("fleet", on("keys.sqlite", Path.unlink), "keys.sqlite does not exist", "cannot be continued"),
    ("fleet", on("keys.sqlite", lambda path: path.write_bytes(b"x" * 50_000)), "cannot be used", "cannot be"),
    ("fleet", in_keys(WRONG_KEY), "the run of key", "other keys"),
    ("fleet", in_keys(NO_KEY), "the checkpoint has 120 samples", "cannot be continued"),
    ("fleet", in_keys("UPDATE about SET value = 'other'"), "trained with another model", "cannot be continued"),
    ("shards", on("shards/0001", shutil.rmtree), "0001: the shard is missing", "starts it over"),
    ("shards", lambda run: flip(latest(run / "shards/0000")), "shards/0000/checkpoints", "(--damaged skip)"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "damage", "problem", "remedy"), DAMAGES)
def test_whatever_is_damaged_is_named(kept, capsys, kind, damage, problem, remedy):
    run = kept(kind)
    damage(run)
    code, said = checked(capsys, run)
    assert code == 1, said
    assert problem in said
    assert remedy.lower() in said.lower()


def test_a_model_saved_from_python_with_a_damaged_description(kept, capsys):
    run = kept("rows")
    (run / "model.json").write_text('{"model": "Fore')
    code, said = checked(capsys, run)
    assert (code, "model.json: missing or damaged" in said) == (1, True)


def test_what_a_crash_leaves_behind_is_not_damage(kept, capsys):
    run = kept("rows")
    (run / "checkpoints/.000000000000130-0.safetensors.12-12.part").write_bytes(b"x")
    flip(checkpoint.checkpoints(run / "checkpoints")[0])
    checkpoint.checkpoints(run / "checkpoints")[0].rename(run / "checkpoints/old.damaged")
    with (run / "metrics.jsonl").open("ab") as log:
        log.write(b'{"samples": 140, "lo')
    assert checked(capsys, run)[0] == 0


def test_a_moved_source_is_not_damage(kept, capsys):
    run = kept("rows")
    os.rename("rows.csv", "elsewhere.csv")
    assert checked(capsys, run)[0] == 0


def test_folders_that_are_no_runs_and_runs_in_training(kept, capsys):
    run = kept("rows")
    assert checked(capsys, run.parent)[0] == 1
    with filelock.FileLock(run / "lock"):
        code, said = checked(capsys, run)
    assert (code, "another process is training in it" in said) == (1, True)


def test_partitions_are_checked_one_by_one(kept, capsys):
    run = kept("rows")
    for number in (0, 1):
        shutil.copytree(run, f"workers/partition-{number}")
    code, said = checked(capsys, Path("workers"))
    assert (code, said.count("nothing is wrong")) == (0, 2)
    cut(latest(Path("workers/partition-1")))
    code, said = checked(capsys, Path("workers"))
    assert (code, said.count("nothing is wrong"), said.count("partition-1/checkpoints")) == (1, 1, 1)


def test_a_checkpoint_of_another_version_is_named(kept, capsys, monkeypatch):
    run = kept("rows")
    monkeypatch.setattr(checkpoint, "FORMAT", checkpoint.FORMAT + 1)
    code, said = checked(capsys, run)
    assert code == 1
    assert f"was written by norewind {checkpoint.norewind.__version__}" in said
    with pytest.raises(CheckpointError, match="was written by norewind"):
        read(latest(run))


def test_a_run_without_samples_is_neither_damaged_nor_used(tmp_path, capsys):
    (tmp_path / "rows.csv").write_text("a\n" + "1\n2\n" * 20)
    run = tmp_path / "run"
    options = ("--samples", 0, "--method", "bptt", "--hidden", 2, "--quiet", "--out", run)
    assert norewind("train", tmp_path / "rows.csv", *options) == 0
    if checkpoint.checkpoints(run / "checkpoints"):
        assert checked(capsys, run)[0] == 0
    assert norewind("forecast", run) == 1
    assert f"Train it first: norewind resume {run}" in capsys.readouterr().err
