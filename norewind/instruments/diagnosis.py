"""What `diagnose` found: statistics with their standard errors, as a table, a figure and data."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from norewind.instruments.tables import markdown

SPANS = 20
"""The spans of time that a stream is divided into."""


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
        return mean_value(self.cosine.mean(axis=0))

    def _over_keys(self, statistic: Callable) -> Value:
        """A statistic of (Σ‖d_k‖², ‖Σ d_k‖², keys), with its jackknife error over keys."""
        squares, with_sum = self.squared_error.sum(axis=0), self.with_sum.sum(axis=0)
        total, product, keys = squares.sum(), with_sum.sum(), len(squares)
        scale = self.exact.sum()
        value = float(statistic(total, product, keys) / scale)
        if keys < 3:
            return Value(value, 0.0)
        without = statistic(total - squares, product - 2 * with_sum + squares, keys - 1) / scale
        return Value(value, float(np.sqrt((keys - 1) / keys * np.sum((without - without.mean()) ** 2))))


def mean_value(numbers: Sequence[float] | np.ndarray) -> Value:
    """The mean of numbers, and its standard error."""
    numbers = np.asarray(numbers)
    error = numbers.std(ddof=1) / np.sqrt(len(numbers)) if len(numbers) > 1 else 0.0
    return Value(float(numbers.mean()), float(error))


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
    hidden: int | None
    steps: int
    keys: int
    bias_squared: Value
    variance: Value
    cosine: Value
    over_time: list[Span]
    models: int = 1

    @staticmethod
    def of(method: str, hidden: int | None, moments: Moments, window: int) -> "Finding":
        """From the moments of every window. A span in which the exact gradient is zero is left out."""
        windows, keys = moments.squared_error.shape
        edges = np.unique(np.linspace(0, windows, min(SPANS, windows) + 1).astype(int))
        spans = []
        for start, stop in pairwise(edges):
            part = moments.between(start, stop)
            if part.exact.sum() > 0:
                spans.append(Span(int(stop * window), part.bias_squared(), part.variance(), part.mean_cosine()))
        whole = moments.bias_squared(), moments.variance(), moments.mean_cosine()
        return Finding(method, hidden, windows * window, keys, *whole, spans)


STATISTICS = ("bias_squared", "variance", "cosine")


def mean_finding(findings: Sequence[Finding]) -> Finding:
    """The mean over several models of one size; the error is then that over models."""
    if len(findings) == 1:
        return findings[0]

    def each(items, name: str) -> Value:
        return mean_value([getattr(item, name).value for item in items])

    ends = sorted({span.end for finding in findings for span in finding.over_time})
    spans = []
    for end in ends:
        together = [span for finding in findings for span in finding.over_time if span.end == end]
        spans.append(Span(end, *(each(together, name) for name in STATISTICS)))
    whole = {name: each(findings, name) for name in STATISTICS}
    return replace(findings[0], models=len(findings), over_time=spans, **whole)


@dataclass(frozen=True)
class Diagnosis:
    """All findings. Printed, it is a Markdown table."""

    findings: list[Finding]
    reference: str
    moving: bool

    def __str__(self) -> str:
        return self.table()

    @property
    def sizes(self) -> list[int]:
        """The sizes that were measured, if there were several models."""
        return sorted({finding.hidden for finding in self.findings if finding.hidden is not None})

    def table(self) -> str:
        """A Markdown table, one line per method and size. All numbers are relative to the exact gradient."""
        sized = bool(self.sizes)
        rows = [
            [f.method, *([f.hidden] if sized else []), f.bias_squared, f.variance, f.cosine, f.keys]
            for f in self.findings
        ]
        first = self.findings[0]
        kind = "moving" if self.moving else "frozen"
        over = f"standard error over {first.models} models" if first.models > 1 else "standard error over keys"
        note = f"Against {self.reference} over {first.steps} samples, {kind} parameters; ± {over}."
        header = ["method", *(["hidden"] if sized else []), "bias²", "variance", "cosine", "keys"]
        return markdown(header, rows) + "\n" + note

    def as_json(self) -> dict:
        """Everything as plain data."""
        findings = [asdict(finding) for finding in self.findings]
        return {"reference": self.reference, "moving": self.moving, "findings": findings}

    def save(self, folder: Path | str) -> None:
        """Write table.md, diagnosis.json and diagnosis.png into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "table.md").write_text(self.table() + "\n")
        (folder / "diagnosis.json").write_text(json.dumps(self.as_json(), indent=1) + "\n")
        self.figure(folder / "diagnosis.png")

    def figure(self, path: Path | str) -> None:
        """One row of panels against time (for the largest size), and one against size where there are several."""
        from norewind.instruments.figures import legend, new_figure, save

        rows = 2 if len(self.sizes) > 1 else 1
        figure, axes = new_figure(rows, 3, panel=(4.4, 3.6))
        names = list(dict.fromkeys(finding.method for finding in self.findings))
        largest = self.sizes[-1] if self.sizes else None
        for column, (what, title, scale) in enumerate(PANELS):
            for finding in self.findings:
                if finding.hidden == largest:
                    points = [(span.end, getattr(span, what)) for span in finding.over_time]
                    _draw(axes[0, column], points, names.index(finding.method), finding.method, scale)
            _finish(axes[0, column], "sample" if largest is None else f"sample (hidden {largest})", title, scale)
            if rows == 2:
                ax = axes[1, column]
                for number, name in enumerate(names):
                    own = [(f.hidden, getattr(f, what)) for f in self.findings if f.method == name]
                    _draw(ax, own, number, name, scale)
                ax.set_xscale("log", base=2)
                ax.set_xticks(self.sizes, [str(size) for size in self.sizes], minor=False)
                _finish(ax, "hidden", title, scale)
        legend(figure, axes.flat, columns=6)
        models = self.findings[0].models
        over = f" over {models} models" if models > 1 else ""
        kind = "moving" if self.moving else "frozen"
        figure.suptitle(f"Gradients against {self.reference}, {kind} parameters (bars: standard error{over})")
        save(figure, path)


ROUNDING = 1e-10
PANELS = (
    ("variance", "relative variance", "log"),
    ("bias_squared", "relative squared bias", "linear"),
    ("cosine", "cosine to the exact gradient", "linear"),
)


def _draw(ax, points: Sequence[tuple], number: int, name: str, scale: str) -> None:
    """One curve with its errors. On a logarithmic scale, no variance (but rounding) cannot be drawn."""
    from norewind.instruments.figures import MARKERS, look

    kept = [(x, *value) for x, value in points if scale == "linear" or value.value > ROUNDING]
    if kept:
        xs, ys, errors = zip(*kept, strict=True)
        marker = MARKERS[number % len(MARKERS)]
        ax.errorbar(xs, ys, yerr=errors, label=name, marker=marker, markersize=4, capsize=2, **look(number))


def _finish(ax, xlabel: str, title: str, scale: str) -> None:
    ax.set_yscale(scale)
    if scale == "linear":
        ax.axhline(0, color="grey", linewidth=0.8)
    ax.set_xlabel(xlabel)
    ax.set_title(title, fontsize=10)
