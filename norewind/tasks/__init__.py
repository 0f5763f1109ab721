"""Tasks: endless, seeded sources of samples with known entropy rates."""

from norewind.tasks.languages import Text, anbn, distant_brackets

__all__ = ["Text", "anbn", "distant_brackets"]
