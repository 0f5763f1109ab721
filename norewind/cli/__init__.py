"""The command line. A new command is one file beside this one, and one line in COMMANDS."""

from norewind.cli.compare import compare
from norewind.cli.diagnose import diagnose
from norewind.cli.generate import generate
from norewind.cli.reproduce import reproduce

COMMANDS = {
    "compare": compare,
    "diagnose": diagnose,
    "generate": generate,
    "reproduce": reproduce,
}


def main(arguments: list[str] | None = None) -> None:
    """Train recurrent models on endless streams: online, in one pass, in constant memory."""
    import tyro

    tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="norewind", description=main.__doc__, args=arguments)
