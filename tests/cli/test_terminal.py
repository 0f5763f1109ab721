"""The command line and its terminal: encodings, closed output, signals, and file names that are not UTF-8."""

import os
import signal
import subprocess
import sys

import pytest
from run_folders import SMALL, assert_rejected, latest, norewind

from norewind.cli.common import StopOnSignal

pytestmark = pytest.mark.usefixtures("shared_programs")


PYTHON = (sys.executable, "-c")


def test_help_in_any_width_and_encoding():
    surroundings = {**os.environ, "COLUMNS": "1", "TERM": "dumb", "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "norewind", "train", "--help"]
    shown = subprocess.run(command, env=surroundings, capture_output=True, timeout=300, check=True)
    assert b"--horizon" in shown.stdout
    assert shown.stderr == b""


@pytest.mark.parametrize("where", ["typing", "norewind.cli", "norewind.cli.terminal"])
def test_an_interrupt_during_the_imports_prints_no_traceback(where):
    """Interrupt the import of every module after Python's startup; the last one is interrupted when it is used."""
    interrupting = """
import os, runpy, signal, sys
class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)
def prepare():
    os.kill(os.getpid(), signal.SIGINT)
if sys.argv[1] == "norewind.cli.terminal":
    import norewind.cli.terminal
    norewind.cli.terminal.prepare = prepare
assert sys.argv[1] not in sys.modules or sys.argv[1] == "norewind.cli.terminal"
sys.meta_path.insert(0, Interrupt())
runpy.run_module("norewind", run_name="__main__")
"""
    ended = subprocess.run([*PYTHON, interrupting, where], capture_output=True, timeout=300, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, b"")


def test_closed_standard_output_and_error():
    writing = """
import os, sys
from norewind.cli.terminal import drop_output, prepare
prepare()
print("lost", file=sys.stderr, flush=True)
assert os.open(os.devnull, os.O_RDONLY) > 2
try:
    print("rejected", flush=True)
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
    assert int(latest(tmp_path / "a").name[:15]) == 2_001
    asked = [*base, "--out", str(tmp_path / "b"), "--predictions", "stdout"]
    ended = subprocess.run(asked, preexec_fn=lambda: os.close(1), stderr=subprocess.PIPE, check=False)
    assert ended.returncode == 1
    assert b"standard output: Bad file descriptor" in ended.stderr
    assert b"Traceback" not in ended.stderr


def test_names_that_are_not_utf8(tmp_path, capsys, text):
    strange = os.fsdecode(b"caf\xe9")
    (tmp_path / strange).write_bytes(text[:300])
    (tmp_path / "text").write_bytes(text[:300])
    assert_rejected(capsys, norewind("train", tmp_path / strange, *SMALL), "source is", "not valid UTF-8")
    assert norewind("train", tmp_path / "text", "--out", tmp_path / "runs" / strange, *SMALL[:-1]) == 0
    assert norewind("resume", tmp_path / "runs" / strange) == 0


@pytest.mark.parametrize("where", ["full", "gone"])
def test_training_continues_if_nobody_reads_its_messages(where):
    """Standard error is a full disk, a closed terminal, or `2>&1 | head`."""
    saying = "import sys; from norewind.cli import terminal; terminal.prepare(); print('x' * 9_999, file=sys.stderr)"
    reading, writing = os.pipe()
    os.close(reading)
    with open("/dev/full", "wb") as full:
        ended = subprocess.run([sys.executable, "-c", saying], stderr=full if where == "full" else writing, check=False)
    os.close(writing)
    assert ended.returncode == 0


def test_a_closed_terminal_is_a_request_to_stop():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, under which these tests may run, ignores it
    with StopOnSignal() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop()
        assert stop.exit_code == 128 + signal.SIGHUP
    signal.signal(signal.SIGHUP, before)


def test_nohup_stays_in_force():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopOnSignal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop()
    finally:
        signal.signal(signal.SIGHUP, before)
