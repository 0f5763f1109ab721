"""From settings to a fleet: rows with keys, and a learner with a run for every key."""

from typing import TYPE_CHECKING, Any

from norewind.fleets.fleet import Fleet
from norewind.learners.learner import Learner
from norewind.learners.least_squares import LeastSquares
from norewind.scoring.number_score import KeyScore
from norewind.streams import KeyedStream, Source
from norewind.training import registry
from norewind.training.settings import Settings, SettingsError

if TYPE_CHECKING:
    from norewind.training.build import Built
    from norewind.training.opening import Opened, Shape

LAGS, FORGETTING, LIMIT = 8, 0.9998, 5.0


def check_fleet(settings: Settings) -> None:
    """Reject settings that a fleet does not support, before anything is read.

    Raises:
        SettingsError: the settings do not fit together.
    """
    if settings.key is None:
        asked = [name for name in ("share", "resident", "shard") if getattr(settings, name)]
        if asked or settings.shards > 1:
            raise SettingsError(f"--{asked[0] if asked else 'shards'} needs keys: name their column (--key).")
        return
    if settings.kind not in ("csv", "jsonl"):
        raise SettingsError(f"--key needs rows with columns (csv, jsonl), and {settings.source} is {settings.kind}.")
    if settings.loss == "classes":
        raise SettingsError("--key with --loss classes is not supported: train one run per key, or forecast numbers.")
    if settings.method != registry.AUTO and registry.parse_method(settings.method).window > 1:
        raise SettingsError(f"--key learns from every row as it arrives, but method {settings.method} has windows.")
    if settings.method == registry.AUTO and settings.loss == "gaussian" and not settings.share:
        raise SettingsError("--key with --method auto cannot forecast variances: choose another (--method snap1).")
    if settings.share and settings.shards > 1:
        raise SettingsError("--share has one model for all keys: it cannot be split by --shards (docs/scale.md).")
    if settings.shard is not None and settings.shard >= settings.shards:
        raise SettingsError(f"shard is {settings.shard}, but there are {settings.shards} shards, counted from 0.")


def open_keyed(settings: Settings, source: Source, position: dict[str, Any] | None) -> "Opened":
    """Open a stream of rows with keys.

    Args:
        settings: the settings.
        source: the source of the rows.
        position: the position to start at; None for the beginning.
    """
    from norewind.training.opening import Opened, Shape, row_options

    assert settings.key is not None
    shard = settings.shard or 0, settings.shards if settings.shard is not None else 1
    stream = KeyedStream(source, settings.key, shard=shard, **row_options(settings, position, settings.inputs))
    targets = len(stream.targets)
    outputs = targets * (2 if settings.loss == "gaussian" else 1)
    shape = Shape(stream.width, outputs, False, targets, settings.steps, table=stream.layout)
    return Opened(stream, shape, KeyScore(stream.targets, settings.loss, settings.steps, stream.key_name))


def build_fleet(settings: Settings, shape: "Shape") -> "Built":
    """Build a fleet of the method's networks; with `auto`, least squares for every key, or one network that they share.

    A single key has few rows. Least squares on the newest rows learns from tens of them
    what a network learns from thousands.

    Args:
        settings: the settings.
        shape: the sizes that the model must fit.
    """
    from norewind.training import auto
    from norewind.training.build import Built, ahead_of, network, only_defaults

    learner: Learner
    if settings.method != registry.AUTO:
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
    fleet = Fleet(learner, run, share=settings.share, resident=settings.resident, table=shape.table)
    return Built(fleet, fleet.init(), 1)
