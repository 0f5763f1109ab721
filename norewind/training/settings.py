"""What a training run is: everything that decides how it goes, as it stands in its settings.toml."""

import json
import tomllib
from dataclasses import dataclass, fields, replace
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

TASKS = ("anbn", "brackets")


CHANGEABLE = {
    "samples",
    "checkpoint_every",
    "checkpoint_seconds",
    "keep",
    "predictions",
    "flush",
    "tensorboard",
    "watch",
    "source",
}
"""What may be different when a run is resumed; everything else decides what its numbers mean."""


class SettingsError(ValueError):
    """Settings that cannot be: what is wrong, and what to do."""


@dataclass(frozen=True)
class Settings:
    """The settings of a run. Only the source has no default."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")] = ""
    """anbn, brackets, a file, or - for the standard input."""

    format: Literal["auto", "bytes", "text", "csv", "jsonl"] = "auto"
    """What the source holds. auto goes by the file's name (.csv, .jsonl, .ndjson); anything else is bytes."""

    seed: int = 0
    """Of the initial weights and the noise, and of the text of a built-in task."""

    cell: Literal["elman", "gru", "lstm", "plain_lstm", "rnn"] = "gru"
    """The recurrent cell; plain_lstm is the LSTM without embedding."""

    hidden: int = 64
    """Its size."""

    layers: int = 1
    """How many of them, each on top of the one before."""

    method: str = "uoro:memory=16"
    """How to get gradients: uoro, uoro:memory=4,rank=8, rtrl, bptt:16, or another of docs/methods.md. With a memory of
    16, one step takes 16 samples: exact within, unbiased before, and less noisy and faster than plain uoro."""

    optimizer: Literal["adam", "adagrad", "rmsprop", "sgd"] = "adam"
    """What takes the gradients."""

    rate: float = 1e-3
    """The learning rate is rate / (1 + alpha √t) after t samples."""

    alpha: float = 0.02
    """How fast it falls; 0 keeps it."""

    clip: float = 0.0
    """Longer gradients are cut to this norm; 0 leaves them as they are. (Cutting noise that must cancel is harmful
    for uoro: see docs/streams.md.)"""

    precision: Literal["single", "double"] = "single"
    """Of all floating numbers."""

    bad: Literal["fail", "skip"] = "fail"
    """Bad input (invalid UTF-8, an unknown symbol, a broken row): stop there, or skip it and count."""

    alphabet: str | None = None
    """text: all symbols that may come. By default the alphabet grows as symbols appear, up to alphabet_size."""

    alphabet_size: int = 256
    """text: how many different symbols there may be if no alphabet is given."""

    inputs: tuple[str, ...] = ()
    """csv, jsonl: the columns that the model sees; by default all that hold numbers in the first row."""

    targets: tuple[str, ...] = ()
    """csv, jsonl: the columns to forecast; by default the inputs."""

    horizon: int = 1
    """csv, jsonl: how many rows ahead to forecast. 0: the targets of the same row. Also the delay of late labels."""

    loss: Literal["squared", "gaussian"] = "squared"
    """csv, jsonl: squared error, or the likelihood of a Gaussian whose variance is forecast too."""

    missing: Literal["last", "mean", "fail", "skip"] = "last"
    """csv, jsonl: for an input that is missing take the last value or the mean; or stop, or skip the row.
    A target that is missing is never learned from."""

    standardise: bool = True
    """csv, jsonl: bring every column to mean 0 and deviation 1, by what was seen of it so far."""

    header: bool = True
    """csv: the first line names the columns; otherwise they are called 1, 2, 3, ..."""

    delimiter: str = ","
    """csv: what separates the columns."""

    parameters: tuple[int, ...] = ()
    """anbn, brackets: the task's own parameters; by default the paper's."""

    samples: float | None = None
    """Stop after so many samples in all (1e6 is understood), in whole steps of the method's memory; by default at the
    end of the stream."""

    metrics_every: int = 10_000
    """Write a line of metrics every so many samples."""

    checkpoint_every: int = 100_000
    """Write a checkpoint every so many samples ..."""

    checkpoint_seconds: float = 60
    """... and when the last one is so many seconds old."""

    keep: int = 3
    """Keep so many checkpoints, the newest ones."""

    predictions: Literal["none", "file", "stdout"] = "none"
    """For every sample, the prediction made before it was seen, and the surprise: as JSON lines to predictions.jsonl
    in the run folder, or to the standard output."""

    flush: float | None = None
    """Learn from what has come, and write its predictions, at the latest after so many seconds. By default samples
    are gathered until there are 4,000 (fewer for a large model): faster, but a slow stream waits."""

    tensorboard: bool = False
    """Also write events for TensorBoard."""

    watch: bool = True
    """Stop when the loss or the carry explodes. (Numbers that are not finite always stop the run.)"""

    def __post_init__(self):
        """Refuse what cannot be, before anything is opened or compiled."""
        for name in ("hidden", "layers", "alphabet_size", "metrics_every", "checkpoint_every", "keep"):
            _demand(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        for field in fields(self):
            number = getattr(self, field.name)
            _demand(type(number) is not float or isfinite(number), field.name, number, "must be a finite number")
        for name in ("alpha", "clip", "horizon"):
            _demand(getattr(self, name) >= 0, name, getattr(self, name), "must not be negative")
        _demand(self.rate > 0, "rate", self.rate, "must be above 0")
        _demand(0 <= self.seed < 2**32, "seed", self.seed, "must be from 0 to 2³² − 1")
        for name in ("samples", "flush", "checkpoint_seconds"):
            number = getattr(self, name)
            _demand(number is None or number >= 0, name, number, "must not be negative")
        _demand(len(self.delimiter) == 1, "delimiter", self.delimiter, "must be a single character")

    @property
    def kind(self) -> Literal["task", "bytes", "text", "csv", "jsonl"]:
        """task, bytes, text, csv or jsonl."""
        if self.source in TASKS and not Path(self.source).exists():
            return "task"
        if self.format != "auto":
            return self.format
        suffix = Path(self.source).suffix.lower()
        return "csv" if suffix == ".csv" else "jsonl" if suffix in (".jsonl", ".ndjson") else "bytes"

    def settled(self) -> "Settings":
        """With the format spelled out: it stays when the same stream comes from another source later."""
        return self if self.kind == "task" else replace(self, format=self.kind)

    def as_json(self) -> dict[str, Any]:
        """All entries that are not None."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}


def write_toml(settings: Settings) -> str:
    """Settings as TOML. Values of JSON are TOML as well, but for one character that must be escaped."""
    return "".join(
        f"{name} = {json.dumps(value, ensure_ascii=False)}\n".replace("\x7f", "\\u007f")
        for name, value in settings.as_json().items()
    )


def read_toml(path: Path, start: Settings | None = None) -> Settings:
    """Settings from a TOML file, on top of the given ones or the defaults."""
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not a TOML file: {error}.") from None
    return from_entries(entries, str(path), start)


def from_entries(entries: dict[str, Any], where: str, start: Settings | None = None) -> Settings:
    """Settings from names and values, each checked."""
    kinds = get_type_hints(Settings)
    for name, value in entries.items():
        if name not in kinds:
            raise SettingsError(f"{where}: there is no setting {name!r}: choose from {', '.join(kinds)}.")
        entries = {**entries, name: _checked(where, name, value, kinds[name])}
    try:
        return replace(start or Settings(), **entries)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from None


def _checked(where: str, name: str, value: Any, kind: Any) -> Any:
    """A value of the kind that a setting has."""
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        if value not in choices:
            raise SettingsError(f"{where}: {name} must be one of {', '.join(choices)}, not {value!r}.")
        return value
    if get_origin(kind) is tuple:
        element = get_args(kind)[0]
        if not isinstance(value, list) or not all(type(entry) is element for entry in value):
            raise SettingsError(f"{where}: {name} must be a list of {_WORDS[element]}s, not {value!r}.")
        return tuple(value)
    kinds = get_args(kind) or (kind,)
    if type(value) is int and float in kinds:
        return float(value)
    if type(value) not in kinds:
        raise SettingsError(f"{where}: {name} must be a {_WORDS[kinds[0]]}, not {value!r}.")
    return value


_WORDS = {str: "text", int: "whole number", float: "number", bool: "truth value (true or false)"}


def _demand(holds: bool, name: str, value: Any, rule: str) -> None:
    if not holds:
        raise SettingsError(f"{name} is {value!r}, but {rule}.")
