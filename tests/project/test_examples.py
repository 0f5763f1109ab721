"""The examples run as a reader would run them, with small settings."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from quick import as_users_run

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(command, **changes):
    environment = {**as_users_run(), "PYTHONPATH": str(ROOT), **changes}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def output_of(*command, **changes):
    done = run(command, **changes)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_text_is_learned_and_written():
    shown = output_of(sys.executable, EXAMPLES / "text.py", "--samples", "20000")
    bits = [float(number) for number in re.findall(r"([\d.]+) bits", shown)]
    assert len(bits) == 2
    assert bits[-1] < 0.5 * bits[0]
    assert "the " in shown.partition("written by the model:")[2]


@pytest.mark.slow
def test_sensors_are_forecast_and_the_fault_is_found():
    shown = output_of(sys.executable, EXAMPLES / "sensors.py")
    errors = [float(number) for number in re.findall(r"squared error ([\d.]+)", shown)]
    assert errors[0] < 0.6 * errors[1]
    assert "false alarms: 0" in shown
    start, end, alarm = map(int, re.search(r"row (\d+) to (\d+); alarm at row (\d+)", shown).groups())
    assert start <= alarm < end


def test_the_pipeline_shows_the_unusual_line():
    shown = output_of("sh", EXAMPLES / "pipeline.sh", NOREWIND=f"{sys.executable} -m norewind").splitlines()
    assert any(line.startswith("line 950,") for line in shown)
    assert len(shown) == 4


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one():
    assert "bit for bit" in output_of(sys.executable, EXAMPLES / "resume.py", "--samples", "6000")


def test_the_study_of_real_data_explains_that_it_needs_the_network(tmp_path):
    done = run([sys.executable, "-m", "examples.real_data", "--cache", tmp_path, "--out", tmp_path], PIP_NO_INDEX="1")
    assert done.returncode == 1
    assert "could not be downloaded" in done.stderr
    assert "Traceback" not in done.stderr
