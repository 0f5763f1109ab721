"""Pairs of everything: commands, settings and kinds of streams. Each case works, or is rejected by name.

`pytest -m "slow or not slow" --junitxml FILE` records what became of each case.
"""

import json
import shutil
from dataclasses import replace
from itertools import combinations, product

import pytest
from pairwise import all_pairs, pairs_of
from run_folders import everything, norewind

from norewind.errors import NorewindError
from norewind.serving.queues import IncomingRows
from norewind.serving.row_model import KeyedModel, SeriesModel
from norewind.serving.service import settings_to_serve
from norewind.storage.checkpoint import checkpoints
from norewind.training.folder import RunFolder, saved_run
from norewind.training.hooks import Hooks
from norewind.training.train_folder import train_folder

ROWS = 90
# Options that every stream has; "" is the default.
COMMON = {
    "method": ("--method auto --budget 6", "--method bptt:3 --hidden 2", "--method uoro --hidden 2"),
    "samples": ("", "--samples 40"),
    "metrics": ("", "--metrics-every 1", "--metrics-every 1000"),
    "checkpoints": ("", "--checkpoint-every 7", "--checkpoint-seconds 0", "--keep 1 --checkpoint-every 20"),
    "predictions": ("--predictions file", "", "--predictions stdout"),
    "precision": ("", "--precision double"),
    "flush": ("", "--flush 0", "--flush 1"),
    "more": ("", "--no-stop-if-diverged", "--final", "--bad skip", "--samples 0"),
}
TABLE = {
    "source": ("rows.csv", "rows.jsonl", "other.csv --delimiter ;", "bare.csv --no-header"),
    "inputs": ("", "--inputs sun", "--inputs sun when", "--inputs wind word"),
    "copy": ("", "--copy word", "--copy when sun"),
    "missing": ("", "--missing mean", "--missing skip", "--missing stop"),
    "standardise": ("", "--no-standardise"),
}
STEPS = {"steps": ("", "--horizon 0", "--horizon 2", "--horizon 168", "--only-steps 3", "--only-steps 1 200")}
FACTORS = {
    "symbols": {
        **COMMON,
        "source": ("letters", "letters --format text", "letters --format text --alphabet-size 3", "anbn --samples 80"),
        "per": ("", "--per line", "--per line --top 2"),
        "command": ("resume", "predict", "learn", "fresh", "sample", "prompt", "forecast", "plot", "serve", "compress"),
    },
    "numbers": {
        **{**COMMON, **TABLE, **STEPS},
        "targets": ("", "--targets wind", "--targets sun wind"),
        "loss": ("", "--loss gaussian"),
        "interval": ("", "--interval 0.8", "--interval 0.5,0.95"),
        "period": ("", "--period 1", "--period 5", "--period 200"),
        "known future": ("", "--known-future sun"),
        "command": ("resume", "predict", "learn", "fresh", "forecast", "csv", "far", "sample", "plot", "serve"),
    },
    "classes": {
        **{**COMMON, **TABLE, **STEPS},
        "method": COMMON["method"][1:],
        "targets": ("--targets word --loss classes", "--targets flag --loss classes"),
        "command": ("resume", "predict", "learn", "fresh", "forecast", "csv", "far", "sample", "plot", "serve"),
    },
    "keys": {
        **{**COMMON, **TABLE, **STEPS},
        # Methods with windows and a budget are rejected, and so is the key as a column to learn from or to copy.
        "method": ("--method auto", "--method uoro --hidden 2"),
        "inputs": ("", "--inputs sun", "--inputs sun when", "--inputs wind flag"),
        "copy": ("", "--copy when", "--copy when sun"),
        "targets": ("--targets wind", "--targets sun wind"),
        "loss": ("", "--loss gaussian"),
        "interval": ("", "--interval 0.8,0.95"),
        "key": ("--key word", "--key word --share", "--key word --resident 1"),
        "command": ("resume", "predict", "forecast", "csv", "far", "plot", "serve"),
    },
}
INTERVALS = ("--interval 0.8", "--interval 0.5,0.95", "--interval 0.8,0.95")
# Options that have no effect together. They are rejected (tests/training/test_scopes.py), which would hide
# everything else.
NOT_TOGETHER = (
    ({"precision": "--precision double"}, {"method": "--method auto"}),
    ({"precision": "--precision double"}, {"method": "--method auto --budget 6"}),
    ({"loss": "--loss gaussian"}, {"method": "--method auto"}),  # only with keys
    *(({"interval": one}, {"standardise": "--no-standardise"}) for one in INTERVALS),
    ({"more": "--final"}, {"source": "letters"}),
    ({"more": "--bad skip"}, {"source": "letters"}),
    *(({"more": more}, {"source": "anbn --samples 80"}) for more in ("--final", "--bad skip", "--samples 0")),
    # The task would not end, and a service does not stop at a number of rows.
    ({"samples": "--samples 40"}, {"source": "anbn --samples 80"}),
    ({"samples": "--samples 40"}, {"command": "serve"}),
    ({"more": "--samples 0"}, {"command": "serve"}),
    ({"more": "--samples 0"}, {"samples": "--samples 40"}),
    *(({"flush": flush}, {"source": "anbn --samples 80"}) for flush in ("--flush 0", "--flush 1")),
)


def is_possible(case) -> bool:
    return not any(case.items() >= (one | other).items() for one, other in NOT_TOGETHER)


def cases_of(kind) -> list[dict]:
    return all_pairs(FACTORS[kind], seed=1, allows=is_possible)


CASES = [(kind, case) for kind in FACTORS for case in cases_of(kind)]
QUICK = {("symbols", 3), ("numbers", 5), ("numbers", 9), ("numbers", 17), ("keys", 8)}


def row(number: int) -> dict:
    hour, key = f"2024-01-{1 + number // 24:02d} {number % 24:02d}:00", "xyz"[number * number % 3]
    sun = None if number == 50 else round((number * 7919 % 101) / 10, 2)
    return {"when": hour, "sun": sun, "wind": round(number / 9, 3), "word": key, "flag": number % 5 == 0}


def lines(names, rows, separator) -> str:
    def field(value) -> str:
        return {None: "", True: "true", False: "false"}[value] if value is None or type(value) is bool else str(value)

    return "".join(separator.join(field(one[name]) for name in names) + "\n" for one in rows)


def write_stream(folder, name: str, count: int) -> list:
    """Write a stream of a length, and return rows that follow, by column as the stream names them."""
    path, columns = folder / name, list(row(0))
    rows, rest = [row(number) for number in range(count)], [row(number) for number in range(count, count + 12)]
    if name == "letters":
        path.write_text("".join("abc\n"[n * n % 7 % 4] for n in range(count)) + "\n")
        return []
    if name == "rows.jsonl":
        path.write_text("".join(json.dumps(one) + "\n" for one in rows))
        return rest
    separator = ";" if name == "other.csv" else ","
    header = "" if name == "bare.csv" else separator.join(columns) + "\n"
    path.write_text(header + lines(columns, rows, separator))
    names = {column: str(place) for place, column in enumerate(columns, 1)} if name == "bare.csv" else {}
    return [{names.get(column, column): value for column, value in one.items()} for one in rest]


def options_of(case) -> list[str]:
    words = " ".join(value for name, value in case.items() if name != "command" and value).split()
    if "bare.csv" in words:
        # Its columns have numbers for names.
        names = {name: str(place) for place, name in enumerate(row(0), 1)}
        words = [names.get(word, word) for word in words]
    return words


def use(command: str, run, source) -> list:
    """A command for a run: its arguments."""
    there = source if source == "anbn" else run.parent / source
    return {
        "resume": ("resume", run, "--quiet"),
        "predict": ("predict", run, there, "--samples", 30),
        "learn": ("predict", run, there, "--learn", "--samples", 30),
        "fresh": ("predict", run, there, "--fresh", *(() if source == "anbn" else ("--flush", 0)), "--samples", 5),
        "sample": ("sample", run, "--length", 5),
        "prompt": ("sample", run, "--length", 5, "--prompt", "ab", "--temperature", 0.5),
        "forecast": ("forecast", run),
        "csv": ("forecast", run, "--format", "csv"),
        "far": ("forecast", run, "--steps", 200),
        "plot": ("plot", run, "--out", run.parent / "curves.png"),
        "compress": ("compress", run / "settings.toml", "--out", run.parent / "packed"),
    }[command]


def finish(capsys, command: str, *arguments) -> str:
    """Run a command, and return what became of it. Unless it worked, it said why in a sentence, without a traceback."""
    code, said = norewind(command, *arguments), capsys.readouterr().err
    assert "Traceback" not in said, said
    assert code in (0, 1, 3), (code, said)
    assert code == 0 or f"norewind {command}: " in said, said
    # With `--metrics-every 1`, five samples in a row above the baseline are a divergence (docs/streams.md).
    assert (code == 3) == ("the run diverged: " in said), (code, said)
    return {0: "worked", 1: "rejected", 3: "diverged"}[code]


def served(run, source, rest, folder) -> bool:
    """Serve a run and give it rows. Whether it is accepted; then it ends as if the rows had been in its file."""
    try:
        settings = settings_to_serve(run)
    except NorewindError:
        return False
    whole = shutil.copytree(run, folder / "whole")
    write_stream(folder, source, ROWS + 12)
    # A service predicts every row when it arrives, also in a partial window.
    at_once = replace(saved_run(whole)[0], flush=0.0)
    try:
        with RunFolder(whole, mode="resume") as held:
            train_folder(at_once, held)
    except NorewindError:
        write_stream(folder, source, ROWS)
        return True
    incoming = IncomingRows(100)

    def begin(training):
        model = (SeriesModel if settings.key is None else KeyedModel)(training, settings)
        needed = {name: value for name, value in rest[0].items() if name in model.stream.used_columns}
        for one in (rest[0], needed):
            assert len(model.answers([model.stream.read_back(one)[0]])) == 1
        model.close()
        incoming.add([model.stream.read_back(one) for one in rest])  # like `Service.read`
        incoming.close()

    with RunFolder(run, mode="resume") as held:
        train_folder(settings, held, continues=True, source=incoming, hooks=Hooks(begin=begin))
    found, expected = everything(run), everything(whole)
    for name in expected:
        assert found[name] == expected[name], f"serve differs from train in {name}"
    return True


def run_case(case, folder, capsys) -> tuple[str, str]:
    """Run a case, and return what became of the training and of the command after it."""
    words, source = options_of(case), case["source"].split()[0]
    rest = [] if source == "anbn" else write_stream(folder, source, ROWS)
    run = folder / "run"
    place = words.index(source)
    words[place : place + 1] = [source if source == "anbn" else str(folder / source)]
    trained = finish(capsys, "train", *words, "--out", run, "--quiet")
    if not checkpoints(run / "checkpoints"):
        return "empty" if trained == "worked" else trained, ""
    assert norewind("check", run) == 0, capsys.readouterr().out
    saved_run(run)
    if case["command"] == "serve":
        return trained, "worked" if served(run, source, rest, folder) else "rejected"
    return trained, finish(capsys, *use(case["command"], run, source))


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        pytest.param(kind, case, id=f"{kind}{number}", marks=() if (kind, number) in QUICK else pytest.mark.slow)
        for kind in FACTORS
        for number, case in enumerate(case for of, case in CASES if of == kind)
    ],
)
@pytest.mark.usefixtures("shared_programs")
def test_every_pair_works_or_is_rejected(kind, case, tmp_path, capsys, record_property):
    outcome = run_case(case, tmp_path, capsys)
    for name, value in zip(("training", "command"), outcome, strict=True):
        record_property(name, value)


def test_every_possible_pair_is_there():
    small = {"a": (1, 2, 3), "b": (1, 2), "c": (1, 2, 3, 4)}
    cases = all_pairs(small, seed=0, allows=lambda case: case["a"] + case["c"] != 7)
    wanted = {(a, x, b, y) for a, b in combinations(small, 2) for x, y in product(small[a], small[b])}
    assert set().union(*map(pairs_of, cases)) == wanted - {("a", 3, "c", 4)}
    assert len(cases) < 24
    assert cases == all_pairs(small, seed=0, allows=lambda case: case["a"] + case["c"] != 7)
