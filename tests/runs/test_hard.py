"""What people, shells and file systems do to a command."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from run_folders import SMALL, TEXT, assert_refused, everything, newest, norewind

from norewind.checkpoint import save
from norewind.files import _temporary, write_atomically
from norewind.runs.build import Shape, build
from norewind.runs.folder import SIGN
from norewind.runs.settings import Settings, SettingsError
from norewind.streams import ByteStream, Dialect, RowStream, Source, StreamError

PYTHON = (sys.executable, "-c")


def test_help_in_any_width_and_encoding():
    surroundings = {**os.environ, "COLUMNS": "1", "TERM": "dumb", "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "norewind", "train", "--help"]
    shown = subprocess.run(command, env=surroundings, capture_output=True, timeout=300, check=True)
    assert b"--horizon" in shown.stdout
    assert shown.stderr == b""


@pytest.mark.parametrize("where", ["typing", "norewind.cli", "norewind.standard"])
def test_an_interrupt_during_the_imports_is_no_traceback(where):
    """From the first module that is not Python's own beginning; the last is interrupted when it is used."""
    interrupting = """
import os, runpy, signal, sys
class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)
def prepare():
    os.kill(os.getpid(), signal.SIGINT)
if sys.argv[1] == "norewind.standard":
    import norewind.standard
    norewind.standard.prepare = prepare
assert sys.argv[1] not in sys.modules or sys.argv[1] == "norewind.standard"
sys.meta_path.insert(0, Interrupt())
runpy.run_module("norewind", run_name="__main__")
"""
    ended = subprocess.run([*PYTHON, interrupting, where], capture_output=True, timeout=300, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, b"")


def test_closed_standard_output_and_error():
    writing = """
import os, sys
from norewind.standard import drop_output, prepare
prepare()
print("lost", file=sys.stderr, flush=True)
assert os.open(os.devnull, os.O_RDONLY) > 2
try:
    print("refused", flush=True)
except OSError:
    drop_output()
    sys.exit(7)
"""
    closing = lambda: (os.close(1), os.close(2))  # noqa: E731
    assert subprocess.run([*PYTHON, writing], preexec_fn=closing, timeout=300, check=False).returncode == 7


@pytest.mark.slow
def test_a_run_with_closed_standard_output_and_error(whole, tmp_path):
    base = [sys.executable, "-m", "norewind", "train", str(whole / "text"), *map(str, SMALL)]
    quiet = subprocess.run([*base, "--out", str(tmp_path / "a")], preexec_fn=lambda: os.close(2), check=False)
    assert quiet.returncode == 0
    assert int(newest(tmp_path / "a").name[:15]) == 2_001
    asked = [*base, "--out", str(tmp_path / "b"), "--predictions", "stdout"]
    ended = subprocess.run(asked, preexec_fn=lambda: os.close(1), stderr=subprocess.PIPE, check=False)
    assert ended.returncode == 1
    assert b"standard output: Bad file descriptor" in ended.stderr
    assert b"Traceback" not in ended.stderr


def test_a_pipe_that_nobody_writes_to_is_opened_at_once(tmp_path):
    path, late = tmp_path / "pipe", threading.Event()
    os.mkfifo(path)

    def write():
        late.set()
        path.write_bytes(b"abc")

    timer = threading.Timer(2, write)
    timer.start()
    with ByteStream(Source(path, stop=lambda: not late.is_set())) as stream:
        assert len(stream.take(5).xs) == 0
        assert not late.is_set()
        late.wait()
        assert bytes(stream.take(5).targets.tolist()) == b"bc"
    timer.join()


@pytest.mark.parametrize("name", ["settings.toml", "metrics.jsonl", "notes.txt", "lock"])
def test_a_folder_that_is_not_ours_is_refused(whole, tmp_path, capsys, name):
    run = tmp_path / "run"
    run.mkdir()
    (run / name).write_text("mine")
    code = norewind("train", whole / "text", "--out", run, *SMALL)
    assert_refused(capsys, code, f"{run} is not empty", "another folder")
    assert {path.name: path.read_text() for path in run.iterdir()} == {name: "mine"}


@pytest.mark.parametrize("name", ["lock", "metrics.jsonl", "predictions.jsonl"])
def test_nothing_is_written_through_a_link(whole, tmp_path, capsys, name):
    mine, run = tmp_path / "mine", tmp_path / "run"
    mine.write_text("mine")
    run.mkdir()
    if name != "lock":
        (run / "lock").write_bytes(SIGN)
    (run / name).symlink_to(mine)
    code = norewind("train", whole / "text", "--out", run, *TEXT)
    assert_refused(capsys, code, "not empty" if name == "lock" else "a symbolic link")
    assert mine.read_text() == "mine"


def test_files_are_replaced_not_written_through(tmp_path):
    (tmp_path / "mine").write_text("mine")
    for name in ("file", _temporary(tmp_path / "file").name):
        (tmp_path / name).symlink_to(tmp_path / "mine")
    write_atomically(tmp_path / "file", b"ours")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "file").read_text() == "ours"


def test_threads_that_write_the_same_file_do_not_mix(tmp_path, monkeypatch):
    """The second one begins, and ends, while the first one writes."""
    sync, begun = os.fsync, []

    def fsync(descriptor):
        if not begun:
            begun.append(threading.Thread(target=write_atomically, args=(tmp_path / "file", b"second")))
            begun[0].start()
            begun[0].join()
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(tmp_path / "file", b"first")
    assert (tmp_path / "file").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


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


def test_a_run_that_was_killed_before_its_first_checkpoint_can_begin_again(whole, tmp_path):
    for place, content in (("lock", SIGN), ("settings.toml", b"seed = 3\n"), ("metrics.jsonl", b"{")):
        write_atomically(tmp_path / "run" / place, content)
    write_atomically(tmp_path / "empty" / "lock", b"")
    for name in ("run", "empty"):
        assert norewind("train", whole / "text", "--out", tmp_path / name, *TEXT) == 0
        assert everything(tmp_path / name) == everything(whole / "bytes")


def test_names_that_are_not_utf8(tmp_path, capsys, text):
    strange = os.fsdecode(b"caf\xe9")
    (tmp_path / strange).write_bytes(text[:300])
    (tmp_path / "text").write_bytes(text[:300])
    assert_refused(capsys, norewind("train", tmp_path / strange, *SMALL), "source is", "not valid UTF-8")
    assert norewind("train", tmp_path / "text", "--out", tmp_path / "runs" / strange, *SMALL[:-1]) == 0
    assert norewind("resume", tmp_path / "runs" / strange) == 0


def test_a_key_with_half_a_character(tmp_path):
    (tmp_path / "rows").write_text('{"a": 1, "\\ud800": 2}\n')
    with pytest.raises(StreamError, match=r"line 1 \(byte 0\) is bad: the key '\\ud800' has half a character"):
        RowStream(Source(tmp_path / "rows"), dialect=Dialect("jsonl"))


def test_a_checkpoint_that_is_a_dangling_link(tmp_path, capsys, text):
    (tmp_path / "text").write_bytes(text)
    run = tmp_path / "run"
    assert norewind("train", tmp_path / "text", "--out", run, *TEXT, "--samples", 600) == 0
    (run / "checkpoints" / ("9" * 15 + "-" + "0" * 16 + ".safetensors")).symlink_to(tmp_path / "nowhere")
    assert_refused(capsys, norewind("resume", run), "cannot be read: No such file")


def test_only_our_digits_are_numbers_and_spaces_are_no_row(tmp_path):
    (tmp_path / "rows.csv").write_text("a\n1\n٣\n 4 \n")
    with RowStream(Source(tmp_path / "rows.csv"), dialect=Dialect(bad="skip"), standardise=False) as stream:
        assert stream.take(9).xs.tolist() == [[1], [4]]
        assert stream.counts == {"bad rows": 1}
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n \n\t\r\n\n{"a": 2}\n')
    with RowStream(Source(tmp_path / "rows.jsonl"), dialect=Dialect("jsonl"), standardise=False) as stream:
        assert stream.take(9).xs.tolist() == [[1], [2]]
        assert stream.counts == {}


def test_rows_that_wait_are_saved_as_arrays(tmp_path):
    waiting = np.zeros((43_200, 40, 3))
    path = save(tmp_path, 1, {"w": np.zeros(3)}, {"position": {"stream": {"waiting": waiting}}})
    assert path.stat().st_size < waiting.nbytes + 10_000


SYMBOLS = Shape(256, 256, True)
ROWS = Shape(99, 99, False, 99, tuple(range(1, 10**5 + 1)))
HUGE = {
    "hidden": (Settings(method="uoro", hidden=10**8), SYMBOLS, "--hidden [0-9]+ would fit"),
    "rtrl": (Settings(method="rtrl", hidden=10**4), SYMBOLS, "--hidden [0-9]+ would fit"),
    "rank": (Settings(method=f"uoro:rank={10**9}", hidden=4), SYMBOLS, "smaller"),
    "window": (Settings(method=f"bptt:{10**12}", hidden=4), SYMBOLS, "smaller"),
    "horizon": (Settings(method="uoro", hidden=4, source="x.csv", horizon=10**5), ROWS, "--horizon [0-9]+ would fit"),
    "auto": (Settings(source="x.csv", horizon=10**5), ROWS, "--horizon [0-9]+ would fit"),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_run_that_is_too_large_is_refused_with_what_would_fit(name, monkeypatch):
    settings, shape, words = HUGE[name]
    monkeypatch.setattr("norewind.runs.build.memory", lambda: 10**10)
    with pytest.raises(SettingsError, match=f"would take about .*this machine has 10.0 GB. .*{words}"):
        build(settings, shape)


def test_what_would_fit_fits(monkeypatch):
    settings = Settings(method="uoro", hidden=10**6)
    monkeypatch.setattr("norewind.runs.build.memory", lambda: 10**7)
    with pytest.raises(SettingsError) as refused:
        build(settings, SYMBOLS)
    most = int(str(refused.value).split("--hidden ")[1].split()[0])
    build(replace(settings, hidden=most), SYMBOLS)
    with pytest.raises(SettingsError):
        build(replace(settings, hidden=most + most // 100 + 2), SYMBOLS)


@pytest.mark.parametrize(
    "options", [("hidden", 10**18), ("hidden", 10**23), ("layers", 3000), ("alphabet_size", 10**9)]
)
def test_numbers_beyond_any_use_are_refused(options):
    with pytest.raises(SettingsError, match=f"{options[0]} is {options[1]}: "):
        Settings(**dict([options]))
