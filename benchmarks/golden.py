"""Golden runs: what this code computes, recorded so that later code can be compared with it bit for bit.

    python benchmarks/golden.py record FOLDER      run every case with the norewind that is importable (PYTHONPATH)
    python benchmarks/golden.py compare OLD NEW    print every difference; exit 1 if there is any

Both recordings must come from the same machine and the same JAX: others round differently. Every case is one .npz of
arrays, lines of text and how it ended. FOLDER/work keeps the run folders and the files they were trained on; compiled
programs go to `compiled` beside FOLDER, so that a later recording compiles only what changed.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue

import jax
import numpy as np
import safetensors.numpy

import norewind

# ---- What may differ between two trees: all of it is here. ----

RENAMES = {"level": "baseline"}
"""Old word -> new word in the names of JSON fields, leaves and exceptions."""

try:
    names = import_module("norewind.names")
except ModuleNotFoundError:
    names = import_module("norewind.methods")

try:
    names.parse_method("uoro:window=2")
    WINDOW = "window"
except ValueError:
    WINDOW = "memory"


def spelled(argument):
    """Methods are written with `window=` in this file."""
    return argument.replace("window=", f"{WINDOW}=")


# ---- The cases. ----

METHODS = [
    f"{name}:4" if name == "sliding_bptt" else name
    for name in (names.methods() if hasattr(names, "methods") else names.METHODS)
]
METHODS += ["bptt:4", "uoro:window=4,rank=2"]
GRU_METHODS = ["uoro:rho=released", "uoro:rank=3", "dni:rate=0.01", "nobacktrack:row_norms=pullbacks", "rtrl:4"]
SIZE = {"inputs": 4, "hidden": 5, "outputs": 4}
CELLS = {
    **{name: getattr(norewind.cells, name)(**SIZE) for name in ("rnn", "gru", "lstm", "elman")},
    "plain_lstm": norewind.cells.lstm(**SIZE, embedding=False),
    "stack": norewind.cells.stack(norewind.cells.gru(4, 5, 6), norewind.cells.rnn(6, 5, 4, symbols=False)),
    "reservoir": norewind.cells.reservoir(**SIZE, sparsity=0.5),
    "feedback_reservoir": norewind.cells.feedback_reservoir(**SIZE, sparsity=0.5),
    "liquid": norewind.cells.liquid(**SIZE, sparsity=0.5, input_scaling=2.0),
}


def commands():
    """Command lines by the name of their run folder, in order; `<file` is the standard input."""

    def train(source, options="", method="uoro:window=16"):
        return f"train {source} --hidden 6 --samples 400 --metrics-every 100 --rate 0.01 --method {method} {options}"

    text = "--format text --alphabet-size 20"
    often = "--checkpoint-every 128 --predictions file"
    rows = "--inputs power heat --targets power --horizon 3"
    predict, learn, sample = "predict --samples 90", "predict --samples 90 --learn", "sample --length 80 --prompt ab"
    moved, other = "resume --samples 700 --source data/moved.txt", "predict data/other.txt --fresh"
    mean = "--inputs heat --targets power --horizon 0 --missing mean --no-standardise"
    skip = "--format text --alphabet 'abcdef ' --bad skip --predictions stdout"
    return {f"gru {method}": [train("anbn", method=method)] for method in METHODS} | {
        "elman": [train("anbn", "--cell elman --optimizer sgd")],
        "gru": [train("brackets", "--clip 0.1 --optimizer adagrad")],
        "lstm": [train("brackets", "--cell lstm --layers 2")],
        "plain_lstm": [train("brackets", "--cell plain_lstm --precision double")],
        "rnn": [train("anbn", "--cell rnn --seed 7 --parameters 2 5 --alpha 0 --optimizer rmsprop")],
        "lstm97": [train("anbn", "--cell plain_lstm", "lstm97")],
        "anbn": [train("anbn", often), "resume --samples 700", f"{sample} --seed 3"],
        "bytes": [train("data/bytes.bin", often), "resume --samples 700", predict, sample],
        "text": [train("data/text.txt", f"{text} {often}"), moved, learn, f"{sample} --temperature 0.7", other],
        "csv": [train("data/rows.csv", f"{rows} {often}"), "resume --samples 550", predict, learn],
        "csv mean": [train("data/rows.csv", mean, "rtrl")],
        "jsonl": [train("data/rows.jsonl", f"{rows} --loss gaussian {often}"), "predict data/other.jsonl"],
        "pipe": [train("-", f"{skip} <data/text.txt"), "resume --samples 700 --continues <data/other.txt"],
    }


def write_data(folder):
    folder.mkdir(parents=True)
    text = "abc abd abe " * 30 + "äbc abß déf " * 20 + "Ωab 漢字b 🙂c " * 20
    for name in ("text.txt", "moved.txt"):
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "other.txt").write_text("bad cab 漢b äc " * 40, encoding="utf-8")
    (folder / "bytes.bin").write_bytes(bytes((i * i // 7 + i % 5) % 256 if i % 3 else 97 for i in range(1500)))
    rows = []
    for i in range(600):
        power = None if i % 13 == 4 else (i * i % 23 + i * 37 % 11) / 16
        rows.append({"power": power, "heat": None if i % 29 == 7 else i * i % 17 - 3})
    lines = [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
    (folder / "rows.csv").write_text("\n".join(["power,heat", *lines, ""]))
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "other.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows[100:180]))


# ---- Recording. ----


def save(folder, case, entries):
    np.savez(Path(folder, re.sub(r"\W+", "-", case) + ".npz"), **entries)


def lines_of(content):
    """Lines as an array of JSON strings: bytes that are no text keep their place."""
    return np.array([json.dumps(line) for line in content.decode(errors="surrogateescape").split("\n")])


def leaves(run, **more):
    def numbers(leaf):
        return np.asarray(jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)

    parts = {"params": run.params, "state": run.state, "carry": run.carry, "optimizer": run.optimizer, **more}
    return {jax.tree_util.keystr(path): numbers(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(parts)}


def started(cell, estimator, state):
    learner = norewind.online(estimator, norewind.adam(norewind.inverse_sqrt(1e-2, alpha=0.03)))
    symbols = np.array([(i * i + i // 3) % 4 for i in range(97)], np.int32)
    return learner, learner.init(cell.init(jax.random.key(0)), state, jax.random.key(1)), symbols[:-1], symbols[1:]


def scanned(cell, spec):
    method = names.parse_method(spelled(spec))
    window = getattr(method, WINDOW)
    estimator = method.make(cell.transition, norewind.losses.cross_entropy, np.int32(0))
    learner, run, x, target = started(cell, estimator, cell.initial_state())
    x, target = (side.reshape(-1, window) if window > 1 else side for side in (x, target))
    run, losses = learner.scan(run, x, target)
    return leaves(run, losses=losses)


def other_ways(cell):
    """Single steps, resets, late targets, part of a chunk, and several streams, with UORO."""
    estimator = norewind.uoro(cell.transition, norewind.losses.cross_entropy)
    learner, run, x, target = started(cell, estimator, cell.initial_state())
    for i in range(20):
        run, estimate = learner.step(run, x[i], target[i])
    late = run = learner.reset(run)
    for i in range(20):
        late, output = learner.predict(late, x[i])
        late = learner.learn(late, target[i - 3])[0] if i >= 3 else late
    part, seen = learner.scan(run, x, target, resets=np.arange(96) % 10 == 9, count=80, outputs=True)
    streams = norewind.parallel(norewind.average(estimator, 2), 3)
    learner, many, x, target = started(cell, streams, np.stack([cell.initial_state()] * 3))
    many, losses = learner.scan(many, x.reshape(-1, 3), target.reshape(-1, 3))
    return leaves(run, late=late, part=part, many=many, seen=(estimate, output, seen, losses))


def record_core(folder, name):
    """Every method on one cell, in this process. What is refused belongs to the record."""
    for spec in METHODS + ([*GRU_METHODS, "other ways"] if name == "gru" else []):
        try:
            entries = other_ways(CELLS[name]) if spec == "other ways" else scanned(CELLS[name], spec)
        except Exception as error:
            entries = {"refused": lines_of(type(error).__name__.encode())}
            print(f"refused: {name}, {spec}: {type(error).__name__}: {str(error)[:100]}", flush=True)
        save(folder, f"core {name} {spec}", entries)


def record_commands(folder, name, lines):
    """The commands of one run folder, one after another. Returns those that crashed."""
    place, crashed = Path("runs", re.sub(r"\W+", "-", name)), []
    for number, line in enumerate(lines):
        line, _, source = line.partition(" <")
        command, *options = map(spelled, shlex.split(line))
        options = [*options, "--out", place] if command == "train" else [place, *options]
        call = [sys.executable, "-m", "norewind", command, *options]
        given = (folder / "work" / source).read_bytes() if source else b""
        done = subprocess.run(call, cwd=folder / "work", input=given, capture_output=True, check=False)
        if done.returncode:
            print(f"exit {done.returncode}: {name}, {command}: {done.stderr.decode().strip()[-200:]}", flush=True)
        if done.returncode not in (0, 1, 3) or b"Traceback" in done.stderr:
            crashed.append(f"{name}, {command}")
        entries = {"exit": np.array(done.returncode), "stdout": lines_of(done.stdout)}
        if command in ("train", "resume"):
            made = sorted((folder / "work" / place).rglob("*.safetensors"), key=lambda path: path.name)
            entries |= safetensors.numpy.load_file(made[-1]) if made else {}
            entries |= {log.name: lines_of(log.read_bytes()) for log in (folder / "work" / place).glob("*.jsonl")}
        save(folder, f"cli {name} {number} {command}", entries)
    return crashed


def record(folder):
    began, folder = time.monotonic(), Path(folder).resolve()
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty: choose another folder.")
    write_data(folder / "work" / "data")
    home = Path(norewind.__file__).resolve().parents[1]
    versions = [f"{library} {version(library)}" for library in ("jax", "jaxlib", "numpy", "optax")]
    (folder / "versions.txt").write_text("\n".join([f"Python {sys.version}", *versions, ""]))
    print(f"recording {home} with {', '.join(versions)}", flush=True)
    for variable in [name for name in os.environ if name.startswith(("JAX_", "XLA_"))]:
        del os.environ[variable]
    os.environ |= {"PYTHONPATH": str(home), "PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "MPLBACKEND": "agg"}
    # XLA may divide work by the threads and cores that it sees: one thread, and one core for each of two workers.
    os.environ |= {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    compiled = str(folder.parent / "compiled")
    os.environ |= {"JAX_COMPILATION_CACHE_DIR": compiled, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    cores = SimpleQueue()
    for number in sorted(os.sched_getaffinity(0))[-2:]:
        cores.put(number)

    def core_cases(name):
        done = subprocess.run([sys.executable, __file__, "core", folder, name], cwd=folder, check=False)
        return [f"core {name}"] if done.returncode else []

    with ThreadPoolExecutor(cores.qsize(), initializer=lambda: os.sched_setaffinity(0, {cores.get()})) as workers:
        jobs = [workers.submit(core_cases, name) for name in CELLS]
        jobs += [workers.submit(record_commands, folder, name, lines) for name, lines in commands().items()]
        crashed = [case for job in jobs for case in job.result()]
    print(f"{len(list(folder.glob('*.npz')))} cases, {time.monotonic() - began:.0f} s; crashed: {crashed or 'none'}")
    return bool(crashed)


# ---- Comparing. ----


def renamed(name):
    return re.sub(r"\w+", lambda word: RENAMES.get(word[0], word[0]), name)


def canonical(line):
    """A JSON line with its fields renamed and sorted, without the one that is never the same again; others as is."""

    def fields(pairs):
        return {renamed(name): value for name, value in pairs if name != "seconds"}

    line = json.loads(line)
    try:
        return json.dumps(json.loads(line, object_pairs_hook=fields), sort_keys=True)
    except ValueError:
        return RENAMES.get(line, line)


def difference(a, b):
    """What differs between two arrays or lists of lines, in words; None if nothing does."""
    if a.dtype.kind == b.dtype.kind == "U":
        a, b = ([canonical(line) for line in side.tolist()] for side in (a, b))
        wrong = [(i, x, y) for i, (x, y) in enumerate(zip(a, b, strict=False), 1) if x != y]
        if wrong:
            return "{} of {} lines differ, first line {}: {!a} became {!a}".format(len(wrong), len(a), *wrong[0])
        return None if len(a) == len(b) else f"{len(a)} lines became {len(b)}"
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{a.dtype}{a.shape} became {b.dtype}{b.shape}"
    if a.tobytes() == b.tobytes():
        return None
    gap = np.max(np.abs(a.astype(float) - b.astype(float)))
    return f"{np.sum(a != b)} of {a.size} numbers differ, by up to {gap:.3g}"


def compare(*folders):
    cases = [{path.stem: path for path in Path(folder).glob("*.npz")} for folder in folders]
    if not all(cases):
        raise SystemExit("a recording without cases: nothing to compare.")
    if len({Path(folder, "versions.txt").read_text() for folder in folders}) > 1:
        print("note: recorded with different versions (versions.txt), which may round differently.")
    pairs, count = Counter(), 0
    for case in sorted(cases[0].keys() | cases[1].keys()):
        old, new = ({renamed(k): v for k, v in np.load(side[case]).items()} if case in side else {} for side in cases)
        # Leaves that only one side has are compared in the order of their names.
        gone, came = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
        found = {name: difference(old[name], new[name]) for name in old if name in new}
        if len(gone) == len(came):
            pairs.update(zip(gone, came, strict=True))
            found |= {f"{a} / {b}": difference(old[a], new[b]) for a, b in zip(gone, came, strict=True)}
        else:
            found |= dict.fromkeys(gone, "only in old") | dict.fromkeys(came, "only in new")
        count += sum(what is not None for what in found.values())
        print(*(f"{case}: {name}: {what}\n" for name, what in found.items() if what), sep="", end="")
    for (before, after), times in pairs.items():
        print(f"note: {before} was compared with {after}, {times} times.")
    print(f"{len(cases[0])} and {len(cases[1])} cases, {count} differences.")
    return count > 0


if __name__ == "__main__":
    actions = {"record": record, "compare": compare, "core": record_core}
    if len(sys.argv) != (3 if sys.argv[1:2] == ["record"] else 4) or sys.argv[1] not in actions:
        sys.exit(__doc__)
    sys.exit(actions[sys.argv[1]](*sys.argv[2:]))
