"""The table of which settings apply to what: each setting changes a run of each kind, or is rejected by name."""

import shutil
from dataclasses import fields

import numpy as np
import pytest
from run_folders import assert_rejected, everything, norewind

from norewind.analysis.compare import compare
from norewind.cli.train_command import DEFAULTS
from norewind.forecasting.models import Forecaster
from norewind.storage.checkpoint import checkpoints
from norewind.training.scopes import IGNORED_BY, SCOPES, with_scopes, without_effect
from norewind.training.settings import Settings, SettingsError

pytestmark = pytest.mark.usefixtures("shared_programs")

NETWORK = ("--method", "bptt", "--hidden", 3, "--seed", 1)
# The kinds of streams and methods, as options of the command line, for the files of `streams`.
KINDS = {
    "bytes": ("letters", *NETWORK),
    "lines": ("letters", "--per", "line", *NETWORK),
    "text": ("letters", "--format", "text", *NETWORK),
    "task": ("anbn", "--samples", 150, *NETWORK),
    "csv": ("rows.csv", "--inputs", "sun", "wind", "--targets", "sun", *NETWORK),
    "jsonl": ("rows.jsonl", "--inputs", "sun", "wind", "--targets", "sun", *NETWORK),
    "classes": ("rows.csv", "--inputs", "sun", "wind", "--targets", "mode", "--loss", "classes", *NETWORK),
    "keys": ("rows.csv", "--inputs", "sun", "wind", "--targets", "sun", "--key", "mode", *NETWORK),
    "auto": ("rows.csv", "--inputs", "sun", "wind", "--targets", "sun"),
    "auto, bytes": ("letters",),
    "auto, keys": ("rows.csv", "--inputs", "sun", "wind", "--targets", "sun", "--key", "mode"),
}
# A value other than the default for each setting.
VALUES = {
    **{"format": "jsonl", "seed": 2, "bad": "skip", "final": None, "alphabet": "abcd\n", "alphabet_size": 3},
    **{"per": "line", "top": 3, "inputs": "wind", "targets": "wind", "copy": "mode", "period": 5, "horizon": 2},
    **{"only_steps": 3, "loss": "gaussian", "missing": "mean", "standardise": None, "header": None, "delimiter": ";"},
    **{"brokers": "localhost:1", "group": "g", "client": "client.ini", "parameters": "2", "key": "mode", "share": None},
    **{"resident": 2, "shards": 2, "shard": 1, "cell": "elman", "hidden": 4, "layers": 2, "method": "readout_only"},
    **{"budget": 6.0, "optimizer": "sgd", "rate": 0.1, "alpha": 1.0, "clip": 0.01, "precision": "double"},
    **{"samples": 90, "metrics_every": 30, "checkpoint_every": 31, "checkpoint_seconds": 0, "keep": 1},
    **{"predictions": "stdout", "flush": 5, "tensorboard": None, "stop_if_diverged": None},
    **{"interval": 0.9, "non_negative": None, "known_future": "wind", "holidays": "DE"},
}
# Settings that change no number of such runs: only their time and memory, what is printed, and other processes.
UNSEEN = {"checkpoint_seconds", "flush", "resident", "stop_if_diverged", "top", "shards"}
# Pairs in which the value is the one that the kind has anyway.
OWN = {("lines", "per"), ("jsonl", "format"), ("keys", "key"), ("auto, keys", "key")}
# Text this short is learned in one chunk, after which there is only one checkpoint.
ONE_CHUNK = {("auto, bytes", "checkpoint_every"), ("auto, bytes", "keep")}
PAIRS = [(kind, name) for kind in KINDS for name in VALUES if (kind, name) not in OWN | ONE_CHUNK]


def test_every_setting_is_covered():
    assert {field.name for field in fields(Settings)} == {"source", *VALUES}
    assert SCOPES.keys() <= VALUES.keys()


@pytest.fixture(scope="module")
def streams(tmp_path_factory):
    """Short streams, at whose end there is something bad and something incomplete."""
    folder = tmp_path_factory.mktemp("streams")
    random = np.random.default_rng(0)
    (folder / "letters").write_bytes(b"".join(random.choice([b"a", b"b", b"cd", b"\n"], 100)) + b"\xffa\xc3")
    values = np.cumsum(random.normal(size=(150, 2)), axis=0).round(3)
    rows = [(*row, "xyz"[place % 3]) for place, row in enumerate(values.tolist())]
    rows[70] = (rows[70][0], "", "x")
    lines = [",".join(map(str, row)) for row in rows]
    (folder / "rows.csv").write_text("sun,wind,mode\n" + "\n".join([*lines, "1,2,3,4,5", "1,2,y"]))
    objects = [f'{{"sun": {sun}, "wind": {wind or "null"}, "mode": "{mode}"}}' for sun, wind, mode in rows]
    (folder / "rows.jsonl").write_text("\n".join([*objects, "{", objects[0]]))
    return folder


def option(name) -> list:
    value, dashed = VALUES[name], name.replace("_", "-")
    if value is None:
        return [f"--no-{dashed}" if getattr(DEFAULTS, name) else f"--{dashed}"]
    return [f"--{dashed}", value]


def train(streams, folder, kind, *options, logged=("--predictions", "file")):
    source, *more = KINDS[kind]
    shutil.rmtree(folder, ignore_errors=True)
    # In its own folder: sources are named as users do.
    arguments = ("train", source if kind == "task" else streams / source, *more, "--checkpoint-every", 50)
    return norewind(*arguments, *logged, *options, "--out", folder, "--quiet")


def described(streams, kind, name) -> Settings:
    """The settings of such a run, as far as the table looks at them."""
    values = dict(zip(KINDS[kind][1::2], KINDS[kind][2::2], strict=False)) if kind == "lines" else {}
    entries = {
        "source": "anbn" if kind == "task" else str(streams / KINDS[kind][0]),
        "format": "text" if kind == "text" else "auto",
        "per": values.get("--per", "symbol"),
        "loss": "classes" if kind == "classes" else "squared",
        "key": "mode" if "keys" in kind else None,
        "method": "auto" if "auto" in kind else "bptt",
    }
    value = VALUES[name]
    value = not getattr(DEFAULTS, name) if value is None else value
    if name in ("inputs", "targets", "copy", "only_steps", "parameters", "known_future"):
        value = (int(value) if name in ("only_steps", "parameters") else value,)
    return Settings(**{**entries, name: value})


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_that_has_no_effect_is_rejected_by_name(streams, tmp_path, capsys, kind):
    rejected = 0
    for name in VALUES:
        settings = described(streams, kind, name)
        unused = without_effect(settings)
        # `--key` and `--method` change what else applies.
        if name in unused:
            code = train(streams, tmp_path / "run", kind, *option(name))
            shown = f"{'horizon' if name == 'horizon' else name} is"
            assert_rejected(capsys, code, shown, f"only to {SCOPES[name].words}, and ")
            assert not (tmp_path / "run").exists()
            rejected += 1
    assert rejected >= 7


def trace(streams, folder, capsys, kind, *options, **more):
    """All that a run produces, except times and its settings."""
    code = train(streams, folder, kind, *options, **more)
    found = capsys.readouterr()
    assert "Traceback" not in found.err
    there = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    saved = checkpoints(folder / "checkpoints")
    return code, found.out, there, [path.name[:15] for path in saved], everything(folder) if saved else found.err


def expect_effect(streams, tmp_path, capsys, kind, name):
    settings = described(streams, kind, name)
    if name in without_effect(settings):
        return
    logged = () if name == "predictions" else ("--predictions", "file")
    # Otherwise, the bad input ends the run before the incomplete line.
    logged += ("--bad", "skip") if name == "final" else ()
    plain = trace(streams, tmp_path / "run", capsys, kind, logged=logged)
    changed = trace(streams, tmp_path / "run", capsys, kind, *option(name), logged=logged)
    assert changed[0] in (0, 1)
    assert name in UNSEEN or changed != plain, f"{name} has no effect on {kind}"


@pytest.mark.parametrize(
    ("kind", "name"),
    [("lines", "bad"), ("text", "final"), ("csv", "period"), ("keys", "standardise"), ("task", "rate")],
)
def test_settings_that_apply_have_an_effect(streams, tmp_path, capsys, kind, name):
    expect_effect(streams, tmp_path, capsys, kind, name)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_all_settings_that_apply_have_an_effect(streams, tmp_path, capsys, kind, name):
    expect_effect(streams, tmp_path, capsys, kind, name)


def test_optimizers_that_choose_their_steps_have_no_rate():
    rates = {"method": "uoro", "rate": 0.1, "alpha": 0.1}
    unused = {name: without_effect(Settings("anbn", optimizer=name, **rates)) for name in ("obgd", "idbd", "sgd")}
    assert unused == {"obgd": ["rate", "alpha"], "idbd": ["alpha"], "sgd": []}


def test_kafka_settings():
    topic = Settings("kafka://readings", brokers="localhost:1", group="g", client="f", final=True, bad="skip", flush=2)
    assert without_effect(topic) == []


def test_the_help_shows_the_scopes(capsys):
    assert norewind("train", "--help") == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--delimiter STR csv: The character between columns." in shown
    assert "--share, --no-share rows with keys: Train one model" in shown
    assert "--copy COLUMN ... rows, not compare or diagnose: Columns to copy" in shown
    assert "--tensorboard, --no-tensorboard not compare: Also write events" in shown

    @with_scopes
    class Some:
        """Some.

        Attributes:
            header: The first line.
            seed: The seed.
        """

    # The docstring of a class within a function is indented further.
    assert "header: The first line" in (Some.__doc__ or "")


@pytest.mark.parametrize(
    ("command", "name"), [(command, name) for command, names in IGNORED_BY.items() for name in names]
)
def test_commands_reject_the_settings_that_they_ignore(streams, tmp_path, capsys, command, name):
    kind = "lines" if name == "top" else "bytes" if name == "per" else "keys" if "shard" in name else "csv"
    source, *more = KINDS[kind]
    more = [word for word in more if word not in NETWORK]
    more += ["--shards", 3] if name == "shard" else []
    code = norewind(command, streams / source, *more, *option(name), "--out", tmp_path / "out")
    said = "shards is 3" if name == "shard" else "per is" if command == "diagnose" and kind == "lines" else f"{name} is"
    assert_rejected(capsys, code, said, f"norewind {command} does not use it")


def test_comparing_auto_with_networks_uses_the_settings_of_each(streams, tmp_path):
    with pytest.raises(SettingsError, match="hidden is 5, but it applies only to methods other than auto"):
        compare(["auto"], Settings(str(streams / "rows.csv"), hidden=5))
    with pytest.raises(SettingsError, match="budget is 5"):
        compare(["bptt", "uoro"], Settings(str(streams / "rows.csv"), budget=5.0))


def test_python_models_reject_settings_without_effect():
    with pytest.raises(SettingsError, match="per is 'line', but it applies only to bytes, text, tasks"):
        Forecaster(targets="sun", per="line")
    with pytest.raises(SettingsError, match="hidden is 5"):
        Forecaster(targets="sun", hidden=5)
    assert Forecaster(targets="sun", delimiter=";").settings.delimiter == ";"  # for files


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--bad", "skip"], "bad is 'skip', but it applies only to text, rows"),
        (["--jobs", 2], "--jobs is for several processes"),
        (["--ray", "auto"], "--ray is for several processes"),
    ],
)
def test_resume_rejects_what_has_no_effect(whole, capsys, options, words):
    assert_rejected(capsys, norewind("resume", whole / "bytes", *options), words)


def test_predict_rejects_to_flush_a_task(whole, capsys):
    code = norewind("predict", whole / "bytes", "anbn", "--flush", 5)
    assert_rejected(capsys, code, "flush is 5.0, but it applies only to files, pipes, kafka")


def test_options_of_processes_need_shards(streams, tmp_path, capsys):
    for options in (["--jobs", 2], ["--ray", "auto"]):
        code = norewind("train", streams / "rows.csv", *options, "--out", tmp_path / "run")
        assert_rejected(capsys, code, f"{options[0]} is for several processes")
    assert not (tmp_path / "run").exists()
