"""The command line. A new command is one file in this folder and its name in COMMANDS."""

import logging
import signal
import sys

import norewind
from norewind import standard
from norewind.cache import keep_compiled
from norewind.cli.compare import compare
from norewind.cli.compress import compress, decompress
from norewind.cli.diagnose import diagnose
from norewind.cli.forecast import forecast
from norewind.cli.generate import generate
from norewind.cli.plot import plot
from norewind.cli.predict import predict
from norewind.cli.reproduce import reproduce
from norewind.cli.resume import resume
from norewind.cli.running import friendly, leave
from norewind.cli.sample import sample
from norewind.cli.serve import serve, watch
from norewind.cli.train import train, with_config

USE = (train, resume, forecast, predict, sample, plot, serve, watch, compress, decompress)
STUDY = (compare, diagnose, generate, reproduce)
COMMANDS = {command.__name__: command for command in (*USE, *STUDY)}


def main(arguments: list[str] | None = None) -> None:
    """Train recurrent models on endless streams: online, in one pass, in constant memory."""
    import tyro

    standard.prepare()
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(f"norewind {norewind.__version__}")
        return
    keep_compiled()
    # Without a home, matplotlib keeps its list of fonts elsewhere, and says so in five lines.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        with friendly(" ".join(arguments[:1])):
            commands = {**COMMANDS, "train": with_config(arguments)}
            tyro.extras.subcommand_cli_from_dict(commands, prog="norewind", description=main.__doc__, args=arguments)
    except KeyboardInterrupt:
        leave("norewind: interrupted.", 128 + signal.SIGINT)
    finally:
        standard.drop_output()
