"""Fleets: one model per key. The runs of many keys are kept in memory and on disk, and are trained together."""

from norewind.fleets.fleet import Fleet
from norewind.streams.stream import Keyed

__all__ = ["Fleet", "Keyed"]
