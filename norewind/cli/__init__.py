"""The command line. A new command is one file in this folder and one line in COMMANDS."""

import signal
import sys

import norewind
from norewind.cli.compare import compare
from norewind.cli.diagnose import diagnose
from norewind.cli.endings import BAD_INPUT, leave
from norewind.cli.generate import generate
from norewind.cli.plot import plot
from norewind.cli.predict import predict
from norewind.cli.reproduce import reproduce
from norewind.cli.resume import resume
from norewind.cli.sample import sample
from norewind.cli.train import train, with_config
from norewind.runs.settings import SettingsError

COMMANDS = {
    "train": train,
    "resume": resume,
    "predict": predict,
    "sample": sample,
    "plot": plot,
    "compare": compare,
    "diagnose": diagnose,
    "generate": generate,
    "reproduce": reproduce,
}


def main(arguments: list[str] | None = None) -> None:
    """Train recurrent models on endless streams: online, in one pass, in constant memory."""
    import tyro

    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(f"norewind {norewind.__version__}")
        return
    try:
        commands = {**COMMANDS, "train": with_config(arguments)}
        tyro.extras.subcommand_cli_from_dict(commands, prog="norewind", description=main.__doc__, args=arguments)
    except SettingsError as error:
        leave(f"norewind {arguments[0]}: {error}", BAD_INPUT)
    except KeyboardInterrupt:
        leave("norewind: interrupted.", 128 + signal.SIGINT)
