"""The floor: one UORO step fused by hand in C (GRU-64, 3 symbols, Adam), which measures its own time."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks.timing import ROUNDS

STEPS = 20_000


def measure_floor() -> list[dict]:
    """Measure the floor. Without a compiler, there is no row."""
    compiler = shutil.which("gcc")
    if compiler is None:
        print("gcc is not installed, so the hand-written floor is left out.")
        return []
    source = Path(__file__).with_name("floor.c")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "floor"
        flags = ["-O3", "-march=native", "-ffast-math"]
        subprocess.run([compiler, *flags, str(source), "-lm", "-o", str(program)], check=True)
        rounds = [_microseconds(program) for _ in range(ROUNDS)]
    return [{"case": "floor (C)", "us": min(rounds), "rounds": rounds}]


def _microseconds(program: Path) -> float:
    printed = subprocess.run([str(program), str(STEPS)], capture_output=True, text=True, check=True).stdout
    found = re.search(r"us/step ([\d.]+)", printed)
    assert found, printed
    return float(found[1])
