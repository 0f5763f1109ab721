"""The cost of starting `norewind train`: CPU time until the first chunk has been learned from, by phase.

    python -m benchmarks.startup             # a small CSV, a small text, one row in Python: the second start, best of 3
    python -m benchmarks.startup --programs  # and the programs that were traced, with their times

The first start fills a separate cache of compiled programs. The best of the later starts is printed.
"""

import argparse
import builtins
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.timing import use_one_core

WORDS = ["the", "rain", "in", "Spain", "falls", "mainly", "on", "a", "plain", "while", "quick", "foxes", "jump", "over"]
PHASES = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "reading the cache, or compiling",
}
# The prefix of the line that a child process reports its result in.
MARK = "startup: "


def write_sources(folder: Path) -> dict[str, list[str]]:
    """Write a table of 500 rows and a text of 5 kB, and return the arguments to train on them."""
    draw = random.Random(0)
    rows = "".join(f"{i},{draw.gauss(0, 1):.4f},{draw.gauss(0, 1):.4f}\n" for i in range(500))
    (folder / "small.csv").write_text("time,a,b\n" + rows)
    (folder / "small.txt").write_text(" ".join(draw.choices(WORDS, k=1_200))[:5_000])
    csv, text = str(folder / "small.csv"), str(folder / "small.txt")
    return {"csv": [csv], "text": [text], "uoro": [text, "--method", "uoro:window=16"], "row": []}


class Imports:
    """Measures the CPU time of all imports."""

    def __init__(self):
        self.seconds, self._depth, self._import = 0.0, 0, builtins.__import__
        builtins.__import__ = self

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        began, self._depth = time.process_time(), self._depth + 1
        try:
            return self._import(*arguments, **keywords)
        finally:
            self._depth -= 1
            if not self._depth:
                self.seconds += time.process_time() - began


def child(arguments: list[str]) -> None:
    """Train until the first chunk is learned (without arguments, learn one row), and report the time of each phase."""
    began, imports = time.process_time(), Imports()
    # JAX measures tracing and compilation with this clock. With CPU time, other processes do not count.
    time.time = time.process_time
    import norewind

    if arguments:
        import norewind.__main__
        from norewind.engines.cache import keep_compiled

        keep_compiled()  # before JAX is imported
    import jax

    phases: dict[str, float] = defaultdict(float)
    programs: list = []

    def heard(event: str, seconds: float, **about: Any) -> None:
        if event in PHASES:
            phases[PHASES[event]] += seconds
            programs.append([PHASES[event], about.get("fun_name", "?"), seconds])

    def stop(*_: Any) -> None:
        total = time.process_time()
        parts = {"Python": began, "imports": imports.seconds, **phases}
        parts["the rest"] = total - sum(parts.values())
        print(MARK + json.dumps({"total": total, **parts, "programs": programs}), flush=True)
        os._exit(0)

    jax.monitoring.register_event_duration_secs_listener(heard)
    if not arguments:
        model, row, answer = norewind.Forecaster(inputs=["a", "b"], targets=["a"]), {"a": 1.0, "b": 2.0}, None
        while answer is None:
            answer = model.predict_one(row)
            model.learn_one(row)
        stop()
    import norewind.cli
    from norewind.training.progress import Progress

    Progress.advance = stop
    norewind.cli.main(["train", *arguments])


def start(arguments: list[str], folder: Path, number: int) -> dict[str, Any]:
    """Start a child process, and return its report.

    Args:
        arguments: the arguments of `norewind train`.
        folder: the folder for the cache and the runs.
        number: the number of this start, which names its run folder.
    """
    out = ["--out", str(folder / f"{number}")] if arguments else []
    command = [sys.executable, "-m", "benchmarks.startup", "--child", *arguments, *out]
    environment = {**os.environ, "NOREWIND_CACHE": str(folder / "cache")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise Python would compile this package at every start
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not lines:
        raise SystemExit(f"{' '.join(command)} learned nothing:\n{done.stderr}")
    return json.loads(lines[0].removeprefix(MARK))


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", action="store_true", help="list every program that was traced")
    parser.add_argument("--starts", type=int, default=3, help="starts after the first; the best counts")
    parser.add_argument("--only", default="csv,text,uoro,row", help="which of csv, text, uoro and row")
    options = parser.parse_args()
    use_one_core()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, arguments in write_sources(folder).items():
            if kind not in options.only.split(","):
                continue
            (folder / kind).mkdir()
            first, *later = (start(arguments, folder / kind, number) for number in range(options.starts + 1))
            best = min(later, key=lambda record: record["total"])
            print(f"{kind}: first start {first['total']:.2f} s of CPU, second {best['total']:.2f}")
            programs = best.pop("programs")
            print("".join(f"  {seconds:6.2f}  {part}\n" for part, seconds in best.items() if part != "total"), end="")
            print(f"  {len(programs)} events of tracing, lowering or compiling")
            for phase, program, seconds in programs if options.programs else ():
                print(f"    {1e3 * seconds:7.1f} ms  {phase:32}{program}")


if __name__ == "__main__":
    main()
