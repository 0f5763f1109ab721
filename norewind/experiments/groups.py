"""Runs that differ in their seed only, put together: means, spreads, curves."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import log2, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from norewind.experiments.records import load
from norewind.experiments.settings import TextSetting
from norewind.tasks import Text

Record = dict[str, Any]


def load_records(out: Path) -> list[Record]:
    """All records in a folder, in the order of their names."""
    records = (load(path) for path in sorted((out / "runs").glob("*.json")))
    return [record for record in records if record is not None]


@dataclass(frozen=True)
class Group:
    """The runs of one setting over all its seeds."""

    records: list[Record]

    @property
    def setting(self) -> Record:
        """The setting of the first seed; the others differ in the seed alone."""
        return self.records[0]["setting"]

    @property
    def converged(self) -> list[Record]:
        """The runs that did not diverge."""
        return [record for record in self.records if record["diverged_at"] is None]

    @property
    def diverged(self) -> int:
        """How many seeds diverged."""
        return len(self.records) - len(self.converged)

    @property
    def values(self) -> list[float]:
        """The recent losses of the runs that did not diverge."""
        return [record["recent"] for record in self.converged]

    @property
    def mean(self) -> float:
        """Their mean."""
        return float(np.mean(self.values)) if self.values else float("nan")

    @property
    def spread(self) -> float:
        """Their standard deviation over seeds (of one run, not of the mean); not a number for a single seed."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else float("nan")

    @property
    def text(self) -> str:
        """Mean ± spread, the number of seeds, and how many diverged.

        >>> run = {"diverged_at": None, "setting": {}}
        >>> Group([run | {"recent": 0.15}, run | {"recent": 0.16}, {"diverged_at": 9}]).text
        '0.1550 ± 0.0071 (2 seeds; 1 more diverged)'
        """
        count = len(self.values)
        words = f"{count} seed{'' if count == 1 else 's'}"
        if self.diverged:
            words += f"; {self.diverged} more diverged"
        if not count:
            return f"– ({words})"
        spread = "" if count == 1 else f" ± {self.spread:.4f}"
        return f"{self.mean:.4f}{spread} ({words})"

    def curves(self, *, cumulated: bool, recent: int = 100_000) -> tuple[np.ndarray, np.ndarray]:
        """Characters, and for every seed the loss up to there: from the start, or over the recent characters.

        A run that broke off for not being finite has no loss from there on.
        """
        chunk, longest = self.records[0]["chunk"], max(len(record["curve"]) for record in self.records)
        width = max(1, min(recent, longest * chunk // 20) // chunk)
        rows = []
        for record in self.records:
            sums = np.concatenate([[0.0], np.cumsum(record["curve"])])
            ends = np.arange(1, len(sums))
            starts = np.zeros_like(ends) if cumulated else np.maximum(0, ends - width)
            row = np.full(longest, np.nan)
            row[: len(ends)] = (sums[ends] - sums[starts]) / (ends - starts)
            rows.append(row)
        return chunk * np.arange(1, longest + 1), np.array(rows)


def grouped(records: Iterable[Record], task: str) -> list[Group]:
    """The runs on one text, grouped over seeds."""
    groups: dict[TextSetting, list[Record]] = {}
    for record in records:
        if record["setting"].get("task") == task:
            key = replace(TextSetting.from_json(record["setting"]), seed=0)
            groups.setdefault(key, []).append(record)
    return [Group(sorted(group, key=lambda record: record["setting"]["seed"])) for group in groups.values()]


def usual(groups: Iterable[Group]) -> list[Group]:
    """The groups of the paper's own settings: single precision, its ρ, and the length that most runs have."""
    plain = [g for g in groups if (g.setting["precision"], g.setting["rho"]) == ("single", "paper")]
    lengths = Counter(g.setting["characters"] for g in plain for _ in g.records)
    if not lengths:
        return []
    length = lengths.most_common(1)[0][0]
    return [group for group in plain if group.setting["characters"] == length]


def find(groups: Iterable[Group], **wanted: Any) -> Group | None:
    """The one group with these entries in its setting."""
    for group in groups:
        if all(group.setting[name] == value for name, value in wanted.items()):
            return group
    return None


def text_of(group: Group) -> Text:
    """The source that a group was trained on."""
    return TextSetting.from_json(group.setting).text()


def anbn_text_noise(k: int, l: int, characters: int) -> float:  # noqa: E741 (the paper's letters)
    """The standard deviation that the text alone gives to the loss of a perfect model of aⁿbⁿ(k, l).

    The lines in N characters are a renewal process: their number varies by N σ² / μ³,
    with μ and σ² the mean and variance of the length 2n + 2. Each costs log₂(l − k + 1) bits.

    >>> round(anbn_text_noise(1, 32, 100_000), 5)
    0.00141
    """
    mean = k + l + 2
    variance = 4 * ((l - k + 1) ** 2 - 1) / 12
    return log2(l - k + 1) * sqrt(characters * variance / mean**3) / characters
