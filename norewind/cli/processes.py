"""The options of every command that trains several runs side by side."""

from dataclasses import dataclass
from typing import Annotated

from norewind.runs.settings import option


@dataclass(frozen=True)
class Processes:
    """Runs, or the shards of one, are trained side by side in processes of their own."""

    jobs: Annotated[int | None, option("N", "one per core")] = None
    """The number of runs or shards to train at the same time."""

    ray: Annotated[str | None, option("ADDRESS", "processes on this machine")] = None
    """Train in this Ray cluster. auto uses a running one, or starts one on this machine."""


HERE = Processes()
