"""What determines a run, completely."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from norewind.tasks import Text, anbn, distant_brackets

TASKS = {"anbn": anbn, "brackets": distant_brackets}
ALPHA = {"anbn": 0.03, "brackets": 0.015}
"""The paper's α for the two texts, in the learning rate γ / (1 + α √t)."""


@dataclass(frozen=True, kw_only=True)
class TextSetting:
    """One run of next-character prediction. Equal settings give equal numbers on the same machine."""

    task: Literal["anbn", "brackets"]
    task_arguments: tuple[int, ...]
    cell: Literal["gru", "lstm"]
    method: Literal["uoro", "bptt"]
    memory: int
    characters: int
    alpha: float
    seed: int
    rate: float = 1e-3
    units: int = 64
    precision: Literal["single", "double"] = "single"
    rho: Literal["paper", "released"] = "paper"

    @property
    def slug(self) -> str:
        """A name for files and progress bars that no other setting of the experiments has."""
        arguments = "-".join(map(str, self.task_arguments))
        length = f"{self.characters:.15g}" if self.characters % 10**5 else f"{self.characters / 10**6:g}M"
        parts = [f"{self.task}-{arguments}", self.cell, f"{self.method}{self.memory}", length]
        # What is not as usual is named.
        parts += [value for value in (self.precision, self.rho) if value not in ("single", "paper")]
        usual = {"rate": 1e-3, "units": 64, "alpha": ALPHA[self.task]}
        parts += [f"{name}{getattr(self, name)}" for name, value in usual.items() if getattr(self, name) != value]
        return "_".join([*parts, f"seed{self.seed}"])

    @property
    def chunk(self) -> int:
        """The characters between two points of the curve: whole windows, at most 10⁴ and a hundredth of the run."""
        size = min(10_000, max(1, self.characters // 100))
        return max(1, size // self.memory) * self.memory

    def text(self) -> Text:
        """The source of characters."""
        return TASKS[self.task](*self.task_arguments)

    @classmethod
    def from_json(cls, entries: dict[str, Any]) -> "TextSetting":
        """The settings that stand in a record."""
        return cls(**{**entries, "task_arguments": tuple(entries["task_arguments"])})

    def as_json(self) -> dict[str, Any]:
        """The settings as they stand in a record."""
        return asdict(self) | {"task_arguments": list(self.task_arguments)}
