"""Figures in one common style. Curves also differ in line style and marker, not only in colour."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from norewind.scoring.metrics import ANY_FORECASTS, METRICS_ENTRIES
from norewind.storage.files import write_atomically
from norewind.streams.table.columns import can_read, time_of
from norewind.streams.table.scaling import MIN_VALUES

COLORS = ("#08519c", "#d94801", "#238b45", "#6a51a3", "#b8860b", "#cb181d", "#41b6c4", "#525252", "#dd3497", "#7a5230")
LINES = ("-", (0, (4, 1.6)), (0, (7, 1.5, 1.5, 1.5)), (0, (1, 1)), (0, (9, 2)))
MARKERS = "osD^vP*X<>"
GRAY, DRIFT = "0.5", "#cb181d"
# The maximum number of targets that have a panel each, and of characters of a class name.
PANELS, LONGEST_NAME = 4, 20

# Without dates and versions, the same numbers produce the same file.
METADATA = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


def new_figure(rows: int = 1, columns: int = 1, *, panel: tuple[float, float] = (4.5, 3.3), **subplots: Any):
    """Create a figure and its axes.

    Args:
        rows: the number of rows of panels.
        columns: the number of columns of panels.
        panel: width and height of a panel, in inches.
        subplots: further arguments of Matplotlib's `Figure.subplots`.

    Returns:
        The figure, and its axes as a 2-D array.

    >>> figure, axes = new_figure(1, 2)
    >>> axes.shape
    (1, 2)
    """
    figure = Figure(figsize=(panel[0] * columns, panel[1] * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **subplots)
    for ax in axes.flat:
        ax.grid(alpha=0.25)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def drawable(name: Any) -> str:
    r"""Return the name of a column, class or run as text that Matplotlib can draw: UTF-8, and not a formula.

    Args:
        name: the name.

    >>> print(drawable("cost ($)"), drawable("\ud800"))
    cost (\$) ?
    """
    return str(name).encode("utf-8", "replace").decode().replace("$", r"\$")


def save(figure: Figure, path: Path | str) -> Path:
    """Write a figure to a file.

    Args:
        figure: a Matplotlib figure.
        path: the file; .png, .pdf or .svg. Without a suffix, it is .png.

    Returns:
        The path with its suffix.
    """
    path = Path(path)
    path = path if path.suffix else path.with_suffix(".png")
    write_atomically(path, rendered(figure, path.suffix))
    return path


def rendered(figure: Figure, suffix: str = ".png") -> bytes:
    """Return the content of an image file.

    Args:
        figure: a Matplotlib figure.
        suffix: the format; .png, .pdf or .svg.
    """
    content = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "norewind"}):
        figure.savefig(content, format=suffix[1:], dpi=120, bbox_inches="tight", metadata=METADATA.get(suffix))
    return content.getvalue()


def curve_style(number: int, *, markers: bool = False) -> dict[str, Any]:
    """Return the style of one of several curves, as arguments of Matplotlib's `plot`.

    Args:
        number: the number of the curve.
        markers: whether to mark its points.
    """
    style = {"color": COLORS[number % len(COLORS)], "linestyle": LINES[number % len(LINES)], "linewidth": 1.6}
    return {**style, "marker": MARKERS[number % len(MARKERS)]} if markers else style


def legend(figure: Figure, axes: Iterable[Axes], columns: int = 3) -> None:
    """Add one legend for all axes below them, with each label once.

    Args:
        figure: the figure that gets the legend.
        axes: the axes whose curves it names.
        columns: the largest number of columns of the legend.
    """
    entries: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    columns = max(1, min(columns, len(entries)))
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns, frameon=False)


def count_axis(ax: Axes) -> None:
    """Abbreviate large numbers on the horizontal axis: 50k, 2M."""
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def log_axis(ax: Axes) -> None:
    """Make the vertical axis logarithmic, labelled with plain numbers."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5) if high < 300 * low else (1,)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())


def as_dates(times: Sequence[Any]) -> np.ndarray | None:
    """Return times as dates to draw; None if one of them is missing or not a time, or they go back.

    Args:
        times: times as they were sent.

    >>> print(as_dates(["2024-05-01", "2024-05-02"]), as_dates(["2024-05-01", None]))
    ['2024-05-01T00:00:00.000' '2024-05-02T00:00:00.000'] None
    """
    if not len(times) or not all(time and can_read(time_of, time) for time in times):
        return None
    dates = np.array([1000 * time_of(time) for time in times]).round().astype("datetime64[ms]")
    return None if (np.diff(dates) < np.timedelta64(0)).any() else dates


def date_axis(ax: Axes) -> None:
    """Label the horizontal axis with dates."""
    locator = AutoDateLocator()
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def mark_drift(ax: Axes, lines: Sequence[dict[str, Any]], dates: bool = False) -> None:
    """Draw a vertical line at every alarm of drift.

    Args:
        ax: the axes; their limits stay as they are.
        lines: lines of metrics.
        dates: whether the horizontal axis has dates, not numbers of rows.
    """
    for alarm in (alarm for line in lines for alarm in line.get("drift", [])):
        place = as_dates([alarm.get("time")]) if dates else [alarm["sample"]]
        if place is not None:
            ax.axvline(place[0], color=DRIFT, linewidth=1.2, linestyle=(0, (2, 2)), label="drift")


# A point of a learning curve is the mean of at least this many samples: a single error is too noisy.
MIN_SAMPLES = 20


def curves_figure(
    runs: Sequence[tuple[str, Sequence[dict[str, Any]]]], unit: str, simple: dict[str, str] = ANY_FORECASTS
) -> Figure:
    """Draw the learning curves of runs: the loss in every line of metrics against samples.

    For a single run, the losses of simple forecasts are drawn as well.

    Args:
        runs: names and lines of metrics.
        unit: the unit of the loss.
        simple: descriptions of the simple forecasts, by their entries in a line of metrics.
    """
    figure, axes = new_figure(panel=(8, 4.5))
    ax, drawn = axes[0, 0], 0
    for number, (name, lines) in enumerate(runs):
        points = _points(lines, "loss")
        drawn += points.shape[1]
        ax.plot(*points, label=drawable(name), marker="o", markersize=2.5, **curve_style(number))
    if len(runs) == 1:
        for entry, label in simple.items():
            samples, values = _points(runs[0][1], entry)
            if len(values):
                marker, style = "s" if len(values) < 5 else "", METRICS_ENTRIES[entry].line_style
                ax.plot(samples, values, style, color=GRAY, linewidth=1, label=label, marker=marker, markersize=2)
        mark_drift(ax, runs[0][1])
        _add_times(ax, runs[0][1])
    if not drawn:
        message = "Nothing to draw yet: no sample with a known target has been predicted."
        ax.annotate(message, (0.5, 0.5), xycoords="axes fraction", ha="center", va="center")
    curves = [line.get_ydata() for line in ax.get_lines() if line.get_label() != "drift"]
    heights = np.concatenate(curves) if drawn else np.ones(1)
    if heights.min() > 0 and heights.max() > 20 * heights.min():
        log_axis(ax)  # on a linear axis, the first rows would flatten the rest
    ax.set(xlabel="samples learned from", ylabel=f"mean {unit} of {MIN_SAMPLES} samples or more")
    ax.set_title("Learning curve")
    count_axis(ax)
    legend(figure, [ax], columns=1 if len(runs) > 1 else 4)
    return figure


def _add_times(ax: Axes, lines: Sequence[dict[str, Any]]) -> None:
    """Write the times of some lines of metrics above a learning curve, if all of them have times."""
    if (dates := as_dates([line.get("time") for line in lines])) is None:
        return
    samples = np.array([line["samples"] for line in lines])
    places = np.unique(np.searchsorted(samples, np.linspace(0.1, 1, 5) * samples[-1]))
    whole = (dates == dates.astype("datetime64[D]")).all()
    labels = [
        str(date.astype("datetime64[D]" if whole else "datetime64[m]")).replace("T", " ") for date in dates[places]
    ]
    ax.secondary_xaxis("top").set_xticks(samples[places], labels, fontsize=7)


def _points(lines: Sequence[dict[str, Any]], entry: str) -> np.ndarray:
    """Return samples and values: means over at least `MIN_SAMPLES` samples, of one line or, early on, of several."""
    known = [(line["samples"], line[entry]) for line in lines if line.get(entry) is not None]
    samples, values = np.array(known).reshape(-1, 2).T
    if not len(samples):
        return np.zeros((2, 0))
    # Sums of the losses up to each line, from the first line with a known value on.
    first = next((line["samples"] for line in reversed(lines) if line["samples"] < samples[0]), 0)
    edges = np.concatenate([[first], samples])
    sums = np.concatenate([[0], np.cumsum(np.diff(edges) * values)])
    numbers = np.arange(len(samples))
    starts = np.clip(np.searchsorted(edges, samples - MIN_SAMPLES, side="right") - 1, 0, numbers)
    means = (sums[1:] - sums[starts]) / (samples - edges[starts])
    return np.stack([samples, np.where(numbers > starts, means, values)])


def unscored(values: np.ndarray) -> str:
    """Return the reason why no forecast of these latest values was scored."""
    known = values[~np.isnan(values)]
    constant = len(known) > MIN_VALUES and np.ptp(known) == 0
    return "not scored: all values are the same" if constant else "no forecasts yet: there were too few values"


def classes_figure(recent: np.ndarray, name: Callable[[int], str], last: int) -> Figure:
    """Draw the classes of the latest rows, the wrong forecasts, and the forecast probability of each class.

    Args:
        recent: the class of each row, the forecast class, and the forecast probability of the former, of shape
            (rows, 3), oldest first; NaN where no class is known.
        name: returns the name of a class by its number.
        last: the number of the latest row.
    """
    figure, axes = new_figure(2, 1, panel=(8, 2.6), sharex=True)
    above, below = axes[:, 0]
    known = np.isfinite(recent).all(axis=1)
    rows = np.arange(last - len(recent) + 1, last + 1)[known]
    classes, places = np.unique(recent[known, :2].astype(int), return_inverse=True)
    actual, forecast = places.reshape(-1, 2).T
    wrong = actual != forecast
    above.plot(rows, actual, ".", color="black", markersize=4, label="class")
    above.plot(rows[wrong], forecast[wrong], "x", color=COLORS[1], markersize=5, label="wrong forecast")
    above.set_yticks(range(len(classes)), [drawable(str(name(number))[:LONGEST_NAME]) for number in classes.tolist()])
    above.set_ylim(-0.5, max(1, len(classes)) - 0.5)
    right = f"{int((~wrong).sum()):,} of {len(wrong):,} right"
    above.set_title(f"Latest rows and forecast classes: {right}")
    label = "forecast probability of the class"
    below.plot(rows, recent[known, 2], ".-", color=COLORS[0], linewidth=1, markersize=3, label=label)
    below.set(xlabel="row", ylabel="probability", ylim=(-0.02, 1.02))
    legend(figure, [above, below], columns=3)
    return figure


def rows_figure(
    recent: np.ndarray,
    columns: Sequence[str],
    last: int,
    ahead: np.ndarray | None = None,
    times: Sequence[Any] = (),
    bands: Mapping[float, np.ndarray] = MappingProxyType({}),
    *,
    recent_times: Sequence[Any] = (),
    lines: Sequence[dict[str, Any]] = (),
) -> Figure:
    """Draw the latest values of each target with earlier forecasts of them, and optionally forecasts of the next rows.

    Args:
        recent: values, forecasts and their standard deviations, of shape (rows, targets, 3), oldest first.
        columns: the names of the targets.
        last: the number of the latest row.
        ahead: forecasts of the next rows and their standard deviations (NaN if unknown), of shape (steps, targets, 2).
        times: when the next rows are due, if known.
        bands: intervals of the forecasts by level (steps, 2, targets); by default those of Gaussian errors.
        recent_times: the times of the latest rows, if known. With them, the horizontal axis has dates.
        lines: lines of metrics, whose alarms of drift are marked.
    """
    count = min(PANELS, len(columns), recent.shape[1])
    figure, axes = new_figure(count, 1, panel=(8, 4.2 if count == 1 else 2.6), sharex=True)
    rows, steps = np.arange(last - len(recent) + 1, last + 1), np.arange(last + 1, last + 1 + len(times))
    if ahead is not None:
        steps = np.arange(last + 1, last + 1 + len(ahead))
    dates = as_dates([*recent_times, *times]) if len(recent_times) == len(rows) and len(times) == len(steps) else None
    rows, steps, drawn = (rows, steps, False) if dates is None else (dates[: len(rows)], dates[len(rows) :], True)
    for place, ax in enumerate(axes[:, 0]):
        values, forecasts, _ = np.moveaxis(recent[:, place], -1, 0)
        ax.plot(rows, values, ".-", color="black", linewidth=1, markersize=3, label="data")
        known = ~np.isnan(forecasts)
        ax.plot(rows[known], forecasts[known], "--", color=COLORS[1], linewidth=1.4, label="earlier forecast")
        if ahead is not None:
            means, spreads = np.moveaxis(ahead[:, place], -1, 0)
            ax.axvline(rows[-1] if drawn else last + 0.5, color=GRAY, linewidth=0.8)
            ax.plot(steps, means, "o-", color=COLORS[0], linewidth=1.4, markersize=3, label="forecast of the next rows")
            for order, (level, bounds) in enumerate(sorted(bands.items(), reverse=True)):
                low, high = (np.where(np.isfinite(bound), bound, np.nan) for bound in bounds[..., place].T)
                label = f"{100 * level:g} % interval"
                # Narrower intervals are drawn over wider ones, in a darker shade.
                shade = 0.15 + 0.35 * order / len(bands)
                ax.fill_between(steps, low, high, color=COLORS[0], alpha=shade, linewidth=0, label=label)
            if not bands:
                band = 1.96 * np.where(np.isnan(spreads), 0, spreads)
                low, high, label = means - band, means + band, "95 % interval (Gaussian errors)"
                ax.fill_between(steps, low, high, color=COLORS[0], alpha=0.15, linewidth=0, label=label)
        elif not known.any():
            ax.annotate(unscored(values), (0.5, 0.9), xycoords="axes fraction", ha="center")
        mark_drift(ax, [{"drift": _recent_alarms(lines, last - len(recent))}], drawn)
        ax.set_ylabel(drawable(columns[place]))
    if drawn:
        date_axis(axes[-1, 0])
    else:
        axes[-1, 0].set_xlabel("row" if not times else f"row (forecast: from {times[0]} to {times[-1]})")
    title = "Latest rows and " + ("forecasts of the next ones" if ahead is not None else "their forecasts")
    axes[0, 0].set_title(title + (f" ({count} of {len(columns)} targets)" if count < len(columns) else ""))
    legend(figure, axes[:, 0], columns=4)
    return figure


def _recent_alarms(lines: Sequence[dict[str, Any]], first: int) -> list[dict[str, Any]]:
    """Return the alarms of drift after a row."""
    return [alarm for line in lines for alarm in line.get("drift", []) if alarm["sample"] > first]


def by_step_figure(errors: dict[str, list[float]], steps: Sequence[int]) -> Figure:
    """Draw how errors grow with the number of rows ahead, for the model and simple forecasts.

    Args:
        errors: root mean squared errors in standard deviations, by forecast and step; the model first.
        steps: the numbers of rows ahead.
    """
    figure, axes = new_figure(1, 1, panel=(8, 4.2))
    ax = axes[0, 0]
    for number, (name, values) in enumerate(errors.items()):
        width = 2.2 if number == 0 else 1.2
        ax.plot(steps, values, ".-", color=COLORS[number % len(COLORS)], linewidth=width, markersize=4, label=name)
    ax.set(xlabel="rows ahead", ylabel="RMSE (standard deviations)", ylim=(0, None))
    ax.set_title("Error by number of rows ahead, over the last half of the run")
    legend(figure, [ax], columns=4)
    return figure
