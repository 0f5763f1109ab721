"""`norewind train`: learn from a stream."""

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from norewind.cli.processes import HERE, Processes
from norewind.runs.settings import Settings, option, read_toml

DEFAULTS = Settings()


def train(
    settings: Annotated[Settings, tyro.conf.arg(name="")] = DEFAULTS,
    *,
    out: Annotated[Path | None, option("FOLDER", "runs/ and the name of the source")] = None,
    config: Annotated[Path | None, option("FILE", "none")] = None,
    quiet: bool = False,
    processes: Annotated[Processes, tyro.conf.arg(name="")] = HERE,
) -> None:
    """Train a recurrent model on a stream: online, in one pass, in constant memory.

    The source is a file, standard input, a Kafka topic or a built-in task: bytes, text, CSV
    or JSON lines. The run folder holds settings.toml, metrics.jsonl, checkpoints and
    curve.png; `norewind resume` continues exactly after any interruption.

        norewind train book.txt --out runs/book
        norewind train sensors.csv --targets power --horizon 24 --out runs/power
        norewind train kafka://readings --brokers localhost:9092 --group forecasts --out runs/readings
        norewind train 'kafka://readings/*' --brokers localhost:9092 --group workers --out /shared/readings
        tail -F app.log | norewind train - --flush 1 --predictions stdout --out runs/log

    Args:
        settings: See below.
        out: The run folder.
        config: A TOML file with settings, such as the settings.toml of another run. Command-line options override it.
        quiet: Print nothing unless something is wrong.
        processes: See below.
    """
    from norewind.cli.running import run_in, run_partitions, run_shards

    name, each = settings.source, settings.source.startswith("kafka://") and settings.source.endswith("/*")
    if "://" in name:
        name = name.removeprefix("kafka://").removesuffix("/*").replace("/", "-")
    folder = out or Path("runs") / (Path(name).stem.strip("-") or "stdin")
    if processes.ray is not None and settings.shards == 1:
        settings = replace(settings, shards=max(2, os.cpu_count() or 1))
    if settings.shard is None and settings.shards > 1:
        run_shards("train", folder, settings.settled(), quiet=quiet, new=True, ray=processes.ray, jobs=processes.jobs)
    if each:
        run_partitions("train", folder, settings.settled(), quiet=quiet)
    run_in("train", folder, settings.settled(), quiet=quiet, new=True)


def with_config(arguments: list[str]) -> Callable[..., None]:
    """`train` with the settings in the file after --config as its defaults, so that other options override them."""
    if arguments[:1] != ["train"]:
        return train
    parser = argparse.ArgumentParser("norewind train", add_help=False, allow_abbrev=False)
    parser.add_argument("--config", type=Path)
    config = parser.parse_known_args(arguments[1:])[0].config
    return partial(train, settings=read_toml(config)) if config else train
