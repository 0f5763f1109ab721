"""`python -m scoreboards NAME`: run a public benchmark."""

import tyro

from scoreboards.nab import nab

tyro.extras.subcommand_cli_from_dict({"nab": nab}, prog="python -m scoreboards", description=__doc__)
