"""Tasks: endless, seeded sources of samples with their known floors."""

from norewind.tasks.anbn import anbn
from norewind.tasks.text import Text

__all__ = ["Text", "anbn"]
