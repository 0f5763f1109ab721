"""The README's examples run as a new user would run them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from quick import as_users_run

import norewind

ROOT = Path(__file__).parents[2]


def run(arguments, cwd=None):
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=as_users_run(), check=False)


def test_the_model_of_your_own_learns(tmp_path):
    section = (ROOT / "README.md").read_text().partition("## A model of your own")[2]
    code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    statements = [line for line in code.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert len(statements) <= 30
    done = run(["-c", code], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    errors = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(errors) == 8
    assert errors[-1] < 0.2 * errors[0]


def test_the_readme_fits_on_two_screens():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def test_the_demo_runs_and_draws(tmp_path):
    script = ROOT / "examples" / "demo.py"
    options = ["--samples", "4e4", "--out", str(tmp_path)]
    done = run([str(script), *options])
    assert done.returncode == 0, done.stderr
    assert "40,000 samples" in done.stdout
    assert "above the floor of 0.1429" in done.stdout
    assert (tmp_path / "anbn.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", [name for name in norewind.__all__ if callable(getattr(norewind, name))])
def test_every_public_function_is_documented(name):
    assert len(getattr(norewind, name).__doc__ or "") > 40


def test_estimators_and_combinators_have_an_example_that_runs():
    methods = (norewind.uoro, norewind.rtrl, norewind.bptt, norewind.window, norewind.average, norewind.parallel)
    for function in (*methods, norewind.online, norewind.core.random_signs, norewind.inverse_sqrt):
        assert ">>>" in function.__doc__, function


def test_the_table_of_methods_is_complete():
    lines = (ROOT / "docs/methods.md").read_text().splitlines()
    methods = [line.split("|")[1] for line in lines if line.startswith("| `")]
    for name in norewind.estimators.__all__:
        assert any(f"`{name}`" in method for method in methods), name
