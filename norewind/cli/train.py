"""`norewind train`: learn from a stream."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from norewind.runs.settings import Settings, option, read_toml

DEFAULTS = Settings()


def train(
    settings: Annotated[Settings, tyro.conf.arg(name="")] = DEFAULTS,
    *,
    out: Annotated[Path | None, option("FOLDER", "runs/ and the name of the source")] = None,
    config: Annotated[Path | None, option("FILE", "none")] = None,
    quiet: bool = False,
) -> None:
    """Train a recurrent model on a stream: online, in one pass, in constant memory.

    The source is a file, standard input or a built-in task: bytes, text, CSV or JSON
    lines. The run folder holds settings.toml, metrics.jsonl, checkpoints and curve.png;
    `norewind resume` goes on after any interruption, exactly.

        norewind train book.txt --out runs/book
        norewind train sensors.csv --targets power --horizon 24 --out runs/power
        tail -F app.log | norewind train - --flush 1 --predictions stdout --out runs/log

    Args:
        settings: see below.
        out: the run folder.
        config: a TOML file with settings, such as the settings.toml of another run. Command-line options override it.
        quiet: print nothing unless something is wrong.
    """
    from norewind.cli.running import run_in

    folder = out or Path("runs") / (Path(settings.source).stem.strip("-") or "stdin")
    run_in("train", folder, settings.settled(), quiet=quiet, new=True)


def with_config(arguments: list[str]) -> Callable[..., None]:
    """`train` with the settings in the file after --config as its defaults, so that other options override them."""
    if arguments[:1] != ["train"]:
        return train
    parser = argparse.ArgumentParser("norewind train", add_help=False, allow_abbrev=False)
    parser.add_argument("--config", type=Path)
    config = parser.parse_known_args(arguments[1:])[0].config
    return partial(train, settings=read_toml(config)) if config else train
