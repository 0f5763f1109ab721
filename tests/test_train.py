"""norewind train, resume, predict, sample and plot, as their users meet them."""

import fcntl
import json
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from run_folders import Pipe, at_sample, cached_build, everything, newest, norewind

from norewind.checkpoint import checkpoints, read
from norewind.streams import ByteStream
from norewind.training import fit as fitting
from norewind.training import predicting, session, watch
from norewind.training.logs import read_log
from norewind.training.model import Shape
from norewind.training.progress import ProgressLine
from norewind.training.session import settings_of
from norewind.training.watch import Diverged, Watch

MODEST = ("--hidden", 4, "--metrics-every", 300, "--checkpoint-every", 250, "--quiet")
SMALL = ("--method", "uoro", *MODEST)
# Windows of three, so that neither metrics nor checkpoints nor the samples are at their ends.
TEXT = ("--method", "uoro:memory=3", "--predictions", "file", *MODEST)
ROWS = ("--predictions", "file", *SMALL)


@pytest.fixture(autouse=True)
def shared_programs(monkeypatch):
    monkeypatch.setattr(session, "build", cached_build)
    monkeypatch.setattr(predicting, "build", cached_build)
    monkeypatch.setattr(session, "draw_curves", lambda *_: None)


@pytest.fixture(autouse=True)
def single_precision():
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture(scope="module")
def text() -> bytes:
    letters = random.Random(0)
    return "".join(letters.choice("abcä") * letters.randint(1, 4) for _ in range(1_000)).encode()[:2_002]


@pytest.fixture(scope="module")
def table() -> bytes:
    values = np.cumsum(np.random.default_rng(0).normal(size=(1_500, 2)), axis=0)
    return b"sun,wind\n" + b"".join(b"%.3f,%.3f\n" % tuple(row) for row in values)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, text, table):
    """Runs that nothing has happened to: on bytes and on rows."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "text").write_bytes(text)
    (folder / "table.csv").write_bytes(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "build", cached_build)
        assert norewind("train", folder / "text", "--out", folder / "bytes", *TEXT) == 0
        assert norewind("train", folder / "table.csv", "--out", folder / "rows", *ROWS) == 0
    assert (folder / "bytes" / "curve.png").read_bytes().startswith(b"\x89PNG")
    return folder


def assert_refused(capsys, code, *words, expected=1):
    """The command failed with this code, and said why in one sentence or two."""
    said = capsys.readouterr().err
    assert code == expected, said
    assert "Traceback" not in said
    for word in words:
        assert word in said
    assert said.startswith("norewind")


# Interruptions.


def test_what_a_run_leaves_behind(whole):
    run = whole / "bytes"
    lines = read_log(run / "metrics.jsonl")
    assert [line["samples"] for line in lines] == [300, 600, 900, 1200, 1500, 1800, 2001]
    assert set(lines[0]) == {"samples", "loss", "mean", "level", "carry", "seconds"}
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines)
    guesses = read_log(run / "predictions.jsonl")
    assert [guess["sample"] for guess in guesses] == list(range(1, 2_002))
    surprise = np.mean([guess["surprise"] for guess in guesses])
    assert lines[-1]["mean"] == pytest.approx(surprise, abs=1e-5)
    # Every 250 samples, at the next end of a window, and at the end.
    assert [int(path.name[:15]) for path in checkpoints(run / "checkpoints")] == [1500, 1752, 2001]


def crash():
    raise RuntimeError("a crash")


@pytest.mark.parametrize("moment", [1, 400, 1_000, 1_990])
def test_a_crash_changes_nothing(whole, tmp_path, monkeypatch, moment):
    with monkeypatch.context() as patch:
        at_sample(patch, moment, crash)
        with pytest.raises(RuntimeError, match="a crash"):
            norewind("train", whole / "text", "--out", tmp_path / "run", *TEXT)
    assert norewind("resume", tmp_path / "run", "--quiet") == 0
    assert everything(tmp_path / "run") == everything(whole / "bytes")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_ends_with_its_code(whole, tmp_path, monkeypatch, capsys, number):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        at_sample(patch, 700, lambda: signal.raise_signal(number))
        assert norewind("train", whole / "table.csv", "--out", run, *ROWS[:-1]) == 128 + number
    said = capsys.readouterr().err
    assert f"Stopped; nothing is lost. To go on: norewind resume {run}" in said
    assert int(newest(run).name[:15]) == 750
    assert norewind("resume", run, "--quiet") == 0
    assert everything(run) == everything(whole / "rows")


def test_a_second_ctrl_c_does_not_wait(whole, tmp_path, monkeypatch, capsys):
    def twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    at_sample(monkeypatch, 700, twice)
    code = norewind("train", whole / "table.csv", "--out", tmp_path / "run", *ROWS)
    assert_refused(capsys, code, "interrupted", expected=130)


def test_a_signal_before_the_first_row_ends_with_its_code(tmp_path, monkeypatch, capsys):
    reading, writing = os.pipe()
    timer = threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGTERM))
    timer.start()
    code = norewind("train", f"/dev/fd/{reading}", "--format", "csv", "--out", tmp_path / "run", *ROWS)
    assert_refused(capsys, code, "stopped before its first row came", expected=143)
    os.close(writing)
    os.close(reading)


def test_resuming_at_the_end_changes_nothing(whole, tmp_path):
    assert norewind("train", whole / "text", "--out", tmp_path / "run", *TEXT) == 0
    before = newest(tmp_path / "run").read_bytes()
    for _ in range(2):
        assert norewind("resume", tmp_path / "run", "--quiet") == 0
    assert newest(tmp_path / "run").read_bytes() == before
    assert everything(tmp_path / "run") == everything(whole / "bytes")


def test_more_samples_make_the_longer_run(whole, tmp_path):
    run = tmp_path / "run"
    assert norewind("train", whole / "text", "--out", run, *TEXT, "--samples", 1_000) == 0
    # Not a multiple of the window: the last one that is whole ends the run.
    assert everything(run)["samples"] == 999
    assert read_log(run / "metrics.jsonl")[-1]["samples"] == 999
    assert norewind("resume", run, "--samples", "1.6e3", "--quiet") == 0
    assert norewind("resume", run, "--quiet") == 0
    assert everything(run)["samples"] == 1_599
    assert norewind("resume", run, "--samples", 1e9, "--quiet") == 0
    assert everything(run) == everything(whole / "bytes")


def test_seconds_go_on_too(whole, tmp_path, monkeypatch):
    """With a clock that moves on by one for every chunk, interruptions do not even change the seconds."""
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(fitting, "time", clock)

    def tick():
        clock.now += 1

    at_sample(monkeypatch, 0, tick)
    assert norewind("train", whole / "text", "--out", tmp_path / "whole", *TEXT) == 0
    for samples in (600, 1_200, 1e9):
        command = (
            ["resume", tmp_path / "run"] if samples > 600 else ["train", whole / "text", "--out", tmp_path / "run"]
        )
        assert norewind(*command, *(TEXT if samples == 600 else ["--quiet"]), "--samples", samples) == 0
    lines, expected = (read_log(tmp_path / name / "metrics.jsonl") for name in ("run", "whole"))
    assert lines == expected
    # A chunk ends at every line and at every checkpoint.
    assert lines[-1]["seconds"] == 13


@pytest.mark.parametrize(("kind", "source", "options"), [("bytes", "text", TEXT), ("rows", "table.csv", ROWS)])
def test_a_file_that_has_grown_goes_on(whole, tmp_path, kind, source, options):
    content = (whole / source).read_bytes()
    # At the end of a line, but not of a window.
    half = content.index(b"\n", len(content) // 2) + 1 if kind == "rows" else 1_000
    (tmp_path / source).write_bytes(content[:half])
    run = tmp_path / "run"
    assert norewind("train", tmp_path / source, "--out", run, *options) == 0
    with (tmp_path / source).open("ab") as file:
        file.write(content[half:])
    assert norewind("resume", run, "--quiet") == 0
    assert everything(run) == everything(whole / kind)


def test_a_pipe_begins_again_or_continues(whole, tmp_path, text):
    run, pieces = tmp_path / "run", [text[i : i + 70] for i in range(0, len(text), 70)]
    with Pipe(text[:700]) as source:
        assert norewind("train", source, "--format", "bytes", "--out", run, *TEXT) == 0
    with Pipe(*pieces[:20]) as source:
        assert norewind("resume", run, "--source", source, "--quiet") == 0
    with Pipe(*pieces[20:]) as source:
        assert norewind("resume", run, "--source", source, "--continues", "--quiet") == 0
    assert everything(run) == everything(whole / "bytes")


def test_rows_come_from_a_pipe_as_from_a_file(whole, tmp_path, table):
    run = tmp_path / "run"
    assert norewind("train", whole / "table.csv", "--out", run, *ROWS, "--samples", 500) == 0
    with Pipe(table[:9_000], table[9_000:]) as source:
        assert norewind("resume", run, "--source", source, "--samples", 1e9, "--quiet") == 0
    assert everything(run) == everything(whole / "rows")


def test_flushing_and_cutting_change_no_bit(whole, tmp_path, monkeypatch, text):
    """But for the last digit of answers that did not wait for their window."""
    pieces = [text[i : i + 130] for i in range(0, len(text), 130)]
    run = tmp_path / "run"
    with Pipe(*pieces[:8], pause=0.03) as source:
        flush = ("--format", "bytes", "--flush", 0.01)
        assert norewind("train", source, "--out", run, *TEXT, *flush) == 0
    # 1040 bytes are 1039 samples: the last one was answered, and is neither answered nor learned from again.
    assert [entry["sample"] for entry in read_log(run / "predictions.jsonl")] == list(range(1, 1_040))
    with Pipe(*pieces[8:], pause=0.03) as source:
        assert norewind("resume", run, "--source", source, "--continues", "--quiet") == 0
    expected = everything(whole / "bytes")
    assert {**everything(run), "predictions": expected["predictions"]} == expected
    guesses = read_log(run / "predictions.jsonl")
    assert len(guesses) == 2_001
    assert_nearly_the_same(guesses, read_log(whole / "bytes" / "predictions.jsonl"))


def assert_nearly_the_same(guesses, expected):
    for guess, other in zip(guesses, expected, strict=False):
        assert guess == {**other, "surprise": guess["surprise"], "probability": guess["probability"]}
        assert guess["surprise"] == pytest.approx(other["surprise"], abs=1e-5)
        assert guess["probability"] == pytest.approx(other["probability"], abs=1e-5)


def test_metrics_do_not_depend_on_chunks(whole, tmp_path, monkeypatch):
    """A loop compiled for another length may round differently, so only what is counted can be compared."""
    monkeypatch.setattr(fitting, "CHUNK", 70)
    assert norewind("train", whole / "table.csv", "--out", tmp_path / "run", *ROWS, "--samples", 700) == 0
    lines, expected = read_log(tmp_path / "run" / "metrics.jsonl"), read_log(whole / "rows" / "metrics.jsonl")
    for line, other in zip(lines[:2], expected[:2], strict=True):
        assert [line[name] for name in ("samples", "level", "persistence")] == [
            other[name] for name in ("samples", "level", "persistence")
        ]
        assert line["loss"] == pytest.approx(other["loss"], rel=1e-5)


def test_a_real_process_answers_soon_and_goes_on_after_sigterm(whole, tmp_path, text):
    run, half = tmp_path / "run", 1_100
    options = ("--format", "bytes", "--flush", 0.2, *TEXT, "--predictions", "stdout", "--out", run)
    process = subprocess.Popen(
        [sys.executable, "-m", "norewind", "train", "-", *map(str, options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    # If it never answers, its end is the answer.
    patience = threading.Timer(200, process.kill)
    patience.start()
    lines = []
    for stop in (301, 602, half):
        # All but the last byte must be answered while the pipe stays open, full window or not.
        process.stdin.write(text[len(lines) + bool(lines) : stop])
        process.stdin.flush()
        began = time.monotonic()
        while len(lines) < stop - 1:
            lines.append(process.stdout.readline())
        # Not the first time, when it compiles. The rest is 0.2 s and a busy machine.
        assert len(lines) <= 300 or time.monotonic() - began < 20
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    patience.cancel()
    assert_nearly_the_same([json.loads(answer) for answer in lines], read_log(whole / "bytes" / "predictions.jsonl"))
    with Pipe(text) as source:
        assert norewind("resume", run, "--source", source, "--quiet") == 0
    expected = everything(whole / "bytes")
    assert {**everything(run), "predictions": expected["predictions"]} == expected


def test_no_patience_at_all_does_not_spin(tmp_path, monkeypatch):
    takes = 0
    take = ByteStream.take

    def counting(self, count, patience=None):
        nonlocal takes
        takes += 1
        return take(self, count, patience)

    monkeypatch.setattr(ByteStream, "take", counting)
    with Pipe(b"abc" * 100, b"", pause=0.5) as source:
        assert norewind("train", source, "--format", "bytes", "--flush", 0, "--out", tmp_path / "run", *TEXT) == 0
    assert takes < 300


# Bad input.


@pytest.mark.parametrize(
    ("name", "content", "options", "words"),
    [
        ("empty", b"", (), ["empty"]),
        ("short", b"a", (), ["byte 1"]),
        ("empty.csv", b"", (), ["empty"]),
        ("header.csv", b"a,b\n", (), ["byte 4"]),
        ("empty.jsonl", b"", (), ["empty"]),
        ("empty.txt", b"", ("--format", "text"), ["empty"]),
        ("cut.csv", b"a,b\n1,2\n2,3\n4", (), ["line 4 (byte 12)", "1 fields", "cut off"]),
        ("cut.jsonl", b'{"a": 1}\n{"a": 2}\n{"a": ', (), ["line 3 (byte 18)", "JSON", "cut off"]),
        ("bad.txt", b"abc\xff\xfedef", ("--format", "text"), ["byte 3", "UTF-8"]),
        ("bad.csv", b"a\n1\n2\n\xff\n", (), ["line 4 (byte 6)", "UTF-8"]),
        ("missing.csv", b"a,b\n1,2\n", ("--inputs", "c"), ["no column 'c'", "'a', 'b'"]),
        ("word.csv", b"a,b\n1,2\n2,3\n3,x\n", (), ["line 4 (byte 12)", "'b'", "'x' is not a number"]),
        ("inf.csv", b"a\n1\n2\ninf\n", (), ["line 4 (byte 6)", "'inf' is too large"]),
        ("nan.csv", b"a\n1\n2\nNaN\n", ("--missing", "fail"), ["line 4 (byte 6)", "'a' has no value"]),
        ("strange.txt", b"abxab", ("--format", "text", "--alphabet", "ab"), ["byte 2", "'x'"]),
        ("full.txt", b"abcab", ("--format", "text", "--alphabet-size", "2"), ["byte 2", "'c'"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_is_refused_with_its_place(tmp_path, capsys, name, content, options, words):
    (tmp_path / name).write_bytes(content)
    code = norewind("train", tmp_path / name, "--out", tmp_path / "run", *SMALL, *options)
    assert_refused(capsys, code, str(tmp_path / name), *words)


def test_bad_input_after_a_checkpoint_leaves_it(whole, tmp_path, capsys, table):
    lines = table.splitlines(True)
    (tmp_path / "table.csv").write_bytes(b"".join([*lines[:800], b"oops,1\n", *lines[801:]]))
    run = tmp_path / "run"
    code = norewind("train", tmp_path / "table.csv", "--out", run, *ROWS)
    assert_refused(capsys, code, "table.csv, line 801 (byte ", "'oops' is not a number", 'bad = "skip"')
    # All before it was learned from and is kept.
    assert int(newest(run).name[:15]) == 798
    (tmp_path / "table.csv").write_bytes(table)
    assert norewind("resume", run, "--quiet") == 0
    assert everything(run) == everything(whole / "rows")


def test_bad_input_is_skipped_and_counted(tmp_path, capsys, table):
    lines = table.splitlines(True)
    (tmp_path / "table.csv").write_bytes(b"".join([*lines[:400], b"oops,1\n", b"1\n", *lines[400:650]]))
    run = tmp_path / "run"
    assert norewind("train", tmp_path / "table.csv", "--out", run, *ROWS[:-1], "--bad", "skip") == 0
    assert "2 bad rows skipped" in capsys.readouterr().err
    lines = read_log(run / "metrics.jsonl")
    assert [line.get("skipped") for line in lines] == [None, {"bad rows": 2}, {"bad rows": 2}]
    # Asked again, it counts them once.
    assert norewind("resume", run) == 0
    assert read_log(run / "metrics.jsonl")[-1]["skipped"] == {"bad rows": 2}


def test_text_that_is_bad_is_skipped_and_counted(tmp_path, capsys):
    (tmp_path / "text").write_bytes(b"abba\xff" * 80 + b"x" * 7)
    options = ("--format", "text", "--alphabet", "ab", "--bad", "skip")
    assert norewind("train", tmp_path / "text", "--out", tmp_path / "run", *TEXT[:-1], *options) == 0
    said = capsys.readouterr().err
    assert "80 " in said
    assert "skipped" in said


def test_a_file_that_shrank_is_refused(tmp_path, capsys, text):
    (tmp_path / "text").write_bytes(text)
    run = tmp_path / "run"
    assert norewind("train", tmp_path / "text", "--out", run, *TEXT, "--samples", 600) == 0
    (tmp_path / "text").write_bytes(text[:500])
    code = norewind("resume", run, "--samples", 900)
    assert_refused(capsys, code, "has only 500 bytes, but the run has read 601")
    (tmp_path / "text").write_bytes(b"?" + text[1:])
    code = norewind("resume", run, "--samples", 900)
    assert_refused(capsys, code, "its first 601 bytes differ")
    read(newest(run))


# Folders, disks and checkpoints.


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
    assert_refused(capsys, code, "File too large", f"{newest(run)}, is kept. To go on: norewind resume {run}")
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
    assert_refused(capsys, code, "norewind predict: No space left on device.\n")


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
    with (run / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (["train", whole / "text", "--out", run, *TEXT], ["resume", run, "--damaged", "skip"]):
            assert_refused(capsys, norewind(*command), f"{run}: another process is working in it")
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
    assert said.count("Going on from the one before") == 2
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


def test_a_checkpoint_of_a_newer_version_is_refused_and_never_skipped(whole, tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("norewind.checkpoint.FORMAT", 2)
        assert norewind("train", whole / "text", "--out", run, *TEXT, "--samples", 300) == 0
    for command in (["resume", run], ["resume", run, "--damaged", "skip"], ["predict", run]):
        code = norewind(*command)
        assert_refused(capsys, code, "has format 2 of norewind", "Install a newer norewind")
    assert newest(run).exists()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("hidden", "5", ["says hidden = 5, but the checkpoint was made with 4", "Put it back"]),
        ("seed", "1", ["says seed = 1"]),
        ("method", '"rtrl"', ["says method = 'rtrl', but the checkpoint was made with 'uoro:memory=3'"]),
        ("format", '"csv"', ["says format = 'csv'"]),
        ("hiden", "5", ["there is no setting 'hiden'", "hidden"]),
        ("hidden", '"5"', ["hidden must be a whole number, not '5'"]),
        ("hidden", "0", ["hidden is 0, but must be at least 1"]),
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


# Settings.


def test_options_go_before_the_file_and_the_file_before_the_defaults(whole, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('hidden = 5\nrate = 1\nstandardise = false\ninputs = ["sun"]\nsamples = 0\n')
    code = norewind(
        *("train", whole / "table.csv", "--config", config, "--rate", 0.5, "--out", tmp_path / "run", "--quiet")
    )
    assert code == 0
    settings = settings_of(tmp_path / "run")
    assert (settings.hidden, settings.rate, settings.standardise, settings.inputs) == (5, 0.5, False, ("sun",))
    assert (settings.cell, settings.format) == ("gru", "csv")
    # The settings of a run make the same run once more.
    assert (
        norewind("train", "--config", tmp_path / "run" / "settings.toml", "--out", tmp_path / "again", "--quiet") == 0
    )
    assert settings_of(tmp_path / "again") == settings


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"hiden = 5", "there is no setting 'hiden': choose from source, format"),
        (b"hidden = 5.5", "hidden must be a whole number, not 5.5"),
        (b"hidden = true", "hidden must be a whole number, not True"),
        (b'rate = "fast"', "rate must be a number, not 'fast'"),
        (b"rate = inf", "rate is inf, but must be a finite number"),
        (b"watch = 1", "watch must be a truth value (true or false), not 1"),
        (b'cell = "magic"', "cell must be one of elman, gru"),
        (b"cell = 3", "cell must be one of elman, gru"),
        (b'inputs = "sun"', "inputs must be a list of texts, not 'sun'"),
        (b"inputs = [1]", "inputs must be a list of texts, not [1]"),
        (b"[hidden]\nsize = 3", "hidden must be a whole number"),
        (b"hidden = ", "not a TOML file"),
        (b"\xff", "not a TOML file"),
    ],
)
def test_a_config_that_is_wrong_is_refused_in_words(whole, tmp_path, capsys, content, words):
    (tmp_path / "config.toml").write_bytes(content)
    code = norewind("train", whole / "text", "--config", tmp_path / "config.toml", "--out", tmp_path / "run")
    assert_refused(capsys, code, f"{tmp_path / 'config.toml'}: {words}")
    assert not (tmp_path / "run").exists()


def test_a_config_that_is_not_there_is_refused(whole, tmp_path, capsys):
    code = norewind("train", whole / "text", f"--config={tmp_path / 'none.toml'}")
    assert_refused(capsys, code, "none.toml: cannot be read: No such file")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--hidden", 0], "hidden is 0, but must be at least 1"),
        (["--seed", -1], "seed is -1, but must be from 0"),
        (["--samples", "inf"], "samples is inf"),
        (["--samples", "nan"], "samples is nan"),
        (["--rate", 0], "rate is 0.0, but must be above 0"),
        (["--flush", -1], "flush is -1.0"),
        (["--delimiter", ";;"], "delimiter is ';;'"),
        (["--method", "uoro:memory=0"], "memory must be a whole number from 1"),
        (["--method", "dni:rate=fast"], "rate must be a number, not 'fast'"),
        (["--method", "bpdc"], "method bpdc does not go with cell gru"),
    ],
)
def test_impossible_options_are_refused_in_words(whole, tmp_path, capsys, options, words):
    assert_refused(capsys, norewind("train", whole / "text", "--out", tmp_path / "run", *options), words)


def test_a_source_is_needed(capsys):
    assert_refused(capsys, norewind("train"), "no source: name anbn, brackets, a file")


# Divergence.


def test_numbers_that_blow_up_end_with_a_code_of_their_own(tmp_path, capsys):
    rows = [str(i % 7 / 10) for i in range(600)]
    rows[550] = "1e30"
    (tmp_path / "table.csv").write_text("\n".join(["a", *rows, ""]))
    run = tmp_path / "run"
    code = norewind("train", tmp_path / "table.csv", "--out", run, *SMALL, "--no-standardise")
    # Row 551 is the target of sample 550.
    words = ["the run diverged: sample 550 gave numbers that are not finite", f"{newest(run)}, is kept", "--rate"]
    assert_refused(capsys, code, *words, expected=3)
    assert int(newest(run).name[:15]) == 500
    assert norewind("predict", run, "--samples", 20) == 0


def test_a_carry_that_grows_ends_with_a_code_of_its_own(whole, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(watch, "CARRY_LIMIT", 1e-9)
    run = tmp_path / "run"
    code = norewind("train", whole / "table.csv", "--out", run, *SMALL)
    words = ["the run diverged: by sample 300 the carry has grown beyond all bounds", "is kept"]
    assert_refused(capsys, code, *words, expected=3)
    assert int(newest(run).name[:15]) == 250
    code = norewind("train", whole / "table.csv", "--out", tmp_path / "off", *SMALL, "--no-watch")
    assert code == 0


def line(loss, carry=1.0, level: float | None = 2.0):
    return {"samples": 10, "loss": loss, "carry": carry, "level": level}


def test_watch_wants_to_have_seen_something_learned():
    watching = Watch()
    for _ in range(50):
        watching.see(line(9.0))
    assert watching.healthy


def test_watch_tells_a_divergence_from_an_odd_stretch():
    watching = Watch()
    for loss in [1.0] * 5 + [9.0] * 4:
        watching.see(line(loss))
    assert not watching.healthy
    watching.see(line(1.9))
    assert watching.healthy
    for _ in range(4):
        watching.see(line(9.0))
    # Saved and restored, it is as suspicious as before.
    watching = Watch(json.loads(json.dumps(watching.entries())))
    assert not watching.healthy
    with pytest.raises(Diverged, match=r"at sample 10 the loss \(9\) .* \(2\) for 5 lines"):
        watching.see(line(9.0))


def test_watch_counts_learned_lines_in_a_row():
    watching = Watch()
    for loss in [1.0, 1.0, 1.0, 1.0, 1.95] * 3 + [9.0] * 20:
        watching.see(line(loss))
    assert watching.healthy


def test_watch_knows_negative_levels():
    """A Gaussian's loss may be below zero."""
    watching = Watch()
    for _ in range(5):
        watching.see(line(-1.05, level=-1.0))
    assert watching.good == 0
    for _ in range(5):
        watching.see(line(-1.2, level=-1.0))
    assert watching.good == 5


@pytest.mark.parametrize("carry", [None, 1e7])
def test_watch_bounds_the_carry(carry):
    with pytest.raises(Diverged, match="carry has grown beyond all bounds"):
        Watch().see(line(1.0, carry=carry))


def test_watch_lives_with_lines_that_say_nothing():
    watching = Watch()
    watching.see(line(None))
    watching.see(line(1.0, level=None))
    assert watching.healthy


# Putting a run to use.


def predicted(capsys, *arguments):
    capsys.readouterr()
    assert norewind("predict", *arguments) == 0
    return [json.loads(entry) for entry in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(("kind", "source", "options"), [("bytes", "text", TEXT), ("rows", "table.csv", ROWS)])
def test_learning_predictions_are_those_of_training(whole, tmp_path, capsys, kind, source, options):
    run = tmp_path / "run"
    assert norewind("train", whole / source, "--out", run, *options, "--samples", 600) == 0
    expected = read_log(whole / kind / "predictions.jsonl")[600:]
    guesses = predicted(capsys, run, "--learn")
    assert [guess.pop("sample") for guess in guesses] == list(range(1, len(expected) + 1))
    assert guesses == [{name: guess[name] for name in guess if name != "sample"} for guess in expected]
    # Nothing was written back.
    assert everything(run)["samples"] == 600
    # Whole windows only, and none beyond what was asked for.
    assert (
        predicted(capsys, run, "--learn", "--samples", 100)[-1]["surprise"]
        == guesses[98 if kind == "bytes" else 99]["surprise"]
    )
    fixed = predicted(capsys, run, "--samples", 700)
    assert len(fixed) == 700
    assert fixed[-1]["surprise"] != guesses[699]["surprise"]


def plain(run, xs, fresh=False):
    """Outputs of the cell of a run over inputs, one after the other."""
    saved = predicting.saved_run(run)
    trained = saved.trained(Shape(256, 256, True) if xs.ndim == 1 else Shape(2, 2, False))
    state = trained.run.initial_state if fresh else trained.run.state
    outputs = []
    for x in xs:
        state, output = trained.transition(trained.run.params, state, x)
        outputs.append(np.asarray(output, np.float64))
    return np.array(outputs)


@pytest.mark.parametrize("fresh", [False, True])
def test_predictions_on_text_are_those_of_the_cell(whole, tmp_path, capsys, fresh):
    (tmp_path / "other").write_bytes(b"abcabcaabbcc")
    guesses = predicted(capsys, whole / "bytes", tmp_path / "other", *["--fresh"] * fresh)
    symbols = np.frombuffer(b"abcabcaabbcc", np.uint8).astype(np.int32)
    logits = plain(whole / "bytes", symbols[:-1], fresh)
    surprise = np.log2(np.exp(logits).sum(axis=1)) - logits[range(11), symbols[1:]] / np.log(2)
    assert [guess["surprise"] for guess in guesses] == pytest.approx(surprise, abs=1e-5)
    assert [guess["symbol"] for guess in guesses] == symbols[1:].tolist()
    assert [guess["prediction"] for guess in guesses] == logits.argmax(axis=1).tolist()


def test_predictions_on_rows_are_those_of_the_cell(whole, tmp_path, capsys, table):
    lines = table.splitlines(True)
    (tmp_path / "new.txt").write_bytes(b"".join([lines[0], *lines[50:62]]))
    guesses = predicted(capsys, whole / "rows", tmp_path / "new.txt")
    saved = predicting.saved_run(whole / "rows")
    (counts, means, squares, _) = np.array(saved.position["stream"]["statistics"]).T
    rows = np.array([[float(value) for value in entry.split(b",")] for entry in lines[50:62]])
    xs = []
    for row in rows:
        before = row - means
        counts, means = counts + 1, means + before / (counts + 1)
        squares = squares + before * (row - means)
        deviations = np.sqrt(squares / counts)
        xs.append((means, deviations, (row - means) / deviations))
    outputs = plain(whole / "rows", np.array([x for _, _, x in xs[:-1]], np.float32))
    for guess, (means, deviations, _), output, target in zip(guesses, xs[:-1], outputs, rows[1:], strict=True):
        forecast = means + deviations * output
        assert list(guess["prediction"].values()) == pytest.approx(forecast, rel=1e-4)
        assert list(guess["target"].values()) == pytest.approx(target, rel=1e-4)
        error = (target - forecast) / deviations
        assert guess["surprise"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-3)


def test_predictions_take_what_is_left_of_a_window_first(whole, tmp_path, capsys, text):
    """The run has read 1000 bytes, 999 samples, and learned from 999 of them; then one byte more, which waits."""
    (tmp_path / "text").write_bytes(text[:1_002])
    run = tmp_path / "run"
    assert norewind("train", tmp_path / "text", "--out", run, *TEXT) == 0
    assert everything(run)["position"]["left"] is not None
    (tmp_path / "text").write_bytes(text[:1_200])
    guesses = predicted(capsys, run)
    assert [guess["symbol"] for guess in guesses] == list(text[1_000:1_200])
    assert predicted(capsys, run, "--samples", 1) == guesses[:1]
    # At the end of the stream, too.
    (tmp_path / "text").write_bytes(text[:1_002])
    assert predicted(capsys, run) == guesses[:2]


def test_predictions_go_on_while_the_run_does(whole, tmp_path, capsys, monkeypatch):
    """A checkpoint may be dropped between being found and being read."""
    run = tmp_path / "run"
    assert norewind("train", whole / "text", "--out", run, *TEXT, "--samples", 600) == 0
    found = session.checkpoints
    gone = [run / "checkpoints" / f"{1:015d}-{0:016x}.safetensors"]
    monkeypatch.setattr(session, "checkpoints", lambda folder: found(folder) + [gone.pop()] * bool(gone))
    assert len(predicted(capsys, run, "--samples", 5)) == 5


def test_predictions_from_a_pipe(whole, capsys, table, text):
    with Pipe(table) as source:
        assert len(predicted(capsys, whole / "rows", source, "--flush", 0.1)) == 1_499
    with Pipe(text[:100], text[100:]) as source:
        assert len(predicted(capsys, whole / "bytes", source)) == len(text) - 1


def test_other_columns_are_refused(whole, tmp_path, capsys):
    (tmp_path / "other.csv").write_text("moon,wind\n1,2\n")
    code = norewind("predict", whole / "rows", tmp_path / "other.csv")
    assert_refused(capsys, code, "other.csv has no column 'sun'. It has 'moon', 'wind'")


@pytest.mark.parametrize("options", [("--samples", "inf"), ("--samples", "-3"), ("--flush", "-1")])
def test_impossible_numbers_are_refused(whole, capsys, options):
    assert_refused(capsys, norewind("predict", whole / "bytes", *options), f"{options[0][2:]} is {float(options[1])}")


def written(capsysbinary, *arguments):
    capsysbinary.readouterr()
    assert norewind("sample", *arguments) == 0
    return capsysbinary.readouterr().out


def test_sampling_writes_bytes(whole, capsysbinary):
    text = written(capsysbinary, whole / "bytes", "--length", 200)
    assert len(text) == 201
    assert text == written(capsysbinary, whole / "bytes", "--length", 200)
    assert text != written(capsysbinary, whole / "bytes", "--length", 200, "--seed", 1)
    assert written(capsysbinary, whole / "bytes", "--length", 3, "--prompt", "ab\udcff").startswith(b"ab\xff")


def test_cold_sampling_takes_the_likeliest_after_everything_that_came(tmp_path, capsysbinary, whole, text):
    """Two bytes were read that do not fill a window: the model has to see them before it writes."""
    (tmp_path / "text").write_bytes(text[:1_002])
    assert norewind("train", tmp_path / "text", "--out", tmp_path / "run", *TEXT) == 0
    unread = np.frombuffer(text[999:1_002], np.uint8).astype(np.int32)
    likeliest = plain(tmp_path / "run", unread)[-1].argmax()
    text = written(capsysbinary, tmp_path / "run", "--length", 1, "--temperature", 1e-6)
    assert text == bytes([likeliest]) + b"\n"


def test_sampling_writes_characters_and_tasks(tmp_path, capsysbinary):
    (tmp_path / "text").write_text("aäa\u6f22ä" * 100)
    assert (
        norewind("train", tmp_path / "text", "--format", "text", "--alphabet-size", 6, *SMALL, "--out", tmp_path / "a")
        == 0
    )
    text = written(capsysbinary, tmp_path / "a", "--length", 50, "--prompt", "äa").decode()
    assert text.startswith("äa")
    assert len(text) == 53
    assert set(text) <= {*"aä\u6f22\ufffd\n"}
    assert norewind("sample", tmp_path / "a", "--prompt", "axa") == 1
    assert b"'x', which the run has never seen" in capsysbinary.readouterr().err
    assert norewind("train", "anbn", "--samples", 300, *SMALL, "--out", tmp_path / "b") == 0
    assert set(written(capsysbinary, tmp_path / "b", "--length", 50)) <= {*b"ab\n"}
    # A built-in task resumes and predicts, too.
    assert norewind("resume", tmp_path / "b", "--samples", 600, "--quiet") == 0
    assert norewind("predict", tmp_path / "b", "--samples", 3) == 0


@pytest.mark.parametrize("options", [("--length", 0), ("--temperature", 0), ("--temperature", "nan"), ("--seed", -1)])
def test_impossible_samples_are_refused(whole, capsys, options):
    assert_refused(capsys, norewind("sample", whole / "bytes", *options), options[0])


def test_a_forecast_is_no_text(whole, capsys):
    assert_refused(capsys, norewind("sample", whole / "rows"), "only a run on bytes or text can write text")


def test_curves_of_several_runs(whole, tmp_path, capsys):
    out = tmp_path / "new" / "curves.svg"
    assert norewind("plot", whole / "bytes", whole / "bytes", "--out", out) == 0
    assert f"See {out}" in capsys.readouterr().out
    assert "<svg" in out.read_text()
    code = norewind("plot", whole / "bytes", whole / "rows", "--out", out)
    assert_refused(capsys, code, "measured in bits and squared error: draw them apart")
    assert_refused(capsys, norewind("plot"), "name at least one run folder")
    assert_refused(capsys, norewind("plot", whole / "rows", "--out", tmp_path / "x.doc"), ".png, .pdf or .svg")
    assert_refused(capsys, norewind("plot", tmp_path), "holds no run")


def test_a_curve_that_somebody_else_wrote_into_is_refused(whole, tmp_path, capsys):
    (tmp_path / "settings.toml").write_bytes((whole / "rows" / "settings.toml").read_bytes())
    lines = (whole / "rows" / "metrics.jsonl").read_bytes().splitlines(True)
    (tmp_path / "metrics.jsonl").write_bytes(lines[0] + b"hello\n" + lines[1])
    assert_refused(capsys, norewind("plot", tmp_path), "metrics.jsonl, line 2: not JSON")
    # Half a line at the end is what a kill leaves: it does not count.
    (tmp_path / "metrics.jsonl").write_bytes(lines[0] + lines[1][:-5])
    assert norewind("plot", tmp_path, "--out", tmp_path / "curve.png") == 0


def events(folder):
    """What TensorBoard would read: records of a length, its checksum, the event and its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            yield Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]


def test_events_for_tensorboard(whole, tmp_path):
    pytest.importorskip("tensorboardX")
    run = tmp_path / "run"
    assert norewind("train", whole / "text", "--out", run, *TEXT, "--tensorboard", "--samples", 700) == 0
    values = [
        (event.step, value.tag, value.simple_value)
        for event in events(run / "tensorboard")
        for value in event.summary.value
    ]
    for entry in read_log(run / "metrics.jsonl"):
        assert (entry["samples"], "loss", np.float32(entry["loss"])) in values
    assert {tag for _, tag, _ in values} == {"loss", "mean", "level", "carry", "seconds"}
    # The last line is taken back when the run goes on.
    assert norewind("resume", run, "--samples", 900, "--quiet") == 0
    starts = [event.step for event in events(run / "tensorboard") if event.session_log.status == 1]
    assert starts[-1] == 700


# The line that says how it goes.


class Screen:
    """A terminal, or not."""

    def __init__(self, live):
        self.live, self.text = live, ""

    def isatty(self):
        return self.live

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_progress_says_where_a_run_stands(monkeypatch):
    clock = iter([0.0, 10.0, 20.0, 30.0])
    monkeypatch.setattr("norewind.training.progress.time.monotonic", lambda: next(clock))
    screen = Screen(live=False)
    progress = ProgressLine("bits", 0, 10_000, out=screen)
    for samples in (1_000, 2_000, 4_000):
        progress.chunk(samples, 1.5)
    assert screen.text.splitlines()[-1] == " 40% of 10,000 samples, 150 a second, 0:40 left, 1.5000 bits"


def test_a_quiet_run_says_nothing(whole, tmp_path, capsys):
    assert norewind("train", whole / "text", "--out", tmp_path / "run", *TEXT, "--samples", 300) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("live", [True, False])
def test_progress_is_a_live_line_on_a_terminal_only(live, monkeypatch):
    monkeypatch.setattr("norewind.training.progress.LIVE_SECONDS", 0)
    monkeypatch.setattr("norewind.training.progress.PLAIN_SECONDS", 0)
    screen = Screen(live)
    progress = ProgressLine("bits", 0, None, out=screen)
    progress.chunk(1_000, 2.0)
    progress.say("a line")
    progress.close()
    assert ("\r" in screen.text) == live
    assert "1,000 samples, 2.0000 bits" in screen.text
    assert "a line\n" in screen.text


# Memory.


@pytest.mark.slow
def test_a_long_pipe_takes_no_more_memory_than_a_short_one(tmp_path):
    code = (
        "import resource, sys; from norewind.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as ended: assert not ended.code\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )

    def peak(size):
        feed = f"import sys\nfor _ in range({size // 1000}): sys.stdout.write('ab' * 500)"
        feeder = subprocess.Popen([sys.executable, "-c", feed], stdout=subprocess.PIPE)
        options = ("--hidden", "2", "--method", "readout_only", "--format", "text", "--alphabet", "ab", "--quiet")
        command = [sys.executable, "-c", code, "train", "-", *options, "--out", str(tmp_path / str(size))]
        ended = subprocess.run(command, stdin=feeder.stdout, stdout=subprocess.PIPE, check=True)
        assert feeder.wait() == 0
        assert read(newest(tmp_path / str(size)))[1]["samples"] == size - 1
        return int(ended.stdout) / 1024

    assert peak(20_000_000) - peak(1_000_000) < 5
