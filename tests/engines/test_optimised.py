"""The main claims again with XLA's optimisations on, which conftest.py turns off for the other tests."""

import subprocess
import sys
from pathlib import Path

from quick import as_users_run

TESTS = Path(__file__).parents[1]
BITS = "test_neither_batches_nor_other_keys_nor_the_disk_change_a_bit"
CLAIMS = (TESTS / "engines" / "optimised_claims.py", f"{TESTS / 'fleets' / 'test_fleet.py'}::{BITS}")


def test_the_main_claims_hold_with_optimisations():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, CLAIMS)]
    done = subprocess.run(command, capture_output=True, text=True, env=as_users_run(), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
