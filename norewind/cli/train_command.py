"""`norewind train` and `norewind resume`: learn from a stream."""

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro

from norewind.cli.common import THIS_MACHINE, Processes
from norewind.streams.kafka.client import EACH_PARTITION, SCHEME
from norewind.training.settings import Settings, SettingsError, check_scopes, option, read_toml

DEFAULTS = Settings()


def train(
    settings: Annotated[Settings, tyro.conf.arg(name="")] = DEFAULTS,
    *,
    out: Annotated[Path | None, option("FOLDER", "runs/ and the name of the source")] = None,
    config: Annotated[Path | None, option("FILE", "none")] = None,
    quiet: bool = False,
    processes: Annotated[Processes, tyro.conf.arg(name="")] = THIS_MACHINE,
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
    from norewind.cli.train_session import run_in_folder, run_partitions, run_shards

    name = settings.source
    if "://" in name:
        name = name.removeprefix(SCHEME).removesuffix(EACH_PARTITION).replace("/", "-")
    folder = out or Path("runs") / (Path(name).stem.strip("-") or "stdin")
    if processes.ray is not None and settings.key is not None and settings.shards == 1:
        settings = replace(settings, shards=max(2, os.cpu_count() or 1))
    _check_processes(settings, processes)
    if settings.shard is None and settings.shards > 1:
        run_shards("train", folder, settings.with_format(), quiet=quiet, **vars(processes))
    elif settings.source.startswith(SCHEME) and settings.source.endswith(EACH_PARTITION):
        run_partitions(folder, settings.with_format(), quiet=quiet)
    else:
        run_in_folder("train", folder, settings.with_format(), quiet=quiet, mode="new")


def resume(
    run: Annotated[Path, tyro.conf.Positional],
    *,
    samples: Annotated[float | None, option("N", "as in the settings")] = None,
    source: Annotated[str | None, option("SOURCE", "as in the settings")] = None,
    continues: bool = False,
    final: bool = False,
    bad: Annotated[Literal["stop", "skip"] | None, option("{stop,skip}", "as in the settings")] = None,
    damaged: Literal["stop", "skip"] = "stop",
    quiet: bool = False,
    processes: Annotated[Processes, tyro.conf.arg(name="")] = THIS_MACHINE,
) -> None:
    """Continue a run from its latest checkpoint, bit for bit as if it had never been interrupted.

    A file is read again up to the position of the checkpoint, and must not have changed up
    to there. A pipe must send the same stream again from its start, unless --continues is given.

    Args:
        run: The run folder.
        samples: Stop after this many samples in total.
        source: Where the stream is now, if it was moved; - for standard input.
        continues: The source starts at the checkpoint, not at its beginning. A topic may have lost unread messages.
        final: The file is complete: use its last line even without a newline.
        bad: From now on, stop at bad input, or skip and count it.
        damaged: If the latest checkpoint is damaged, stop, or continue from the previous one.
        quiet: Print nothing unless something is wrong.
        processes: See below.
    """
    from norewind.cli.train_session import run_in_folder, run_shards
    from norewind.training.folder import read_settings

    options = {"samples": samples, "source": source, "bad": bad, "final": final or None}
    changed = {name: value for name, value in options.items() if value is not None}
    settings = replace(read_settings(run), **changed)
    check_scopes(settings, changed)
    _check_processes(settings, processes)
    if continues and settings.kind == "task":
        raise SettingsError(f"continues=True is for pipes and files: the task {settings.source} needs none.")
    if settings.shards > 1 and settings.shard is None:
        if continues or damaged != "stop":
            name = "continues=True" if continues else 'damaged="skip"'
            raise SettingsError(f"{name} is for a single shard: norewind resume {run}/shards/0000, and so on.")
        run_shards("resume", run, settings, quiet=quiet, **vars(processes))
    else:
        run_in_folder("resume", run, settings, quiet=quiet, mode="resume", continues=continues, damaged=damaged)


def _check_processes(settings: Settings, processes: Processes) -> None:
    """Reject options of parallel processes for a run in one process."""
    name = next((name for name, value in vars(processes).items() if value is not None), None)
    if name is not None and settings.shards == 1:
        raise SettingsError(f"{name}= is for several processes: split the keys (key=) into parts (shards=).")


def with_config(arguments: list[str]) -> Callable[..., None]:
    """`train` with the settings in the file after --config as its defaults, so that other options override them."""
    if arguments[:1] != ["train"]:
        return train
    parser = argparse.ArgumentParser("norewind train", add_help=False, allow_abbrev=False)
    parser.add_argument("--config", type=Path)
    config = parser.parse_known_args(arguments[1:])[0].config
    return partial(train, settings=read_toml(config)) if config else train
