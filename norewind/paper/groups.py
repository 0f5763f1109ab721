"""Groups of runs that differ only in their seed: means, spreads, curves, and agreement with the paper."""

from collections.abc import Iterable, Sequence
from math import isnan, log2, sqrt
from typing import NamedTuple

import numpy as np

from norewind.paper.plans import SAMPLES, TABLE
from norewind.sweeps.curves import final, grouped_by, losses, points
from norewind.sweeps.record import Record
from norewind.tasks import Text
from norewind.training import registry

# The paper's table shows the mean loss of the last 10⁵ samples; for shorter runs we take the last tenth.
RECENT = 100_000
# The paper's numbers have three digits.
ROUNDING = 0.0005
LEVEL = 0.05
ENOUGH_SEEDS = 3


class Group:
    """Runs that differ only in their seed.

    Args:
        records: the records of the runs.

    Attributes:
        values: the recent losses of the runs that did not diverge.
        mean: their mean.
        spread: their standard deviation (of single runs, not of the mean); NaN for a single seed.
        diverged: the number of runs that diverged.
        is_short: whether the runs are shorter than the paper's.
    """

    def __init__(self, records: list[Record]):
        self.records, self.settings = records, records[0]["settings"]
        self.method, self.cell = self.settings["method"], self.settings["cell"]
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
    def paper(self) -> float | None:
        """The paper's value that these runs, or controls, are compared with; None if it has none."""
        key = self.method.partition(":rho")[0], self.cell
        return TABLE.get(key) if self.settings["source"] == "anbn" else None

    @property
    def changes(self) -> list[str]:
        """How the settings differ from the paper's; empty unless the runs are controls."""
        changed = {
            "the released ρ": "rho" in self.method,
            "double precision": self.settings["precision"] == "double",
            f"{self.samples:,} samples": self.samples > SAMPLES,
        }
        return [words for words, holds in changed.items() if holds]

    def text(self) -> Text:
        return registry.task(self.settings["source"], self.settings["parameters"])

    def curves(self, *, cumulative: bool) -> tuple[np.ndarray, np.ndarray]:
        """The mean loss of every seed along the stream.

        Args:
            cumulative: average from the start, rather than over the recent samples.

        Returns:
            The numbers of samples, and the mean losses by seed and point; NaN after the end of a run that stopped.
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
    """Group the runs on text among some records by everything but their seed."""
    in_order = sorted((one for one in records if "settings" in one), key=lambda record: record["settings"]["seed"])
    groups = grouped_by(lambda record: str({**record["settings"], "seed": None}), in_order)
    return [Group(group) for group in groups.values()]


def influence_curves(records: Sequence[Record]) -> dict[str, dict[float, list[Record]]]:
    """Records of influence balancing by method (UORO first, then by window) and by rate (the same rates for all)."""
    runs = [record["influence"] for record in records]
    methods = sorted({run["method"] for run in runs}, key=lambda method: int(method.partition(":")[2] or 0))
    rates = sorted({run["rate"] for run in runs}, reverse=True)
    curves: dict[str, dict[float, list[Record]]] = {method: {rate: [] for rate in rates} for method in methods}
    for run, record in zip(runs, records, strict=True):
        curves[run["method"]][run["rate"]].append(record)
    return curves


def of_paper(groups: Iterable[Group], source: str) -> dict[tuple[str, str], Group]:
    """The groups with the paper's own settings on one text, by method and cell.

    Args:
        groups: all groups. If several differ only in their length, the longest is used.
        source: the name of the text. On `"anbn"`, the result is in the order of the paper's table.
    """
    plain = [group for group in groups if group.settings["source"] == source and not group.changes]
    longest = {(group.method, group.cell): group for group in sorted(plain, key=lambda group: group.samples)}
    keys = [key for key in TABLE if key in longest] if source == "anbn" else longest
    return {key: longest[key] for key in keys}


class Agreement(NamedTuple):
    """Whether the paper's run could be one of ours.

    Attributes:
        verdict: the verdict.
        p: its p-value; None if there is no verdict.
        low: the lower end of the interval that contains 95% of our runs.
        high: its upper end.
    """

    verdict: str
    p: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> str:
        return "" if self.low is None else f"{self.low:.3f} to {self.high:.3f}"


def agreement(group: Group, paper: float) -> Agreement:
    """Test whether the paper's value comes from the same distribution as ours.

    If the paper's single run and our n runs come from one normal distribution, then
    (paper − mean) / (s √(1 + 1/n)) follows Student's t with n − 1 degrees of freedom. p
    is the probability of a value at least that far away on either side. s is the standard
    deviation over our seeds, but at least that of a perfect model (`anbn_text_noise`), and
    half a digit is allowed for the paper's rounding. The verdict is `agrees` if p ≥ 0.05,
    otherwise `differs (better)` or `differs (worse)`, where ours is better or worse. A
    verdict requires three seeds, and runs as long as the paper's.

    Args:
        group: our runs.
        paper: the paper's value.
    """
    from scipy.special import stdtr, stdtrit

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
    """The standard deviation of the loss of a perfect model of aⁿbⁿ(k, l), due to the text alone.

    The lines in N samples are a renewal process: the variance of their number is N σ² / μ³,
    with μ and σ² the mean and variance of the length 2n + 2. Each costs log₂(l − k + 1) bits.

    Args:
        k: the smallest n.
        l: the largest n.
        samples: the number of samples, N.

    >>> round(anbn_text_noise(1, 32, 100_000), 5)
    0.00141
    """
    mean = k + l + 2
    variance = 4 * ((l - k + 1) ** 2 - 1) / 12
    return log2(l - k + 1) * sqrt(samples * variance / mean**3) / samples
