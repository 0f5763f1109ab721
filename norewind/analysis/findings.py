"""The results of `diagnose`: statistics with their standard errors, as a table, a figure and data."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from norewind.plotting.tables import markdown, markdown_as_html, sparkline
from norewind.sweeps.record import group_by
from norewind.training.registry import Method

# The number of spans that a stream is divided into.
SPANS = 20


class Value(NamedTuple):
    """A number and its standard error."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{_digits(self.value, 3)} ± {_digits(self.error, 2)}" if self.error else _digits(self.value, 3)


def _digits(number: float, digits: int) -> str:
    # Hundreds are easier to read in full than as 1.2e+02.
    return f"{number:.0f}" if 100 <= abs(number) < 1e6 else f"{number:.{digits}g}"


class Moments(NamedTuple):
    """The moments of the errors d_k = g̃_k − g of a method, for each step, key k and leaf of the parameters.

    Attributes:
        squared_error: ‖d_k‖².
        with_sum: d_k·Σ_j d_j.
        with_exact: g̃_k·g.
        squared: ‖g̃_k‖².
        exact: ‖g‖² for each step and leaf.
    """

    squared_error: np.ndarray
    with_sum: np.ndarray
    with_exact: np.ndarray
    squared: np.ndarray
    exact: np.ndarray

    def of_leaf(self, leaf: int) -> "Moments":
        """Return the moments of one leaf alone."""
        return Moments(*(array[..., leaf : leaf + 1] for array in self))

    def between(self, start: int, stop: int) -> "Moments":
        """Return the moments of some of the steps."""
        return Moments(*(array[start:stop] for array in self))

    def bias_squared(self) -> Value:
        """Return ‖E[d]‖², relative: the mean of d_j·d_k over all pairs of different keys."""
        return self._over_keys(lambda squares, product, n: (product - squares) / (n * (n - 1)) if n > 1 else squares)

    def variance(self) -> Value:
        """Return E‖d − E[d]‖², relative."""
        return self._over_keys(lambda squares, product, n: (squares - product / n) / (n - 1) if n > 1 else 0 * squares)

    def statistics(self) -> tuple[Value, Value, Value]:
        return self.bias_squared(), self.variance(), mean_value(self._cosine().mean(axis=0))

    def _cosine(self) -> np.ndarray:
        """The cosine between g̃_k and g, for each step and key; 0 where one of them is zero."""
        product, squared = self.with_exact.sum(axis=-1), self.squared.sum(axis=-1)
        norms = np.sqrt(squared * self.exact.sum(axis=-1)[:, None])
        return product / np.maximum(norms, np.finfo(np.float32).tiny)

    def _over_keys(self, statistic: Callable) -> Value:
        """A statistic of (Σ‖d_k‖², ‖Σ d_k‖², keys), with its jackknife error over keys."""
        squares, with_sum = (array.sum(axis=(0, 2)) for array in (self.squared_error, self.with_sum))
        total, product = squares.sum(), with_sum.sum()
        keys = len(squares)
        scale = self.exact.sum()
        value = float(statistic(total, product, keys) / scale)
        if keys < 3:
            return Value(value, 0.0)
        without = statistic(total - squares, product - 2 * with_sum + squares, keys - 1) / scale
        return Value(value, float(np.sqrt((keys - 1) / keys * np.sum((without - without.mean()) ** 2))))


def mean_value(numbers: Sequence[float] | np.ndarray) -> Value:
    numbers = np.asarray(numbers)
    error = numbers.std(ddof=1) / np.sqrt(len(numbers)) if len(numbers) > 1 else 0.0
    return Value(float(numbers.mean()), float(error))


class Span(NamedTuple):
    """The statistics of one span of time, up to and including step `end`."""

    end: int
    bias_squared: Value
    variance: Value
    cosine: Value


class Part(NamedTuple):
    """The statistics of one leaf of the parameters, relative to the exact gradient of that leaf.

    Attributes:
        share: the leaf's share of the squared norm of the exact gradient.
    """

    share: float
    bias_squared: Value
    variance: Value
    cosine: Value


@dataclass(frozen=True)
class Finding:
    """The statistics of one method on one model, or their means over several models of one size.

    Attributes:
        method: the name of the method.
        hidden: the size of the model; None if it has no size.
        steps: the number of samples.
        keys: the number of seeds of the noise.
        bias_squared: the relative squared bias over the whole stream.
        variance: the relative variance over the whole stream.
        cosine: the mean cosine over the whole stream.
        over_time: the same statistics span by span.
        by_leaf: the same statistics for each leaf of the parameters that is compared.
        reported: the means of the numbers that the method reports about itself (`Estimator.report`).
        models: the number of models.
        rate: the learning rate of the parameters; None if they do not learn, or at a rate of their own optimizer.
    """

    method: str
    hidden: int | None
    steps: int
    keys: int
    bias_squared: Value
    variance: Value
    cosine: Value
    over_time: list[Span]
    by_leaf: dict[str, Part] = field(default_factory=dict)
    reported: dict[str, Value] = field(default_factory=dict)
    models: int = 1
    rate: float | None = None

    @property
    def label(self) -> str:
        return self.method if self.rate is None else f"{self.method}, rate {self.rate:g}"

    @property
    def name(self) -> str:
        return self.label if self.hidden is None else f"{self.label}, hidden {self.hidden}"

    @staticmethod
    def of(
        method: Method, hidden: int | None, moments: Moments, leaves: Sequence[str], reported: dict[str, np.ndarray]
    ) -> "Finding":
        """Summarize the moments of every window. A span in which the exact gradient is zero is left out.

        Args:
            method: the method.
            hidden: the size of the model; None if it has no size.
            moments: the moments of the method's errors.
            leaves: the names of the leaves of the parameters.
            reported: the numbers that the method reports, for each step and key.
        """
        (windows, keys, _), window = moments.squared_error.shape, method.window
        edges = np.unique(np.linspace(0, windows, min(SPANS, windows) + 1).astype(int))
        parts = {stop: moments.between(start, stop) for start, stop in pairwise(edges)}
        spans = [Span(int(stop * window), *part.statistics()) for stop, part in parts.items() if part.exact.sum() > 0]
        whole, by_leaf = moments.exact.sum(), {}
        for number, name in enumerate(leaves):
            alone = moments.of_leaf(number)
            if (size := alone.exact.sum()) > 0:
                by_leaf[name] = Part(float(size / whole), *alone.statistics())
        numbers = {name: mean_value(values.mean(axis=0)) for name, values in reported.items()}
        return Finding(method.name, hidden, windows * window, keys, *moments.statistics(), spans, by_leaf, numbers)


STATISTICS = ("bias_squared", "variance", "cosine")
# The panels of the figure: a statistic, its title and its scale.
PANELS = (
    ("variance", "relative variance", "log"),
    ("bias_squared", "relative squared bias", "linear"),
    ("cosine", "cosine to the exact gradient", "linear"),
)
# A variance up to this is the rounding of a method without noise.
ROUNDING_VARIANCE = 1e-10


def mean_finding(findings: Sequence[Finding]) -> Finding:
    """Return the mean of findings over several models of one size, with standard errors over the models."""
    if len(findings) == 1:
        return findings[0]

    def each(items, name: str) -> Value:
        return mean_value([getattr(item, name).value for item in items])

    by_end = group_by(lambda span: span.end, (span for finding in findings for span in finding.over_time))
    spans = [Span(end, *(each(by_end[end], name) for name in STATISTICS)) for end in sorted(by_end)]
    whole = {name: each(findings, name) for name in STATISTICS}
    parts = {
        name: [finding.by_leaf[name] for finding in findings if name in finding.by_leaf] for name in findings[0].by_leaf
    }
    by_leaf = {
        leaf: Part(float(np.mean([part.share for part in group])), *(each(group, name) for name in STATISTICS))
        for leaf, group in parts.items()
    }
    reported = {name: mean_value([f.reported[name].value for f in findings]) for name in findings[0].reported}
    return replace(findings[0], models=len(findings), over_time=spans, by_leaf=by_leaf, reported=reported, **whole)


@dataclass(frozen=True)
class Diagnosis:
    """The result of `diagnose`. It prints as a Markdown table.

    Attributes:
        findings: one finding per method and size.
        reference: the method that computed the exact gradients.
        moving: whether the parameters were updated along the way.
        rejected: the methods that do not support the model, with the reason.
    """

    findings: list[Finding]
    reference: str
    moving: bool
    rejected: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        curves = [[f.name, sparkline((span.cosine.value for span in f.over_time), span=(0, 1))] for f in self.findings]
        return markdown_as_html(f"{self.table()}\n\n{markdown(['method', 'cosine from 0 to 1'], curves)}")

    @property
    def kind(self) -> str:
        return "moving" if self.moving else "frozen"

    @property
    def sizes(self) -> list[int]:
        return sorted({finding.hidden for finding in self.findings if finding.hidden is not None})

    def table(self) -> str:
        """Return a Markdown table, one line per method and size. All numbers are relative to the exact gradient."""
        hidden = [*(["rate"] if self.findings[0].rate is not None else []), *(["hidden"] if self.sizes else [])]
        columns = ["method", *hidden, "bias_squared", "variance", "cosine", "keys"]
        reported = list(dict.fromkeys(name for finding in self.findings for name in finding.reported))
        rows = [
            [*(getattr(finding, column) for column in columns), *(finding.reported.get(name, "") for name in reported)]
            for finding in self.findings
        ]
        first = self.findings[0]
        over = f"{first.models} models" if first.models > 1 else "keys"
        against = f"Against {self.reference} over {first.steps} samples, {self.kind} parameters"
        table = markdown(["method", *hidden, "bias²", "variance", "cosine", "keys", *reported], rows)
        rejected = "".join(f"\n\n{name} rejected: {reason}" for name, reason in self.rejected.items())
        return f"{table}\n{against}; ± standard error over {over}.{rejected}"

    def leaf_table(self) -> str:
        """Return a Markdown table with one line per method, size and leaf of the parameters.

        All numbers but the share are relative to the exact gradient of the leaf.
        """
        rows = [
            [finding.name, leaf, f"{part.share:.3g}", part.bias_squared, part.variance, part.cosine]
            for finding in self.findings
            for leaf, part in finding.by_leaf.items()
        ]
        return markdown(["method", "leaf", "share of ‖g‖²", "bias²", "variance", "cosine"], rows)

    def save(self, folder: Path | str) -> None:
        """Write table.md, diagnosis.json and diagnosis.png to a folder.

        Args:
            folder: the folder, which is created if needed.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "table.md").write_text(self.table() + "\n")
        (folder / "diagnosis.json").write_text(json.dumps(asdict(self), indent=1) + "\n")
        self.figure(folder / "diagnosis.png")

    def figure(self, path: Path | str) -> None:
        """Draw a row of panels against time (for the largest size), and one against size if there are several.

        Args:
            path: the figure; .png, .pdf or .svg.
        """
        from norewind.plotting import figures

        largest = self.sizes[-1] if self.sizes else None
        label = "sample" if largest is None else f"sample (hidden {largest})"
        along = [(f.label, span.end, span) for f in self.findings if f.hidden == largest for span in f.over_time]
        rows: list[tuple[str, list[Any]]] = [(label, along)]
        if len(self.sizes) > 1:
            rows.append(("hidden", [(f.label, f.hidden, f) for f in self.findings]))
        figure, axes = figures.new_figure(len(rows), 3, panel=(4.4, 3.6))
        for (xlabel, points), panels in zip(rows, axes, strict=True):
            for ax, (statistic, title, scale) in zip(panels, PANELS, strict=True):
                for number, (name, curve) in enumerate(group_by(itemgetter(0), points).items()):
                    values = np.array([(x, *getattr(item, statistic)) for _, x, item in curve], float)
                    # The variance of a method without noise is only rounding, and would distort a logarithmic axis.
                    xs, ys, errors = values[(values[:, 1] > ROUNDING_VARIANCE) | (scale == "linear")].T
                    if len(xs):
                        style = figures.curve_style(number, markers=True)
                        ax.errorbar(xs, ys, yerr=errors, label=name, markersize=4, capsize=2, **style)
                if scale == "linear":
                    ax.axhline(0, color="grey", linewidth=0.8)
                ax.set(yscale=scale, xlabel=xlabel)
                ax.set_title(title, fontsize=10)
                if xlabel == "hidden":
                    ax.set_xscale("log", base=2)
                    ax.set_xticks(self.sizes, [str(size) for size in self.sizes], minor=False)
        figures.legend(figure, axes.flat, columns=6)
        models = self.findings[0].models
        over = f" over {models} models" if models > 1 else ""
        figure.suptitle(f"Gradients against {self.reference}, {self.kind} parameters (bars: standard error{over})")
        figures.save(figure, path)
