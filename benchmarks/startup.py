"""What a start of `norewind train` costs: CPU time up to the first chunk that was learned, and where it goes.

    python -m benchmarks.startup             # a small CSV, a small text: the second start, best of 3
    python -m benchmarks.startup --programs  # and the programs that were traced, with their times

The first start fills a cache of compiled programs of its own; what is printed is the best of those after it.
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

WORDS = ["the", "rain", "in", "Spain", "falls", "mainly", "on", "a", "plain", "while", "quick", "foxes", "jump", "over"]
PHASES = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "reading the cache, or compiling",
}
MARK = "startup: "
"""Before the line that a process writes for the one that started it."""


def write_sources(folder: Path) -> dict[str, list[str]]:
    """A table of 500 rows and a text of 5 kB, and the arguments to train on them."""
    draw = random.Random(0)
    rows = "".join(f"{i},{draw.gauss(0, 1):.4f},{draw.gauss(0, 1):.4f}\n" for i in range(500))
    (folder / "small.csv").write_text("time,a,b\n" + rows)
    (folder / "small.txt").write_text(" ".join(draw.choices(WORDS, k=1_200))[:5_000])
    csv, text = str(folder / "small.csv"), str(folder / "small.txt")
    return {"csv": [csv], "text": [text], "uoro": [text, "--method", "uoro:window=16"]}


class Imports:
    """The CPU time that imports take, wherever they are."""

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
    """Train until the first chunk is learned, and say where the time went."""
    began, imports = time.process_time(), Imports()
    # JAX reports how long it traces and compiles by this clock: other processes must not count.
    time.time = time.process_time
    from norewind.cache import keep_compiled

    keep_compiled()  # before JAX is imported
    import jax

    import norewind.cli
    from norewind.runs.progress import Progress

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
    Progress.advance = stop
    norewind.cli.main(["train", *arguments])


def start(arguments: list[str], folder: Path, number: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.startup", "--child", *arguments, "--out", str(folder / f"{number}")]
    environment = {**os.environ, "NOREWIND_CACHE": str(folder / "cache")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or Python would compile this package again at every start
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
    parser.add_argument("--only", default="csv,text,uoro", help="which of csv, text and uoro")
    options = parser.parse_args()
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
            print(f"  {len(programs)} times traced, lowered or compiled")
            for phase, program, seconds in programs if options.programs else ():
                print(f"    {1e3 * seconds:7.1f} ms  {phase:32}{program}")


if __name__ == "__main__":
    main()
