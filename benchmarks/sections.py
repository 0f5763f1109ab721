"""The sections of the benchmark. Each runs in a separate process and returns rows of plain numbers."""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from benchmarks.timing import Case, measure

SIZES = (16, 32, 64, 128, 256, 512)
METHODS = ("uoro", "uoro:window=16", "uoro:rank=8", "rtrl", "bptt")
MAX_RTRL_UNITS = 128  # its time grows with the fourth power: 512 units would take minutes per character
STREAMS = (1, 4, 16, 64, 256)


def step() -> list[dict]:
    """One step of a GRU-64: UORO, the floor, and everything that UORO is compared with."""
    from benchmarks import ours
    from benchmarks.floor import measure_floor

    cases = [
        ours.learning("uoro", "uoro", 8192),
        ours.learning("bptt, one step", "bptt", 8192),
        ours.forward("forward pass alone", 8192),
        ours.learning("uoro, rank 8", "uoro:rank=8", 2048),
        ours.learning("uoro, window 16", "uoro:window=16", 8192),
        ours.learning('uoro, nonfinite="skip"', "uoro", 4096, nonfinite="skip"),
    ]
    return measure_floor() + measure(cases + _peers("gru"))


def parts() -> list[dict]:
    """The cost of the parts of a step: a GRU-64 with one part left out or replaced. Some variants no longer learn."""
    import jax
    import jax.numpy as jnp
    import optax

    from benchmarks import ours

    def no_noise(key, like):
        return jax.tree.map(lambda leaf: jnp.where(jnp.arange(leaf.size) % 3 == 0, -1.0, 1.0), like), key

    cases = [
        ours.changed_uoro("uoro", 8192),
        ours.changed_uoro("without noise", 8192, noise=no_noise),
        ours.changed_uoro("without norms", 8192, norm=lambda tree: jnp.ones(())),
        ours.changed_uoro("with SGD for Adam", 8192, optimizer=optax.sgd),
        ours.changed_uoro("with optax.adam", 8192, optimizer=optax.adam),
    ]
    return measure(cases)


def lstm() -> list[dict]:
    """The same for the LSTM-64, for which there is no hand-written floor."""
    from benchmarks import ours

    cases = [
        ours.learning("uoro", "uoro", 4096, cell="lstm"),
        ours.learning("bptt, one step", "bptt", 4096, cell="lstm"),
        ours.forward("forward pass alone", 4096, cell="lstm"),
        ours.learning("uoro, rank 8", "uoro:rank=8", 1024, cell="lstm"),
    ]
    return measure(cases + _peers("lstm"))


def single() -> list[dict]:
    """Single calls of a GRU-64 with UORO, on a plain run and on a packed run (`norewind.learners.PackedLearner`)."""
    from benchmarks.single import cases

    return measure(cases(), rounds=20)


def reading() -> list[dict]:
    """Reading rows from files and from Python, without learning: microseconds per row."""
    from benchmarks.reading import cases

    with tempfile.TemporaryDirectory() as folder:
        return measure(cases(Path(folder)), rounds=5)


def rows() -> list[dict]:
    """Forecasts of rows by `auto`, in chunks and row by row: microseconds per row."""
    from benchmarks.rows import cases

    return measure(cases(), rounds=20)


def models() -> list[dict]:
    """`predict_one` and `learn_one` of `norewind.Forecaster`, one after the other: microseconds for both."""
    import math

    import norewind

    table = [{"power": 10 + 3 * math.sin(i / 4) + i * 7919 % 13 / 13, "wind": math.cos(i / 50)} for i in range(1_000)]

    def both(budget: float) -> Case:
        model = norewind.Forecaster(targets="power", budget=budget).fit(table)

        def run():
            for row in table[:500]:
                model.predict_one(row)
                model.learn_one(row)

        name = "without networks" if budget < 10 else "default"
        return Case(f"Forecaster, predict_one + learn_one, {name}", run, 500)

    return measure([both(6), both(50)], rounds=40)


def text() -> list[dict]:
    """Counts, `auto`, compress and decompress on texts: bits, and microseconds per byte."""
    from benchmarks.text import TEXTS, measured

    found = [(path, row) for path in TEXTS if path.exists() for row in measured(path)]
    return [
        {"case": f"{path.stem}, {row['name']}", "us": row["microseconds"], "bits": row["bits"]} for path, row in found
    ]


def _peers(cell: str) -> list[Case]:
    cases = []
    if _installed("braintrace"):
        from benchmarks import peer_braintrace

        cases.append(peer_braintrace.learning("braintrace uoro", 2048, cell))
    if _installed("torch"):
        from benchmarks import peer_torch

        cases.append(peer_torch.learning("PyTorch, compiled", 500, cell, compiled=True))
        cases.append(peer_torch.learning("PyTorch, eager", 40, cell))
    return cases


def _installed(library: str) -> bool:
    if find_spec(library) is None:
        print(f"{library} is not installed, so its rows are left out. `make bench` installs it.")
        return False
    return True


def sizes() -> list[dict]:
    """From 16 to 512 units: time per character, and the bytes that each method carries."""
    from benchmarks import ours

    rows = []
    for hidden in SIZES:
        # About a tenth of a second per round: the arithmetic of a step grows with the square of the units.
        length = max(32, min(8192, 4096 * 64**2 // hidden**2))
        methods = [method for method in METHODS if method != "rtrl" or hidden <= MAX_RTRL_UNITS]
        lengths = {"uoro:rank=8": max(32, length // 4), "rtrl": max(2, 512 * 16**3 // hidden**3)}
        cases = [ours.learning(method, method, lengths.get(method, length), hidden=hidden) for method in methods]
        for row in measure(cases, rounds=5):
            rows.append({**row, "hidden": hidden, "carried": ours.carried_bytes(row["case"], hidden=hidden)})
    return rows


def streams() -> list[dict]:
    """Many streams, counting all characters: shared parameters (`parallel`), and independent learners (`vmap`)."""
    return _streams(time.process_time)


def two_cores() -> list[dict]:
    """The same by wall-clock time, to compare one core with two."""
    return _streams(time.perf_counter)


def _streams(clock) -> list[dict]:
    import jax
    import jax.numpy as jnp

    from benchmarks import ours
    from norewind.engines.compilation import FASTER_LOOPS

    rows = []
    for streams in STREAMS:
        length = max(16, 4096 // streams)
        inputs, targets = (part.reshape(length, streams) for part in ours.text(length * streams))
        shared, shared_run = ours.learner_and_run("uoro", streams=streams)
        single, run = ours.learner_and_run("uoro")
        runs = jax.tree.map(lambda leaf: jnp.stack([leaf] * streams), run)  # noqa: B023
        independent = jax.jit(jax.vmap(single.scan, in_axes=(0, 1, 1)), compiler_options=FASTER_LOOPS)
        cases = [
            ours.waiting("parallel", length * streams, shared.scan, shared_run, inputs, targets),
            ours.waiting("independent", length * streams, independent, runs, inputs, targets),
        ]
        rows += [{**row, "streams": streams} for row in measure(cases, clock, rounds=5)]
    return rows


def memory() -> list[dict]:
    """The resident memory of the process after 10⁵, 10⁶ and 10⁷ steps."""
    import jax

    from benchmarks import ours

    learner, run = ours.learner_and_run("uoro")
    rows, done, chunk = [], 0, 10_000
    pairs = ours.TASK.pairs(0, chunk)
    for steps in (10**5, 10**6, 10**7):
        while done < steps:
            run, losses, _ = learner.scan(run, *next(pairs))
            done += chunk
        jax.block_until_ready(losses)
        rows.append({"case": f"{steps:.0e} steps", "steps": steps, "resident": _resident_bytes()})
        print(rows[-1], flush=True)
    return rows


def _resident_bytes() -> int:
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


FIRST_SAMPLE = """
import time
began = time.process_time()
import jax, jax.numpy as jnp
import norewind
imported = time.process_time()
cell = norewind.cells.gru(3, 64, 3)
estimator = norewind.uoro(cell.transition, norewind.losses.cross_entropy)
learner = norewind.online(estimator, norewind.adam(1e-3))
run = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
CALL
jax.block_until_ready(run)
print(imported - began, time.process_time() - began)
"""
CALLS = {
    "first sample with step": "run, estimate = learner.step(run, jnp.array(0), jnp.array(1))",
    "first chunk with scan": "run, losses, _ = learner.scan(run, jnp.zeros(1000, int), jnp.ones(1000, int))",
}


def start() -> list[dict]:
    """CPU seconds from `import norewind` to the first learned sample, with compilation, in fresh processes."""
    rows = []
    for name, call in CALLS.items():
        rounds = []
        for _ in range(3):
            program = FIRST_SAMPLE.replace("CALL", call)
            printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
            rounds.append([float(number) for number in printed.split()])
        imported, total = min(rounds, key=lambda pair: pair[1])
        rows.append({"case": name, "import_seconds": imported, "seconds": total})
    return rows


def streaming() -> list[dict]:
    """The cost of `norewind train` on a text file beyond `scan` alone: reading, encoding, metrics, checkpoints."""
    from benchmarks import ours

    few, many = 200_000, 2_200_000
    bare = measure([ours.learning("bare scan", "uoro", 8192)])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text").write_text(ours.TASK.decode(next(ours.TASK.chunks(0, many + 1))))
        rounds = [[_train_seconds(folder, samples) for samples in (few, many)] for _ in range(3)]
    # The difference of two runs, since both include the cost of starting and compiling.
    shorter, longer = map(min, zip(*rounds, strict=True))
    return [*bare, {"case": "norewind train", "us": (longer - shorter) / (many - few) * 1e6, "seconds": rounds}]


def _train_seconds(folder: Path, samples: int) -> float:
    """The CPU time of `norewind train` on the first samples of the text in a folder."""
    options = {"samples": samples, "format": "text", "alphabet": "ab\n", "cell": "gru", "hidden": 64, "method": "uoro"}
    flags = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    command = [sys.executable, "-m", "norewind", "train", str(folder / "text"), "--out", str(folder / "run"), *flags]
    before = os.times()
    subprocess.run([*command, "--checkpoint-every", "100000"], check=True, capture_output=True)
    after = os.times()
    shutil.rmtree(folder / "run")
    return after.children_user + after.children_system - before.children_user - before.children_system


# The sections in the order of the table. `two_cores` runs on all cores, the others on one.
SECTIONS = {
    section.__name__: section
    for section in (
        step,
        single,
        parts,
        lstm,
        sizes,
        streams,
        two_cores,
        memory,
        start,
        streaming,
        reading,
        rows,
        models,
        text,
    )
}
