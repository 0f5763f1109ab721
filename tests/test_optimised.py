"""The main claims again with XLA's optimisations on, which conftest.py turns off for the other tests."""

import subprocess
import sys
from pathlib import Path

from quick import as_users_run


def test_the_main_claims_hold_as_users_run_them():
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(Path(__file__).parent / "optimised.py"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=as_users_run(), check=False)
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout
