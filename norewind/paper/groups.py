"""Runs that differ in their seed only, put together: means, spreads, curves, and agreement with the paper."""

from collections.abc import Iterable, Sequence
from math import isnan, log2, sqrt
from typing import NamedTuple

import numpy as np

from norewind import names
from norewind.instruments.curves import final, grouped_by, losses, points
from norewind.instruments.tables import mean_and_spread
from norewind.paper.plans import SAMPLES
from norewind.runs.metrics import counted
from norewind.runs.record import Record
from norewind.tasks import Text

# The paper's table shows the mean loss of the last 10⁵ samples; for shorter runs we take the last tenth.
RECENT = 100_000
# The paper's numbers have three digits.
ROUNDING = 0.0005
LEVEL = 0.05
ENOUGH_SEEDS = 3


class Group:
    """The runs of one kind with all their seeds.

    `values` are the recent losses of the runs that did not diverge, `mean` and `spread`
    their mean and standard deviation (of one run, not of the mean; NaN for a single seed).
    """

    def __init__(self, records: list[Record]):
        self.records, self.settings = records, records[0]["settings"]
        self.samples = int(self.settings["samples"])
        self.is_short = self.samples < SAMPLES
        self.recent_samples = min(RECENT, self.samples // 10)
        good = [record for record in records if record["problem"] is None]
        self.diverged = len(records) - len(good)
        finals = [final(record, self.recent_samples / self.samples) for record in good]
        self.values = [value for value in finals if not isnan(value)]
        self.mean = float(np.mean(self.values)) if self.values else float("nan")
        self.spread = float(np.std(self.values, ddof=1)) if len(self.values) > 1 else float("nan")

    @property
    def changes(self) -> list[str]:
        """What these runs, as a control, have changed in the paper's settings."""
        changed = {
            "the released ρ": "rho" in self.settings["method"],
            "double precision": self.settings["precision"] == "double",
            f"{self.samples:,} samples": self.samples > SAMPLES,
        }
        return [words for words, holds in changed.items() if holds]

    def __str__(self) -> str:
        """Mean ± spread, the number of seeds, and how many diverged.

        >>> run = {"problem": None, "every": 10, "samples": 100, "settings": {"samples": 100, "method": "bptt"}}
        >>> str(Group([run | {"curve": [0.15] * 10}, run | {"curve": [0.16] * 10}, {**run, "problem": "diverged"}]))
        '0.1550 ± 0.0071 (2 seeds; 1 more diverged)'
        """
        diverged = f"; {self.diverged} more diverged" if self.diverged else ""
        return f"{mean_and_spread(self.values)} ({counted(len(self.values), 'seed')}{diverged})"

    def text(self) -> Text:
        return names.task(self.settings["source"], self.settings["parameters"])

    def curves(self, *, cumulative: bool) -> tuple[np.ndarray, np.ndarray]:
        """Samples, and for every seed the mean loss up to there: from the start, or over the recent samples.

        A run that ended early has no loss from there on.
        """
        longest = max(self.records, key=lambda record: len(record["curve"]))
        width = max(1, min(RECENT, self.samples // 20) // longest["every"])
        rows = np.full((len(self.records), len(longest["curve"])), np.nan)
        for row, record in zip(rows, self.records, strict=True):
            sums = np.concatenate([[0.0], np.cumsum(losses(record))])
            ends = np.arange(1, len(sums))
            starts = np.zeros_like(ends) if cumulative else np.maximum(0, ends - width)
            row[: len(ends)] = (sums[ends] - sums[starts]) / (ends - starts)
        return points(longest), rows


def grouped(records: Iterable[Record]) -> list[Group]:
    """Records of runs on text, grouped by everything but their seed."""
    in_order = sorted(records, key=lambda record: record["settings"]["seed"])
    groups = grouped_by(lambda record: str({**record["settings"], "seed": None}), in_order)
    return [Group(group) for group in groups.values()]


def influence_curves(records: Sequence[Record]) -> dict[str, dict[float, list[Record]]]:
    """Records of influence balancing by method (UORO first, then by window), and by rate (the same for all)."""
    runs = [record["influence"] for record in records]
    methods = sorted({run["method"] for run in runs}, key=lambda method: int(method.partition(":")[2] or 0))
    rates = sorted({run["rate"] for run in runs}, reverse=True)
    curves: dict[str, dict[float, list[Record]]] = {method: {rate: [] for rate in rates} for method in methods}
    for run, record in zip(runs, records, strict=True):
        curves[run["method"]][run["rate"]].append(record)
    return curves


def of_paper(groups: Iterable[Group], source: str) -> dict[tuple[str, str], Group]:
    """The groups of the paper's own settings on one text, by method and cell; of several lengths the longest."""
    plain = [group for group in groups if group.settings["source"] == source and not group.changes]
    plain.sort(key=lambda group: group.samples)
    return {(group.settings["method"], group.settings["cell"]): group for group in plain}


class Agreement(NamedTuple):
    """Whether the paper's run could be one more of ours: a verdict, its p-value, and where 95% of runs would end."""

    verdict: str
    p: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> str:
        return "" if self.low is None else f"{self.low:.3f} to {self.high:.3f}"


def agreement(group: Group | None, paper: float) -> Agreement:
    """How probable the paper's value is under the distribution of ours.

    If the paper's single run and our n runs come from one normal distribution, then
    (paper − mean) / (s √(1 + 1/n)) follows Student's t with n − 1 degrees of freedom. p
    is the probability of a value at least that far away on either side; s is the standard
    deviation over our seeds, but no less than what the text alone does to the loss, and
    half a digit of the paper's rounding is allowed. The verdict is `agrees` from p = 0.05
    on, below that `differs (better)` or `differs (worse)`, which is said of us. It needs
    three seeds, and runs as long as the paper's.
    """
    from scipy.special import stdtr, stdtrit

    if group is None:
        return Agreement("no run yet")
    if group.is_short:
        return Agreement("too short to conclude")
    count = len(group.values)
    if count < ENOUGH_SEEDS:
        return Agreement("too few seeds")
    k, l = group.settings["parameters"]  # noqa: E741 (the paper's letters)
    noise = anbn_text_noise(k, l, group.recent_samples)
    scale = max(group.spread, noise) * sqrt(1 + 1 / count)
    distance = max(0.0, abs(paper - group.mean) - ROUNDING)
    p = float(2 * stdtr(count - 1, -distance / scale))
    half = float(stdtrit(count - 1, 1 - LEVEL / 2)) * scale + ROUNDING
    side = "better" if group.mean < paper else "worse"
    return Agreement("agrees" if p >= LEVEL else f"differs ({side})", p, group.mean - half, group.mean + half)


def anbn_text_noise(k: int, l: int, samples: int) -> float:  # noqa: E741 (the paper's letters)
    """The standard deviation that the text alone gives to the loss of a perfect model of aⁿbⁿ(k, l).

    The lines in N samples are a renewal process: their number varies by N σ² / μ³, with
    μ and σ² the mean and variance of the length 2n + 2. Each costs log₂(l − k + 1) bits.

    >>> round(anbn_text_noise(1, 32, 100_000), 5)
    0.00141
    """
    mean = k + l + 2
    variance = 4 * ((l - k + 1) ** 2 - 1) / 12
    return log2(l - k + 1) * sqrt(samples * variance / mean**3) / samples
