"""Figures of tables: the newest rows with their forecasts, the forecasts of the next rows, and errors by step."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from norewind.plotting.figures import COLOURS, GREY, legend, new_figure, save
from norewind.scoring.metrics import counted
from norewind.streams.table.scaling import ENOUGH

PANELS = 4
LONGEST_NAME = 20


def unscored(values: np.ndarray) -> str:
    """The reason why no forecast of these newest values was scored."""
    known = values[~np.isnan(values)]
    constant = len(known) > ENOUGH and np.ptp(known) == 0
    return "not scored: all values are the same" if constant else "no forecasts yet: there were too few values"


def draw_classes(stretch: np.ndarray, name: Callable[[int], str], last: int, path: Path | str) -> Path:
    """Draw the classes of the newest rows, the wrong forecasts, and the forecast probability of each class.

    Args:
        stretch: the class of each row, the forecast class, and the forecast probability of the former, of shape
            (rows, 3), oldest first; NaN where no class is known.
        name: returns the name of a class by its number.
        last: the number of the newest row.
        path: the figure; .png, .pdf or .svg.

    Returns:
        The path of the figure.
    """
    figure, axes = new_figure(2, 1, panel=(8, 2.6), sharex=True)
    above, below = axes[:, 0]
    rows = np.arange(last - len(stretch) + 1, last + 1)
    known = np.isfinite(stretch).all(axis=1)
    pairs = [(int(came), int(made)) for came, made, _ in stretch[known].tolist()]
    shown = sorted({number for pair in pairs for number in pair})
    came, made = np.array([[shown.index(number) for number in pair] for pair in pairs], int).reshape(-1, 2).T
    wrong = came != made
    above.plot(rows[known], came, ".", color="black", markersize=4, label="class")
    above.plot(rows[known][wrong], made[wrong], "x", color=COLOURS[1], markersize=5, label="wrong forecast")
    above.set_yticks(range(len(shown)), [str(name(number))[:LONGEST_NAME] for number in shown])
    above.set_ylim(-0.5, max(1, len(shown)) - 0.5)
    right = f"right {counted(int((~wrong).sum()), 'time')} of {len(wrong):,}"
    above.set_title(f"the newest rows, and the classes that were forecast: {right}")
    words = "probability of the class, as forecast"
    below.plot(rows[known], stretch[known, 2], ".-", color=COLOURS[0], linewidth=1, markersize=3, label=words)
    below.set(xlabel="row", ylabel="probability", ylim=(-0.02, 1.02))
    legend(figure, [above, below], columns=3)
    return save(figure, path)


def draw_stretch(
    recent: np.ndarray,
    columns: Sequence[str],
    last: int,
    path: Path | str,
    ahead: np.ndarray | None = None,
    times: Sequence[Any] | None = None,
) -> Path:
    """Draw the newest values of each target with earlier forecasts of them, and optionally forecasts of the next rows.

    Args:
        recent: values, forecasts and their standard deviations, of shape (rows, targets, 3), oldest first.
        columns: the names of the targets.
        last: the number of the newest row.
        path: the figure; .png, .pdf or .svg.
        ahead: forecasts of the next rows and their standard deviations (NaN if unknown), of shape (steps, targets, 2).
        times: when the next rows are due, if known.

    Returns:
        The path of the figure.
    """
    count = min(PANELS, len(columns), recent.shape[1])
    figure, axes = new_figure(count, 1, panel=(8, 4.2 if count == 1 else 2.6), sharex=True)
    rows = np.arange(last - len(recent) + 1, last + 1)
    for place, ax in enumerate(axes[:, 0]):
        values, forecasts, _ = np.moveaxis(recent[:, place], -1, 0)
        ax.plot(rows, values, ".-", color="black", linewidth=1, markersize=3, label="data")
        known = ~np.isnan(forecasts)
        ax.plot(rows[known], forecasts[known], "--", color=COLOURS[1], linewidth=1.4, label="earlier forecast")
        if ahead is not None:
            steps = np.arange(last + 1, last + 1 + len(ahead))
            means, spreads = np.moveaxis(ahead[:, place], -1, 0)
            ax.axvline(last + 0.5, color=GREY, linewidth=0.8)
            ax.plot(steps, means, "o-", color=COLOURS[0], linewidth=1.4, markersize=3, label="forecast of next rows")
            band = 1.96 * np.where(np.isnan(spreads), 0, spreads)
            words = "95 % if errors are Gaussian"
            ax.fill_between(steps, means - band, means + band, color=COLOURS[0], alpha=0.15, linewidth=0, label=words)
        elif not known.any():
            ax.annotate(unscored(values), (0.5, 0.9), xycoords="axes fraction", ha="center")
        ax.set_ylabel(columns[place])
    axes[-1, 0].set_xlabel("row" if not times else f"row (forecast: from {times[0]} to {times[-1]})")
    title = "the newest rows" + (" and the next ones" if ahead is not None else ", and their forecasts")
    axes[0, 0].set_title(title + (f" ({count} of {len(columns)} targets)" if count < len(columns) else ""))
    legend(figure, axes[:, 0], columns=4)
    return save(figure, path)


def draw_by_step(errors: dict[str, list[float]], steps: Sequence[int], path: Path | str) -> Path:
    """Draw how errors grow with the number of rows ahead, for the model and simple forecasts.

    Args:
        errors: root mean squared errors in standard deviations, by forecast and step; the model first.
        steps: the numbers of rows ahead.
        path: the figure; .png, .pdf or .svg.

    Returns:
        The path of the figure.
    """
    figure, axes = new_figure(1, 1, panel=(8, 4.2))
    ax = axes[0, 0]
    for number, (name, values) in enumerate(errors.items()):
        width = 2.2 if number == 0 else 1.2
        ax.plot(steps, values, ".-", color=COLOURS[number % len(COLOURS)], linewidth=width, markersize=4, label=name)
    ax.set(xlabel="rows ahead", ylabel="RMSE (standard deviations)", ylim=(0, None))
    ax.set_title("error by the number of rows ahead, over the last half of the run")
    legend(figure, [ax], columns=4)
    return save(figure, path)
