"""The command line. A new command is a function in this folder, and its name in USE or STUDY."""

import logging
import signal
import sys

import norewind
from norewind import standard
from norewind.cache import keep_compiled
from norewind.cli.compress import compress, decompress
from norewind.cli.query import forecast, plot, predict, sample
from norewind.cli.running import friendly, leave
from norewind.cli.serve import serve, watch
from norewind.cli.study import compare, diagnose, generate, reproduce
from norewind.cli.train import resume, train, with_config

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
    command = " ".join(arguments[:1])
    # In a study, every ValueError is a mistake in its options.
    mistakes = (ValueError,) if COMMANDS.get(command) in STUDY else ()
    try:
        with friendly(command, mistakes=mistakes):
            commands = {**COMMANDS, "train": with_config(arguments)}
            tyro.extras.subcommand_cli_from_dict(commands, prog="norewind", description=main.__doc__, args=arguments)
    except KeyboardInterrupt:
        leave("norewind: interrupted.", 128 + signal.SIGINT)
    finally:
        standard.drop_output()
