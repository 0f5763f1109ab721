"""Backtests: what a model would have forecast at earlier rows, from the rows before them alone."""

import copy
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from norewind.forecasting.frames import build_frame, check_is_frame, forecast_columns, style_of
from norewind.streams import StreamError
from norewind.streams.table.python_rows import iterate_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from norewind.forecasting.models import Forecaster


class Backtest(NamedTuple):
    """The result of a backtest.

    Attributes:
        frame: one row per origin and step: the number of rows known at the `origin`, the `step`, the `row` of the frame
            that was forecast (from 0), the actual value of each target as `... actual`, and the columns of a forecast.
        figure: the forecasts of every origin, with the actual values.
    """

    frame: Any
    figure: "Figure"


def backtest(model: "Forecaster", data: Any, origins: int | Sequence[int], horizon: int | None) -> Backtest:
    """Learn from a frame with a copy of a model, and forecast at some rows along the way.

    Args:
        model: the model; it stays unchanged.
        data: a pandas or Polars frame, in chronological order.
        origins: numbers of rows after which to forecast, or how many of them, evenly spaced over the second half.
        horizon: the number of rows to forecast each time; by default the horizon of the model.

    Raises:
        StreamError: the data is not a frame, or too short for the origins.
    """
    style = check_is_frame(style_of(data, 0), "backtest")
    count = len(data)
    horizon = horizon or model.settings.horizon
    last = count - horizon
    chosen = np.linspace(count // 2, last, origins) if isinstance(origins, int) else origins
    known_rows = sorted({int(origin) for origin in chosen})
    if not known_rows or known_rows[0] < 1 or known_rows[-1] > last:
        raise StreamError(f"backtest: origins must be from 1 to {last}, so that {horizon} of the {count} rows follow.")
    learning, rows, known = copy.deepcopy(model), iterate_rows(data), 0
    learning.style = None
    entries, places = [], []
    for origin in known_rows:
        learning.fit(islice(rows, origin - known))
        known = origin
        entries += learning.entries_ahead(horizon)
        places += [(origin, step) for step in range(1, horizon + 1)]
    columns: dict[str, list[Any]] = {
        "origin": [origin for origin, _ in places],
        "step": [step for _, step in places],
        "row": [origin + step - 1 for origin, step in places],
    }
    found = forecast_columns([{**entry, "time": None} for entry in entries], None)
    targets = list(entries[0]["forecast"])
    actual = {name: np.array(list(data[name]), float) for name in targets}
    columns |= {f"{name} actual": actual[name][columns["row"]].tolist() for name in targets}
    return Backtest(build_frame(style, {**columns, **found}), _figure(columns, found, actual))


def _figure(columns: dict[str, list], forecasts: dict[str, list], actual: dict[str, np.ndarray]) -> "Figure":
    """Draw the actual values, and the forecasts of each origin."""
    from norewind.plotting.figures import COLORS, PANELS, drawable, legend, new_figure

    names = list(actual)[:PANELS]
    figure, axes = new_figure(len(names), 1, panel=(8, 4.2 if len(names) == 1 else 2.6), sharex=True)
    origins, rows = np.array(columns["origin"]), np.array(columns["row"])
    for ax, name in zip(axes[:, 0], names, strict=True):
        first = max(0, int(rows.min()) - len(np.unique(columns["step"])))
        shown = np.arange(first, int(rows.max()) + 1)
        ax.plot(shown, actual[name][shown], color="black", linewidth=1, label="data")
        values = np.array(forecasts[name], float)
        for number, origin in enumerate(np.unique(origins)):
            part, label = origins == origin, "forecasts" if number == 0 else None
            ax.plot(rows[part], values[part], color=COLORS[0], linewidth=1.4, label=label)
        ax.set_ylabel(drawable(name))
    axes[-1, 0].set_xlabel("row")
    axes[0, 0].set_title("Forecasts made at earlier rows")
    legend(figure, axes[:, 0], columns=2)
    return figure
