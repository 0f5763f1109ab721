"""A model for every key: the runs of many keys, in memory and on disk, trained side by side."""

from norewind.fleets.fleet import Fleet, fleet
from norewind.streams.stream import Keyed

__all__ = ["Fleet", "Keyed", "fleet"]
