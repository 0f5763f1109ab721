"""The examples are run, in a small setting, as a reader would run them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def run(command, **changes):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **changes}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def output_of(*command, **changes):
    done = run(command, **changes)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_text_is_learned_and_written():
    shown = output_of(sys.executable, EXAMPLES / "text.py", "--samples", "20000")
    bits = [float(number) for number in re.findall(r"([\d.]+) bits", shown)]
    assert len(bits) == 2
    assert bits[-1] < 0.5 * bits[0]
    assert "the " in shown.partition("written by the model:")[2]


def test_sensors_are_forecast_and_the_fault_is_found():
    shown = output_of(sys.executable, EXAMPLES / "sensors.py")
    errors = [float(number) for number in re.findall(r"squared error ([\d.]+)", shown)]
    assert errors[0] < 0.6 * errors[1]
    assert "false alarms: 0" in shown
    start, end, alarm = map(int, re.search(r"row (\d+) to (\d+); alarm at row (\d+)", shown).groups())
    assert start <= alarm < end


def test_the_pipeline_shows_the_line_that_is_strange():
    shown = output_of("sh", EXAMPLES / "pipeline.sh", NOREWIND=f"{sys.executable} -m norewind").splitlines()
    assert any(line.startswith("line 950,") for line in shown)
    assert len(shown) == 4


def test_a_resumed_run_is_the_uninterrupted_one():
    assert "bit for bit" in output_of(sys.executable, EXAMPLES / "resume.py", "--samples", "6000")


def test_real_data_says_kindly_that_it_needs_the_network(tmp_path):
    done = run([sys.executable, EXAMPLES / "real_data", "--cache", tmp_path, "--out", tmp_path], PIP_NO_INDEX="1")
    assert done.returncode == 1
    assert "could not be downloaded" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_tables_of_real_data_are_those_that_were_printed():
    assert (ROOT / "results/real-data/table.md").read_text() in (ROOT / "docs/real-data.md").read_text()


@pytest.fixture
def baselines(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES / "real_data")
    import baselines

    return baselines


def test_counts_of_real_data_are_a_proper_code(baselines):
    # Over all continuations of a text, the probabilities add up to one.
    for order in (0, 1, 2):
        total = sum(2 ** -baselines.count_bits("abcabcab" + symbol, order, 3)[-1] for symbol in "abc")
        assert total == pytest.approx(1)
    # And a text without chance is learned: a few bits in all instead of 1.58 each.
    assert baselines.count_bits("abc" * 100, 2, 3).sum() < 25
    assert baselines.count_bits("abc" * 100, 0, 3).mean() > 1.5


def test_linear_forecasts_of_real_data_use_only_the_past(baselines):
    x = np.sin(np.arange(400) / 5)
    target = np.roll(x, -3)
    forecasts = baselines.linear_forecasts(x, target, 3, 4)
    assert np.abs(forecasts[300:390] - target[300:390]).max() < 0.02
    x[200:], target[197:] = 7, 7
    assert np.array_equal(baselines.linear_forecasts(x, target, 3, 4)[:200], forecasts[:200])
