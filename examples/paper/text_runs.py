"""The paper's experiments on text: its numbers, the runs that reproduce them, and whether they agree."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from math import isnan, log2, sqrt
from typing import NamedTuple

import numpy as np

from norewind.sweeps.record import Record, final_loss, group_by, interval_ends, loss_curve
from norewind.tasks import Text
from norewind.training import registry
from norewind.training.settings import Settings

# The length of the runs on text. The paper does not state its own.
SAMPLES = 10**7
SEEDS = {"anbn": 5, "brackets": 3, "controls": 3}
# UORO with GRUs varies most between seeds, so that cell of the table has more of them.
GRU_SEEDS = 7
# The length of a run that only checks that everything works.
QUICK = 50_000

# The paper's mean loss on the last 10⁵ samples of aⁿbⁿ(1, 32), in bits, by (method, cell).
LOSSES = {
    "uoro": {"lstm": 0.147, "gru": 0.155},
    "uoro:window=2": {"lstm": 0.149, "gru": 0.174},
    "uoro:window=16": {"lstm": 0.154, "gru": 0.149},
    "bptt:1": {"lstm": 0.178, "gru": 0.231},
    "bptt:2": {"lstm": 0.149, "gru": 0.285},
    "bptt:16": {"lstm": 0.144, "gru": 0.207},
}
TABLE = {(method, cell): loss for method, by_cell in LOSSES.items() for cell, loss in by_cell.items()}

CELLS = ("gru", "lstm")
# The methods in the table, the fast ones first.
METHODS = ("bptt:16", "uoro:window=16", "bptt:2", "uoro:window=2", "bptt:1", "uoro")
ANBN = Settings("anbn", parameters=(1, 32), method="uoro", alpha=0.03)
BRACKETS = Settings("brackets", parameters=(1, 5, 10), method="uoro", alpha=0.015)

# The paper's table shows the mean loss of the last 10⁵ samples; for shorter runs we take the last tenth.
RECENT = 100_000
# The paper's numbers have three digits.
ROUNDING = 0.0005
LEVEL = 0.05
ENOUGH_SEEDS = 3


def text_plan(
    what: str = "all",
    *,
    quick: bool = False,
    seeds: int | None = None,
    samples: int | None = None,
    controls: bool = True,
) -> dict[str, Settings]:
    """Plan the runs on text.

    All methods and cells with one seed precede the next seed, so that an interrupted sweep
    is a complete table with fewer seeds.

    Args:
        what: the experiment, `"anbn"` or `"brackets"`, or `"all"`.
        quick: one seed, and runs that are far too short to conclude anything.
        seeds: the runs of each kind; by default 5 for the table and 3 for the rest.
        samples: the length of each run; by default 10⁷.
        controls: also plan the runs that could explain a difference from the paper.

    Returns:
        The settings of each run, by name.
    """
    samples = samples or (QUICK if quick else SAMPLES)
    sized = {"samples": samples, "metrics_every": min(10_000, max(1, samples // 100))}
    counts = {name: seeds or (1 if quick else count) for name, count in SEEDS.items()}
    # On brackets, the window of BPTT is shorter than the distance that has to be remembered.
    kinds = {
        "anbn": (ANBN, [(method, cell) for cell in CELLS for method in METHODS]),
        "brackets": (BRACKETS, [(method, cell) for method in ("bptt:4", "uoro") for cell in CELLS]),
    }
    runs = [
        replace(base, method=method, cell=cell, seed=seed, **sized)
        for name, (base, chosen) in kinds.items()
        if what in (name, "all")
        for seed in range(counts[name])
        for method, cell in chosen
    ]
    if what in ("anbn", "all") and controls and not quick:
        gru = replace(ANBN, cell="gru", **sized)
        for change in ({"method": "uoro:rho=released"}, {"precision": "double"}, {"samples": 3 * samples}):
            runs += [replace(gru, seed=seed, **change) for seed in range(counts["controls"])]
        runs += [replace(gru, seed=seed) for seed in range(counts["anbn"], counts["anbn"] if seeds else GRU_SEEDS)]
    return {run_name(run): run for run in runs}


def run_name(run: Settings) -> str:
    """The unique name of a run's record.

    >>> run_name(replace(ANBN, method="uoro:window=16", samples=1e7, seed=3))
    'anbn-gru-uoro-window-16-10M-seed3'
    """
    samples = run.samples or 0
    length = f"{samples:.15g}" if samples % 10**5 else f"{samples / 10**6:g}M"
    method = re.sub(r"\W+", "-", run.method)
    double = ["double"] if run.precision == "double" else []
    return "-".join([run.source, run.cell, method, length, *double, f"seed{run.seed}"])


def method_words(method: str) -> str:
    """The paper's name of a method.

    >>> method_words("uoro"), method_words("uoro:window=16"), method_words("bptt:4"), method_words("uoro:rho=released")
    ('UORO', 'UORO, T = 16', 'truncated BPTT, T = 4', 'UORO with the released ρ')
    """
    name, _, option = method.partition(":")
    words = {"uoro": "UORO", "bptt": "truncated BPTT"}[name]
    if option == "rho=released":
        return f"{words} with the released ρ"
    return f"{words}, T = {option.removeprefix('window=')}" if option else words


class SeedGroup:
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
        finals = [final_loss(record, self.recent_samples / self.samples) for record in good]
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
            sums = np.concatenate([[0.0], np.cumsum(loss_curve(record))])
            ends = np.arange(1, len(sums))
            starts = np.zeros_like(ends) if cumulative else np.maximum(0, ends - width)
            row[: len(ends)] = (sums[ends] - sums[starts]) / (ends - starts)
        return interval_ends(longest), rows


def grouped(records: Iterable[Record]) -> list[SeedGroup]:
    """Group the runs on text among some records by all settings except the seed."""
    in_order = sorted((one for one in records if "settings" in one), key=lambda record: record["settings"]["seed"])
    groups = group_by(lambda record: str({**record["settings"], "seed": None}), in_order)
    return [SeedGroup(group) for group in groups.values()]


class Agreement(NamedTuple):
    """Whether the paper's run could be one of ours.

    Attributes:
        verdict: the verdict; empty if the paper has no value.
        p: its p-value; None if there is no verdict.
        low: the lower end of the interval that contains 95% of our runs.
        high: its upper end.
    """

    verdict: str
    p: float | None = None
    low: float | None = None
    high: float | None = None


def agreement(group: SeedGroup, paper: float | None) -> Agreement:
    """Test whether the paper's value comes from the same distribution as ours.

    If the paper's single run and our n runs come from one normal distribution, then
    (paper − mean) / (s √(1 + 1/n)) follows Student's t with n − 1 degrees of freedom. p
    is the probability of a value at least that far away on either side. s is the standard
    deviation over our seeds, but at least the one of a perfect model (`anbn_text_noise`), and
    half a digit is allowed for the paper's rounding. The verdict is `agrees` if p ≥ 0.05,
    otherwise `differs (better)` or `differs (worse)`, where ours is better or worse. A
    verdict requires three seeds, and runs of 10⁷ samples.

    Args:
        group: our runs.
        paper: the paper's value, if it has one.
    """
    from scipy.special import stdtr, stdtrit

    if paper is None:
        return Agreement("")
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


def paper_runs(groups: Iterable[SeedGroup], source: str) -> "TextRuns":
    """The groups with the paper's own settings on one text, by method and cell.

    Args:
        groups: all groups. If several differ only in their length, the longest is used.
        source: the name of the text. On `"anbn"`, the result is in the order of the paper's table.
    """
    plain = [group for group in groups if group.settings["source"] == source and not group.changes]
    longest = {(group.method, group.cell): group for group in sorted(plain, key=lambda group: group.samples)}
    keys = [key for key in TABLE if key in longest] if source == "anbn" else longest
    return TextRuns({key: longest[key] for key in keys})


class TextRuns(dict[tuple[str, str], SeedGroup]):
    """Groups of runs on one text, by method and cell."""

    def too_short(self) -> str:
        """A sentence about runs that are too short to draw conclusions from; empty if all are long enough."""
        lengths = sorted({group.samples for group in self.values() if group.is_short})
        if not lengths:
            return ""
        return (
            f"Too short to conclude: there are runs of {as_range(lengths[0], lengths[-1], ',')} samples. The runs of "
            f"`python -m examples.paper` without `--quick` are {SAMPLES:,} samples long, with at least three seeds."
        )

    def verdicts(self) -> str:
        """Count the cells of the paper's table by their verdict."""
        judged = Counter(agreement(group, group.paper).verdict for group in self.values() if group.paper)
        return "; ".join(f"{count} of {len(TABLE)} cells: {verdict}" for verdict, count in judged.items())

    def crossings(self) -> list[str]:
        """One sentence per cell on when UORO's mean loss from the start falls below that of truncated BPTT."""
        sentences = []
        for cell in CELLS:
            if ("uoro", cell) in self and ("bptt:4", cell) in self:
                curves = [self[method, cell].curves(cumulative=True) for method in ("uoro", "bptt:4")]
                shortest = min(rows.shape[1] for _, rows in curves)
                ours, theirs = (np.median(rows[:, :shortest], axis=0) for _, rows in curves)
                above = np.flatnonzero(~(ours < theirs))
                after = curves[0][0][above[-1]] if len(above) else 0
                when = f"below that of truncated BPTT after {after:,} samples"
                if len(above) and above[-1] == shortest - 1:
                    when = "still above that of truncated BPTT at the end"
                sentences.append(f"{cell.upper()}: UORO's mean loss from the start is {when}.")
        return sentences


def as_range(low: float, high: float, digits: str) -> str:
    """Format the smallest and the largest of some numbers; only one if they look the same.

    Args:
        low: the smallest.
        high: the largest.
        digits: the format of a number.

    >>> as_range(1, 2.5, ".1f"), as_range(1, 1.01, ".1f")
    ('1.0 to 2.5', '1.0')
    """
    return " to ".join(dict.fromkeys([format(low, digits), format(high, digits)]))
