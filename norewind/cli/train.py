"""`norewind train`: learn from a stream."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from norewind.training.settings import Settings, read_toml

DEFAULTS = Settings()


def train(
    settings: Annotated[Settings, tyro.conf.arg(name="")] = DEFAULTS,
    *,
    out: Path | None = None,
    config: Path | None = None,
    quiet: bool = False,
) -> None:
    """Train a recurrent model on a stream: online, in one pass, in constant memory.

    The source is a built-in task, a file or - for the standard input: bytes, text, CSV or
    JSON lines. The run folder holds settings.toml, metrics.jsonl, checkpoints and
    curve.png; `norewind resume` goes on after any interruption, exactly.

        norewind train book.txt --out runs/book
        norewind train sensors.csv --targets power --horizon 24 --out runs/power
        tail -F app.log | norewind train - --flush 1 --predictions stdout --out runs/log

    Args:
        settings: see below.
        out: the run folder; by default runs/ and the name of the source.
        config: a TOML file with settings, e.g. the settings.toml of another run; options go before it.
        quiet: say nothing unless something is wrong.
    """
    from norewind.cli.running import run_in

    folder = out or Path("runs") / (Path(settings.source).stem.strip("-") or "stdin")
    run_in("train", folder, settings.settled(), quiet=quiet, new=True)


def with_config(arguments: list[str]) -> Callable[..., None]:
    """`train` with the settings of the file named by --config as its defaults, so that options go before it."""
    if arguments[:1] != ["train"]:
        return train
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", type=Path)
    config = parser.parse_known_args(arguments[1:])[0].config
    if config is None:
        return train
    return partial(train, settings=read_toml(config))
