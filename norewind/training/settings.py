"""The settings of a training run: everything that determines its numbers, as saved in its settings.toml."""

import json
import tomllib
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import tyro

from norewind.errors import NorewindError
from norewind.scoring.metrics import ROW_LOSSES, quantile_of
from norewind.streams.kafka.client import SCHEME
from norewind.streams.table.formats import DICT_FORMAT, FORMATS, FormatName
from norewind.training.registry import TASKS, CellName, OptimizerName
from norewind.training.scopes import ignored_by, no_effect, with_scopes, without_effect

SETTINGS = "settings.toml"
# Settings that may change when a run is resumed. All others determine its numbers.
CHANGEABLE = {
    *("samples", "checkpoint_every", "checkpoint_seconds", "keep", "predictions", "flush", "tensorboard"),
    *("stop_if_diverged", "source", "bad", "final", "brokers", "client", "resident"),
}

# File formats by suffix; anything else is read as bytes.
GZIPPED, PARQUET = ".gz", ".parquet"
BY_SUFFIX: dict[str, FormatName] = {suffix: name for name, rows in FORMATS.items() for suffix in rows.suffixes}
BY_SUFFIX[PARQUET] = DICT_FORMAT  # its rows are dicts by column

Level = Annotated[float, msgspec.Meta(gt=0, lt=1)]
PositiveCount = Annotated[int, msgspec.Meta(ge=1)]
RowCount = Annotated[int, msgspec.Meta(ge=1, le=10**6)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
# Larger rates would not fit single precision, or overflow at the first step.
MAX_RATE = 3e38


class SettingsError(NorewindError, ValueError):
    """Settings cannot be used; the message says what is wrong and what to do."""


def option(metavar: str, default: str) -> Any:
    """Return how --help shows an option whose default has to be described.

    Args:
        metavar: the placeholder of its value.
        default: the description of its default.
    """
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {default})")


# Several levels are separated by commas or spaces.
LEVELS = tyro.constructors.PrimitiveConstructorSpec(
    nargs="*",
    metavar="LEVEL,...",
    instance_from_str=lambda words: tuple(
        float(level) for word in words for level in word.split(",") if word != "none"
    ),
    is_instance=lambda value: isinstance(value, tuple),
    str_from_instance=lambda levels: [",".join(map(str, levels)) or "none"],
)


# So are several columns.
NAMES = tyro.constructors.PrimitiveConstructorSpec(
    nargs="*",
    metavar="COLUMN,...",
    instance_from_str=lambda words: tuple(name for word in words for name in word.split(",") if name != "none") or None,
    is_instance=lambda value: value is None or isinstance(value, tuple),
    str_from_instance=lambda names: [",".join(names or ["none"])],
)


@with_scopes
@dataclass(frozen=True)
class StreamSettings:
    """The stream to learn from, and how to read it. Only the source has no default.

    Attributes:
        source: The stream to learn from: a file, - for standard input, kafka://topic, or a built-in task (anbn,
            brackets).
        format: The format of the source. auto goes by the suffix of the file, such as .csv, and reads anything
            else as bytes.
        seed: The seed of the initial weights, the noise and the text of a built-in task.
        bad: What to do with bad input (invalid UTF-8, an unknown symbol, a broken row): stop, or skip and count it.
        final: The file is complete: use its last line even without a newline. kafka: stop at the current end of
            the topic.
        alphabet: All symbols that may occur.
        alphabet_size: The largest number of different symbols, if no alphabet is given.
        per: Write one prediction per symbol, or one per line with its bits per symbol and a score of how unusual it is.
        top: Show this many of the most surprising lines at the end.
        inputs: The columns that the model sees: numbers, booleans, text (as categories), times, nested values.
        targets: The columns to forecast.
        copy: Columns to copy unchanged into the predictions, such as an id or a time.
        period: The length of a season in rows. Forecasts are compared with the value one season ago.
        horizon: Forecast every row up to this many rows ahead; 0 predicts targets of the same row.
        known_future: Columns that are known in advance, such as a price or a weather forecast. Their values in the rows
            to forecast are used too; rows without targets at the end of the table supply them.
        holidays: The country whose holidays to use, such as DE or DE-BY. The times of the table must be evenly spaced.
            Needs the package holidays.
        only_steps: Forecast only these numbers of rows ahead, such as 24, or 1 6 24.
        loss: Squared error, Gaussian log-likelihood with a forecast variance, cross-entropy of a class, absolute error
            (forecasts the median), or the pinball loss of a quantile (quantile:0.9 forecasts that quantile).
        interval: Add intervals to forecasts that cover these shares of the values, such as 0.8,0.95. The number of
            values outside is bounded for every stream (docs/streams.md).
        non_negative: Keep forecasts and their intervals at 0 or above, for counts, prices or loads.
        missing: Replace a missing input with the column's last value or its mean so far, stop, or skip the row.
        standardise: Scale every column to mean 0 and standard deviation 1, using only the rows seen so far.
        header: The first line names the columns. Otherwise they are named 1, 2, 3, ...
        delimiter: The character between columns.
        brokers: The addresses of the brokers, separated by commas.
        group: The consumer group under which the run commits offsets and sends predictions.
        client: A file with more client options, such as credentials, one name = value per line.
        parameters: The parameters of the task.
    """

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE", help_behavior_hint="(required)")] = ""
    format: Literal["auto", "bytes", "text", FormatName] = "auto"
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] = 0
    bad: Literal["stop", "skip"] = "stop"
    final: bool = False
    alphabet: Annotated[str | None, option("TEXT", "grows as symbols appear")] = None
    alphabet_size: Annotated[int, msgspec.Meta(ge=1, le=0x110000)] = 256
    per: Literal["symbol", "line"] = "symbol"
    top: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    inputs: Annotated[tuple[str, ...], option("COLUMN ...", "all numbers except row numbers and times")] = ()
    targets: Annotated[tuple[str, ...], option("COLUMN ...", "the numbers among the inputs")] = ()
    copy: Annotated[tuple[str, ...], option("COLUMN ...", "none")] = ()
    period: Annotated[RowCount | None, option("ROWS", "the best of 7, 12, 24 and 168")] = None
    horizon: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 1
    only_steps: Annotated[tuple[RowCount, ...], option("ROWS ...", "all up to the horizon")] = ()
    loss: Annotated[str, option("{squared,gaussian,classes,absolute,quantile:Q}", "squared")] = "squared"
    known_future: Annotated[tuple[str, ...] | None, NAMES] = None
    holidays: Annotated[str | None, option("COUNTRY", "none")] = None
    interval: Annotated[tuple[Level, ...], LEVELS] = ()
    non_negative: bool = False
    missing: Literal["last", "mean", "stop", "skip"] = "last"
    standardise: bool = True
    header: bool = True
    delimiter: Annotated[str, msgspec.Meta(min_length=1, max_length=1)] = ","
    brokers: Annotated[str | None, option("HOST:PORT", "none")] = None
    group: Annotated[str | None, option("NAME", "none")] = None
    client: Annotated[str | None, option("FILE", "none")] = None
    parameters: Annotated[tuple[int, ...], option("INT ...", "the paper's")] = ()

    def __post_init__(self):
        """Convert and check every value, before anything is opened or compiled."""
        if isinstance(self.interval, float):
            object.__setattr__(self, "interval", (self.interval,))
        if isinstance(self.known_future, str):
            object.__setattr__(self, "known_future", tuple(self.known_future.split(",")))
        object.__setattr__(self, "known_future", self.known_future or None)
        for name, kind in field_kinds(type(self)).items():
            object.__setattr__(self, name, _checked(name, getattr(self, name), kind))
        object.__setattr__(self, "interval", tuple(sorted(set(self.interval))))
        if self.loss not in ROW_LOSSES and self.quantile is None:
            names = ", ".join([*ROW_LOSSES, "absolute", "quantile:Q"])
            raise SettingsError(f"loss is {self.loss!r}, but it must be one of {names}, with Q from 0 to 1.")
        if self.only_steps:
            steps = tuple(sorted(set(self.only_steps)))
            if self.horizon not in (1, steps[-1]):
                raise SettingsError(f"horizon is {self.horizon}, but only_steps is {steps}. Choose one of the two.")
            object.__setattr__(self, "only_steps", steps)
            object.__setattr__(self, "horizon", steps[-1])

    @property
    def quantile(self) -> float | None:
        """The quantile that is forecast instead of the mean; None for other losses."""
        return quantile_of(self.loss)

    @property
    def steps(self) -> tuple[int, ...]:
        """The numbers of rows ahead to forecast, in increasing order; (0,) for targets of the same row."""
        return self.only_steps or tuple(range(1, self.horizon + 1)) or (0,)

    @property
    def kind(self) -> Literal["task", "bytes", "text", FormatName]:
        """The format of the source, with `auto` resolved."""
        if self.source in TASKS and not Path(self.source).exists():
            return "task"
        if self.format != "auto":
            return self.format
        if self.source.startswith(SCHEME):
            return DICT_FORMAT
        return BY_SUFFIX.get(_suffix(self.source), "bytes")

    @property
    def has_rows(self) -> bool:
        """Whether the samples are rows of a table, not symbols."""
        return self.kind in FORMATS


@with_scopes
@dataclass(frozen=True)
class Settings(StreamSettings):
    """The settings of a run: its stream, and everything that determines its numbers.

    Attributes:
        key: Train a model for every value of this column (docs/scale.md).
        share: Train one model on all keys, with a state for each, instead of a model for each.
        resident: How many keys to hold in memory. The least recently seen keys are moved to disk.
        shards: Split the keys into this many parts, each trained by its own process.
        shard: Train only this part, counted from 0. norewind sets this for its own processes.
        cell: The recurrent cell. plain_lstm is the LSTM without embedding.
        hidden: The number of hidden units in each layer.
        layers: The number of layers.
        method: auto mixes several learners. Others train one network: uoro:window=16,
            rtrl, bptt:16, ... (docs/methods.md).
        budget: The time that one sample may take, in microseconds on one core.
        optimizer: The optimizer. obgd and intentional choose their steps themselves; idbd learns a step for each
            parameter, beginning with rate.
        rate: The initial learning rate. After t samples it is rate / (1 + alpha √t).
        alpha: How fast the learning rate falls. 0 keeps it constant.
        clip: Clip gradients to this norm; 0 turns clipping off. Clipping harms uoro, whose noise must average out.
        precision: The precision of all floating-point numbers.
        samples: Stop after this many samples in total, rounded down to whole windows; can be written as 1e6.
        metrics_every: Write a line of metrics every N samples.
        checkpoint_every: Write a checkpoint every N samples.
        checkpoint_seconds: Also write a checkpoint this many seconds after the last one. 0 turns this off.
        keep: The number of checkpoints to keep; fewer if they exceed 100 MB together.
        predictions: Write every sample's prediction and surprise as JSON lines: to predictions.jsonl, stdout,
            or a Kafka topic.
        flush: Learn from samples, and write their predictions, at most this many seconds after they arrive.
        tensorboard: Also write events for TensorBoard.
        stop_if_diverged: Stop when the loss or the carry explodes. (Non-finite numbers always stop the run.)
    """

    key: Annotated[str | None, option("COLUMN", "none: all rows are one series")] = None
    share: bool = False
    resident: Annotated[Annotated[int, msgspec.Meta(ge=1, le=10**9)] | None, option("N", "as many as fit 1 GB")] = None
    shards: Annotated[int, msgspec.Meta(ge=1, le=9_999)] = 1
    shard: Annotated[Annotated[int, msgspec.Meta(ge=0)] | None, option("N", "all")] = None
    cell: CellName = "gru"
    hidden: Annotated[int, msgspec.Meta(ge=1, le=10**9)] = 64
    layers: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    method: str = "auto"
    budget: Annotated[float, msgspec.Meta(gt=0)] = 50
    optimizer: OptimizerName = "adam"
    rate: Annotated[float, msgspec.Meta(gt=0, le=MAX_RATE)] = 1e-3
    alpha: Annotated[float, msgspec.Meta(ge=0, le=MAX_RATE)] = 0.02
    clip: Annotated[float, msgspec.Meta(ge=0, le=MAX_RATE)] = 0.0
    precision: Literal["single", "double"] = "single"
    samples: Annotated[Amount | None, option("N", "the whole stream")] = None
    metrics_every: Annotated[PositiveCount | None, option("N", "about 200 lines, however long the stream is")] = None
    checkpoint_every: Annotated[PositiveCount | None, option("N", "100,000; with --key, by time only")] = None
    checkpoint_seconds: Amount = 60
    keep: PositiveCount = 3
    predictions: Annotated[str, option("{none,file,stdout,kafka://TOPIC}", "none")] = "none"
    flush: Annotated[Amount | None, option("SECONDS", "1 for rows from a pipe or Kafka; else full chunks")] = None
    tensorboard: bool = False
    stop_if_diverged: bool = True

    def __post_init__(self):
        super().__post_init__()
        written = self.predictions
        if written not in ("none", "file", "stdout") and not written.startswith(SCHEME):
            raise SettingsError(f"predictions is {written!r}, but it must be one of none, file, stdout, kafka://topic.")

    def with_format(self) -> "Settings":
        """Return the settings with `auto` resolved, so that the format stays the same if the source changes later."""
        if self.kind == "task":
            return self
        has_tabs = self.delimiter == "," and _suffix(self.source) == ".tsv"
        return replace(self, format=self.kind, delimiter="\t" if has_tabs else self.delimiter)

    def as_json(self) -> dict[str, Any]:
        """Return all settings that are not None, as JSON values."""
        values = {name: getattr(self, name) for name in field_kinds(Settings)}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items() if v is not None}


def _suffix(source: str) -> str:
    """Return the suffix of a file, without that of compression."""
    return Path(source.removesuffix(GZIPPED)).suffix.lower()


@cache
def field_kinds(settings: type[StreamSettings]) -> dict[str, Any]:
    hints = get_type_hints(settings, include_extras=True)
    return {field.name: hints[field.name] for field in fields(settings)}


def _checked(name: str, value: Any, kind: Any) -> Any:
    if get_origin(kind) is Literal and value not in get_args(kind):
        raise SettingsError(f"{name} is {value!r}, but it must be one of {', '.join(get_args(kind))}.")
    if isinstance(value, float) and not isfinite(value):
        raise SettingsError(f"{name} is {value!r}, but it must be a finite number.")
    try:
        # Python reads arguments that are not UTF-8 as unpaired surrogates, which UTF-8 cannot encode.
        for text in value if isinstance(value, tuple | list) else [value]:
            str(text).encode()
        return msgspec.convert(value, kind)
    except UnicodeEncodeError:
        raise SettingsError(f"{name} is {value!r}, which is not valid UTF-8. Rename it, or use - and a pipe.") from None
    except msgspec.ValidationError as error:
        raise SettingsError(f"{name} is {value!r}: {str(error).split(' - at')[0].replace('`', '')}.") from None


def check_scopes(settings: StreamSettings, names: Collection[str] | None = None, *, command: str | None = None) -> None:
    """Reject settings that differ from their defaults but have no effect on the run (see scopes.py).

    Args:
        settings: the settings of the run.
        names: the settings to check; by default all.
        command: the command that they are for, if it ignores some settings.

    Raises:
        SettingsError: one of them has no effect.
    """
    for name in without_effect(settings):
        if names is None or name in names:
            raise SettingsError(no_effect(settings, name))
    if command and (message := ignored_by(command, settings)):
        raise SettingsError(message)


def write_toml(settings: Settings) -> str:
    """Return settings as TOML. JSON values are valid TOML, except for one character that must be escaped."""
    lines = (f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in settings.as_json().items())
    return "".join(lines).replace("\x7f", "\\u007f")


def read_toml(path: Path) -> Settings:
    """Read settings from a TOML file. Settings that are not in it keep their defaults.

    Raises:
        SettingsError: the file cannot be read, or a setting is unknown or invalid.
    """
    try:
        # Some editors begin a file with a byte order mark.
        entries = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        # Besides bad syntax: numbers with thousands of digits, or brackets nested thousands deep.
        raise SettingsError(f"{path}: not a valid TOML file: {error}.") from None
    unknown = next((name for name in entries if name not in field_kinds(Settings)), None)
    if unknown is not None:
        raise SettingsError(f"{path}: there is no setting {unknown!r}: choose from {', '.join(field_kinds(Settings))}.")
    try:
        return Settings(**entries)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None
