"""Tasks: endless, seeded sources of samples with known entropy rates or solutions."""

from norewind.tasks.copying import Copying, Curriculum
from norewind.tasks.influence import InfluenceBalancing
from norewind.tasks.languages import Text, anbn, distant_brackets

__all__ = ["Copying", "Curriculum", "InfluenceBalancing", "Text", "anbn", "distant_brackets"]
