"""From settings to a fleet: rows with keys, and a learner with a run for each."""

from typing import TYPE_CHECKING, Any

from norewind import names
from norewind.fleets.fleet import Fleet
from norewind.learners.least_squares import LeastSquares
from norewind.learners.protocol import Learner
from norewind.runs.fleet_scores import FleetScore
from norewind.runs.settings import Settings, SettingsError
from norewind.streams import KeyedStream, Source

if TYPE_CHECKING:
    from norewind.runs.build import Built, Opened, Shape

LAGS, FORGETTING, LIMIT = 8, 0.9998, 5.0
WINDOW = 256


def check_fleet(settings: Settings) -> None:
    """Refuse what a fleet cannot do, before anything is read."""
    if settings.key is None:
        asked = [name for name in ("share", "resident", "shard") if getattr(settings, name)]
        if asked or settings.shards > 1:
            raise SettingsError(f"--{asked[0] if asked else 'shards'} is for a model per key: name its column (--key).")
        return
    if settings.kind not in ("csv", "jsonl"):
        raise SettingsError(f"--key needs rows with columns (csv, jsonl), and {settings.source} is {settings.kind}.")
    if settings.loss == "classes":
        raise SettingsError("--key with --loss classes is not supported: train one run per key, or forecast numbers.")
    if settings.method != names.AUTO and names.parse_method(settings.method).window > 1:
        raise SettingsError(f"--key learns from every row as it comes: method {settings.method} has windows.")
    if settings.method == names.AUTO and settings.loss == "gaussian" and not settings.share:
        raise SettingsError("--key with --method auto forecasts no variances: choose a method, such as --method snap1.")
    if settings.share and settings.resident is not None and settings.resident < WINDOW:
        raise SettingsError(f"--share learns from {WINDOW} rows at a time: --resident must be at least that.")
    if settings.share and settings.shards > 1:
        raise SettingsError("--share has one model for all keys: it cannot be split by --shards (docs/scale.md).")
    if settings.shard is not None and settings.shard >= settings.shards:
        raise SettingsError(f"shard is {settings.shard}, but there are {settings.shards} shards, counted from 0.")


def open_keyed(settings: Settings, source: Source, position: dict[str, Any] | None) -> "Opened":
    from norewind.runs.build import Opened, Shape, row_options

    assert settings.key is not None
    shard = settings.shard or 0, settings.shards if settings.shard is not None else 1
    stream = KeyedStream(source, settings.key, shard=shard, **row_options(settings, position, settings.inputs))
    targets = len(stream.targets)
    outputs = targets * (2 if settings.loss == "gaussian" else 1)
    shape = Shape(stream.width, outputs, False, targets, settings.steps, table=stream.layout)
    return Opened(stream, shape, FleetScore(stream.targets, settings.loss, settings.steps, stream.key_name))


def build_fleet(settings: Settings, shape: "Shape") -> "Built":
    """A fleet of the method's network; `auto` is least squares for every key, or one network that all keys share.

    A key has few rows for itself: least squares on the newest rows learn from tens of them
    what a network learns from thousands.
    """
    from norewind.runs import auto
    from norewind.runs.build import Built, ahead_of, network, only_defaults

    learner: Learner
    if settings.method != names.AUTO:
        learner, run, _ = network(settings, shape)
    else:
        only_defaults(settings)
        if settings.share:
            single = auto.network(shape, settings.loss == "gaussian", settings.seed)
            learner, run = ahead_of(settings, shape, *single)
        else:
            learner = LeastSquares(
                shape.inputs, shape.targets, steps=shape.steps, lags=LAGS, forgetting=FORGETTING, limit=LIMIT
            )
            run = learner.init()
    fleet = Fleet(learner, run, share=settings.share, resident=settings.resident, window=WINDOW, table=shape.table)
    return Built(fleet, fleet.init(), fleet.window)
