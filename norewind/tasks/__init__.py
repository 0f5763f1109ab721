"""Tasks: endless, seeded sources of samples with known floors, and an environment to act in."""

from norewind.tasks.conditioning import TraceConditioning, discounted_returns
from norewind.tasks.languages import Text, anbn, distant_brackets
from norewind.tasks.maze import ActorState, TMaze, act, init_actor

__all__ = [
    "ActorState", "TMaze", "Text", "TraceConditioning", "act", "anbn", "discounted_returns", "distant_brackets",
    "init_actor",
]  # fmt: skip
