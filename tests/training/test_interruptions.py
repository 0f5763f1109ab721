"""Interrupted runs resume as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from run_folders import ROWS, TEXT, Pipe, assert_rejected, at_sample, crash, everything, latest, norewind

from norewind.storage.checkpoint import checkpoints
from norewind.streams import ByteStream
from norewind.training import training_loop
from norewind.training.log import read_log

pytestmark = pytest.mark.usefixtures("shared_programs")


def test_the_files_of_a_run(whole):
    run = whole / "bytes"
    lines = read_log(run / "metrics.jsonl")
    assert [line["samples"] for line in lines] == [300, 600, 900, 1200, 1500, 1800, 2001]
    assert set(lines[0]) == {"samples", "loss", "mean", "baseline", "carry", "seconds"}
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines)
    guesses = read_log(run / "predictions.jsonl")
    assert [guess["sample"] for guess in guesses] == list(range(1, 2_002))
    surprise = np.mean([guess["surprise"] for guess in guesses])
    assert lines[-1]["mean"] == pytest.approx(surprise, abs=1e-5)
    # Every 250 samples, at the next end of a window, and at the end.
    assert [int(path.name[:15]) for path in checkpoints(run / "checkpoints")] == [1500, 1752, 2001]


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
    output = capsys.readouterr().err
    assert f"Stopped; nothing is lost. To continue: norewind resume {run}" in output
    assert int(latest(run).name[:15]) == 750
    assert norewind("resume", run, "--quiet") == 0
    assert everything(run) == everything(whole / "rows")


def test_a_second_ctrl_c_does_not_wait(whole, tmp_path, monkeypatch, capsys):
    def twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    at_sample(monkeypatch, 700, twice)
    code = norewind("train", whole / "table.csv", "--out", tmp_path / "run", *ROWS)
    assert_rejected(capsys, code, "interrupted", expected=130)


def test_a_signal_before_the_first_row_ends_with_its_code(tmp_path, monkeypatch, capsys):
    reading, writing = os.pipe()
    timer = threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGTERM))
    timer.start()
    code = norewind("train", f"/dev/fd/{reading}", "--format", "csv", "--out", tmp_path / "run", *ROWS)
    assert_rejected(capsys, code, "stopped before its first row arrived", expected=143)
    os.close(writing)
    os.close(reading)


def test_resuming_at_the_end_changes_nothing(whole, tmp_path):
    assert norewind("train", whole / "text", "--out", tmp_path / "run", *TEXT) == 0
    before = latest(tmp_path / "run").read_bytes()
    for _ in range(2):
        assert norewind("resume", tmp_path / "run", "--quiet") == 0
    assert latest(tmp_path / "run").read_bytes() == before
    assert everything(tmp_path / "run") == everything(whole / "bytes")


def test_more_samples_make_the_longer_run(whole, tmp_path):
    run = tmp_path / "run"
    assert norewind("train", whole / "text", "--out", run, *TEXT, "--samples", 1_000) == 0
    # Not a multiple of the window: the run ends with the last whole window.
    assert everything(run)["samples"] == 999
    assert read_log(run / "metrics.jsonl")[-1]["samples"] == 999
    assert norewind("resume", run, "--samples", "1.6e3", "--quiet") == 0
    assert norewind("resume", run, "--quiet") == 0
    assert everything(run)["samples"] == 1_599
    assert norewind("resume", run, "--samples", 1e9, "--quiet") == 0
    assert everything(run) == everything(whole / "bytes")


def test_seconds_continue_after_an_interruption(whole, tmp_path, monkeypatch):
    """With a clock that advances by one per chunk, interruptions do not even change `seconds`."""
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(training_loop, "time", clock)

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
def test_a_run_continues_when_its_file_has_grown(whole, tmp_path, kind, source, options):
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


def test_a_pipe_is_replayed_or_continued(whole, tmp_path, text):
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
    """Only the last digit of predictions made before their window was full may change."""
    pieces = [text[i : i + 130] for i in range(0, len(text), 130)]
    run = tmp_path / "run"
    with Pipe(*pieces[:8], pause=0.03) as source:
        flush = ("--format", "bytes", "--flush", 0.01)
        assert norewind("train", source, "--out", run, *TEXT, *flush) == 0
    # 1040 bytes are 1039 samples: the last one was predicted, and is neither predicted nor learned from again.
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
    """A loop compiled for another length may round differently, so only counts can be compared."""
    monkeypatch.setattr("norewind.learners.online.CHUNK", 70)
    assert norewind("train", whole / "table.csv", "--out", tmp_path / "run", *ROWS, "--samples", 700) == 0
    lines, expected = read_log(tmp_path / "run" / "metrics.jsonl"), read_log(whole / "rows" / "metrics.jsonl")
    for line, other in zip(lines[:2], expected[:2], strict=True):
        assert [line[name] for name in ("samples", "baseline", "persistence")] == [
            other[name] for name in ("samples", "baseline", "persistence")
        ]
        assert line["loss"] == pytest.approx(other["loss"], rel=1e-5)


def test_a_real_process_answers_promptly_and_resumes_after_sigterm(whole, tmp_path, text):
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
    # Kill it if it never answers.
    timeout = threading.Timer(200, process.kill)
    timeout.start()
    lines = []
    for stop in (301, 602, half):
        # All but the last byte must be answered while the pipe stays open, full window or not.
        process.stdin.write(text[len(lines) + bool(lines) : stop])
        process.stdin.flush()
        began = time.monotonic()
        while len(lines) < stop - 1:
            lines.append(process.stdout.readline())
        # The first one includes compilation. The others wait for 0.2 s; a busy machine may add to that.
        assert len(lines) <= 300 or time.monotonic() - began < 20
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    timeout.cancel()
    assert_nearly_the_same([json.loads(answer) for answer in lines], read_log(whole / "bytes" / "predictions.jsonl"))
    with Pipe(text) as source:
        assert norewind("resume", run, "--source", source, "--quiet") == 0
    expected = everything(whole / "bytes")
    assert {**everything(run), "predictions": expected["predictions"]} == expected


def test_zero_a_timeout_does_not_poll_continuously(tmp_path, monkeypatch):
    takes = 0
    take = ByteStream.take

    def counting(self, count, timeout=None):
        nonlocal takes
        takes += 1
        return take(self, count, timeout)

    monkeypatch.setattr(ByteStream, "take", counting)
    with Pipe(b"abc" * 100, b"", pause=0.5) as source:
        assert norewind("train", source, "--format", "bytes", "--flush", 0, "--out", tmp_path / "run", *TEXT) == 0
    assert takes < 300


def test_a_clock_that_is_set_back_changes_nothing(whole, tmp_path, monkeypatch):
    clock = iter(range(10**9, 0, -3_600))
    monkeypatch.setattr("time.time", lambda: float(next(clock)))
    assert norewind("train", whole / "text", "--out", tmp_path / "run", *TEXT) == 0
    assert everything(tmp_path / "run") == everything(whole / "bytes")
