"""Progress of runs during training."""

import subprocess
import sys

import pytest
from run_folders import TEXT, latest, norewind

from norewind.scoring.metrics import SIMPLE_FORECASTS
from norewind.storage.checkpoint import read
from norewind.training.progress import Progress

pytestmark = pytest.mark.usefixtures("shared_programs")


class Screen:
    """A file that may claim to be a terminal."""

    def __init__(self, live):
        self.live, self.text = live, ""

    def isatty(self):
        return self.live

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_progress_shows_how_far_a_run_is(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("norewind.training.progress.time.monotonic", lambda: now[0])
    screen = Screen(live=False)
    progress = Progress(out=screen)
    progress.begin("run", "bits", 0, 10_000)
    for samples in (1_000, 2_000, 4_000):
        now[0] += 10
        progress.runs["run"].average({"samples": samples, "loss": 1.5})
        progress.advance("run", samples)
    assert screen.text.splitlines()[-1] == " 40% of 10,000 samples, 150 samples/s, 0:00:40 left, 1.5000 bits"


def test_all_numbers_of_a_line_are_averages_over_the_same_samples(monkeypatch):
    monkeypatch.setattr("norewind.training.progress.SECONDS_BETWEEN_LINES", 0)
    screen = Screen(live=False)
    progress = Progress(out=screen)
    progress.begin("run", "squared error", 0, simple=SIMPLE_FORECASTS)
    lines = [(10, 8.0), (20, 4.0), (40, 2.0)]
    for samples, loss in lines:
        # A model that always equals the simple forecasts. At first, no season is known.
        simple = {"baseline": loss, "persistence": loss, **({"seasonal": loss} if samples == 40 else {})}
        progress.runs["run"].average({"samples": samples, "loss": loss, **simple})
        progress.advance("run", samples)
    before, after = (line.split(", ", 1)[1].split("error ")[1] for line in screen.text.splitlines()[1:])
    assert before == "(the last value 6.0000, the mean so far 6.0000)"
    assert after == "(the last value 2.0000, one period ago 2.0000, the mean so far 2.0000)"
    assert "6.0000 squared error" in screen.text.splitlines()[1]
    assert "2.0000 squared error" in screen.text.splitlines()[2]


def test_a_quiet_run_prints_nothing(whole, tmp_path, capsys):
    assert norewind("train", whole / "text", "--out", tmp_path / "run", *TEXT, "--samples", 300) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("live", [True, False])
def test_progress_moves_on_a_terminal_only(live, monkeypatch):
    monkeypatch.setattr("norewind.training.progress.SECONDS_BETWEEN_LINES", 0)
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen(live)
    with Progress(out=screen) as progress:
        progress.begin("run", "bits")
        progress.runs["run"].average({"samples": 1_000, "loss": 2.0})
        progress.advance("run", 1_000)
        progress.say("a line")
        progress.bars.refresh()
    assert ("\x1b[" in screen.text) == live
    assert "1,000 samples, 2.0000 bits" in screen.text
    assert "a line\n" in screen.text


def test_several_runs_are_shown_with_their_names():
    screen = Screen(live=False)
    with Progress(3, out=screen) as progress:
        progress.begin("one", "bits", 0, 100)
        progress.end("one", "finished")
        progress.say("a line")
    assert screen.text.splitlines() == ["one: started", "one: finished", "a line"]


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
        assert read(latest(tmp_path / str(size)))[1]["samples"] == size - 1
        return int(ended.stdout) / 1024

    assert peak(20_000_000) - peak(1_000_000) < 5
