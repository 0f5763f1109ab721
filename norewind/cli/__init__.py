"""The command line. A new command is a function in this folder, and its name in RUN_COMMANDS or STUDY_COMMANDS."""

import sys

import norewind
from norewind.cli.check_command import check
from norewind.cli.common import command_line
from norewind.cli.compress_command import compress, decompress
from norewind.cli.explain_command import explain
from norewind.cli.query_commands import forecast, plot, predict, sample
from norewind.cli.serve_command import serve, watch
from norewind.cli.study_commands import compare, diagnose, generate
from norewind.cli.train_command import resume, train, with_config

RUN_COMMANDS = (train, resume, forecast, explain, predict, sample, plot, serve, watch, check, compress, decompress)
STUDY_COMMANDS = (compare, diagnose, generate)
COMMANDS = {command.__name__: command for command in (*RUN_COMMANDS, *STUDY_COMMANDS)}


def main(arguments: list[str] | None = None) -> None:
    """Train recurrent models on endless streams: online, in one pass, in constant memory."""
    import tyro

    arguments = sys.argv[1:] if arguments is None else arguments
    command = " ".join(arguments[:1])
    # In a study, every ValueError is a mistake in its options.
    mistakes = (ValueError,) if COMMANDS.get(command) in STUDY_COMMANDS else ()
    with command_line("norewind", command, mistakes):
        if arguments == ["--version"]:
            print(f"norewind {norewind.__version__}")
            return
        commands = {**COMMANDS, "train": with_config(arguments)}
        tyro.extras.subcommand_cli_from_dict(commands, prog="norewind", description=main.__doc__, args=arguments)
