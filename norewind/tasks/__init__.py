"""Tasks: endless, seeded sources of samples with known entropy rates or solutions."""

from norewind.tasks.anbn import anbn
from norewind.tasks.brackets import distant_brackets
from norewind.tasks.influence import InfluenceBalancing, influence_balancing
from norewind.tasks.text import Text

__all__ = ["InfluenceBalancing", "Text", "anbn", "distant_brackets", "influence_balancing"]
