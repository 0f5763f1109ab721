"""What `diagnose` found: statistics with their standard errors, as a table, a figure and data."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Value(NamedTuple):
    """A number and its standard error."""

    value: float
    error: float

    def __str__(self) -> str:
        """Three digits, and two of the error."""
        return f"{_digits(self.value, 3)} ± {_digits(self.error, 2)}" if self.error else _digits(self.value, 3)


def _digits(number: float, digits: int) -> str:
    # Hundreds are easier to read in full than as 1.2e+02.
    return f"{number:.0f}" if 100 <= abs(number) < 1e6 else f"{number:.{digits}g}"


class Moments(NamedTuple):
    """For each step and key: ‖d_k‖² and d_k·Σ_j d_j of the errors d, and the cosine; ‖g‖² for each step."""

    squared_error: np.ndarray
    with_sum: np.ndarray
    cosine: np.ndarray
    exact: np.ndarray

    def between(self, start: int, stop: int) -> "Moments":
        """Those of some of the steps."""
        return Moments(*(array[start:stop] for array in self))

    def bias_squared(self) -> Value:
        """‖E[d]‖², relative: the mean of d_j·d_k over all pairs of different keys."""

        def pairs(squares, product, keys):
            return (product - squares) / (keys * (keys - 1)) if keys > 1 else squares

        return self._over_keys(pairs)

    def variance(self) -> Value:
        """E‖d − E[d]‖², relative."""

        def spread(squares, product, keys):
            return (squares - product / keys) / (keys - 1) if keys > 1 else 0 * squares

        return self._over_keys(spread)

    def mean_cosine(self) -> Value:
        """The mean over steps and keys."""
        per_key = self.cosine.mean(axis=0)
        keys = len(per_key)
        return Value(float(per_key.mean()), float(per_key.std(ddof=1) / np.sqrt(keys)) if keys > 1 else 0.0)

    def _over_keys(self, statistic: Callable) -> Value:
        """A statistic of (Σ‖d_k‖², ‖Σ d_k‖², keys), with its jackknife error over keys."""
        squares, with_sum = self.squared_error.sum(axis=0), self.with_sum.sum(axis=0)
        total, product, keys = squares.sum(), with_sum.sum(), len(squares)
        scale = max(self.exact.sum(), np.finfo(float).tiny)
        value = float(statistic(total, product, keys) / scale)
        if keys < 3:
            return Value(value, 0.0)
        without = statistic(total - squares, product - 2 * with_sum + squares, keys - 1) / scale
        return Value(value, float(np.sqrt((keys - 1) / keys * np.sum((without - without.mean()) ** 2))))


class Span(NamedTuple):
    """The statistics of one span of time, up to and including step `end`."""

    end: int
    bias_squared: Value
    variance: Value
    cosine: Value


@dataclass(frozen=True)
class Finding:
    """One method on one model: over the whole stream, and span by span."""

    method: str
    size: int | None
    steps: int
    keys: int
    bias_squared: Value
    variance: Value
    cosine: Value
    over_time: list[Span]
    models: int = 1

    @staticmethod
    def of(method: str, size: int | None, moments: Moments, memory: int, bins: int) -> "Finding":
        """From the moments of every window of `memory` steps."""
        windows, keys = moments.squared_error.shape
        edges = np.unique(np.linspace(0, windows, min(bins, windows) + 1).astype(int))
        spans = []
        for start, stop in pairwise(edges):
            part = moments.between(start, stop)
            spans.append(Span(int(stop * memory), part.bias_squared(), part.variance(), part.mean_cosine()))
        whole = moments.bias_squared(), moments.variance(), moments.mean_cosine()
        return Finding(method, size, windows * memory, keys, *whole, spans)


def mean_finding(findings: list[Finding]) -> Finding:
    """The mean over several models of one size; the error is then that over models."""
    if len(findings) == 1:
        return findings[0]

    def mean(values: list[Value]) -> Value:
        numbers = np.array([value.value for value in values])
        return Value(float(numbers.mean()), float(numbers.std(ddof=1) / np.sqrt(len(numbers))))

    def each(items, name: str) -> Value:
        return mean([getattr(item, name) for item in items])

    statistics = ("bias_squared", "variance", "cosine")
    spans = [
        Span(together[0].end, *(each(together, name) for name in statistics))
        for together in zip(*(finding.over_time for finding in findings), strict=True)
    ]
    whole = {name: each(findings, name) for name in statistics}
    return replace(findings[0], models=len(findings), over_time=spans, **whole)


@dataclass(frozen=True)
class Diagnosis:
    """All findings. Printed, it is a Markdown table."""

    findings: list[Finding]
    reference: str
    moving: bool

    def __str__(self) -> str:
        """The table."""
        return self.table()

    def table(self) -> str:
        """A Markdown table, one line per method and size. All numbers are relative to the exact gradient."""
        sized = any(finding.size is not None for finding in self.findings)
        head = ["method", *(["size"] if sized else []), "bias²", "variance", "cosine", "keys"]
        lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
        for finding in self.findings:
            values = [finding.bias_squared, finding.variance, finding.cosine, finding.keys]
            row = [finding.method, *([finding.size] if sized else []), *values]
            lines.append(f"| {' | '.join(map(str, row))} |")
        first = self.findings[0]
        kind = "moving" if self.moving else "frozen"
        over = f"standard error over {first.models} models" if first.models > 1 else "standard error over keys"
        note = f"Against {self.reference} over {first.steps} steps, {kind} parameters; ± {over}."
        return "\n".join([*lines, "", note])

    def as_json(self) -> dict:
        """Everything as plain data."""
        findings = [asdict(finding) for finding in self.findings]
        return {"reference": self.reference, "moving": self.moving, "findings": findings}

    def figure(self, path: Path | str) -> None:
        """A figure against time, and against size where there are several."""
        from norewind.diagnosis.figure import draw

        draw(self, Path(path))

    def save(self, folder: Path | str) -> None:
        """Write table.md, diagnosis.json and diagnosis.png into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "table.md").write_text(self.table() + "\n")
        (folder / "diagnosis.json").write_text(json.dumps(self.as_json(), indent=1) + "\n")
        self.figure(folder / "diagnosis.png")
