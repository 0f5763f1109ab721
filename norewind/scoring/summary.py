"""The summary of a run on rows: its errors, compared with those of simple forecasts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from norewind.scoring.metrics import counted, last_half

# The largest number of steps whose errors are written with every line of metrics.
STEPS_SHOWN = 200
# The number of steps in the table; the others are in the figure.
STEPS = 8
# The number of targets in the table; the others are in metrics.jsonl.
TARGETS = 3
# The fraction of the model's squared error below which a simple forecast is clearly better.
CLEARLY = 0.98
MODEL = "this model"
# The titles of forecasts, with the names of their errors and of their losses in a line of metrics.
FORECASTS = {
    MODEL: ("model", "loss"),
    "the last value": ("persistence", "persistence"),
    "the mean so far": ("mean", "baseline"),
    "": ("seasonal", "seasonal"),
}


class Summary(NamedTuple):
    """The errors of forecasts, by name, over the last half of a run.

    Attributes:
        rows: the number of forecasts that were scored.
        losses: squared errors in variances.
        errors: by forecast and column, the mean absolute and the root mean squared error in the table's units, over
            all steps.
        steps: the steps that are shown.
        by_step: root mean squared errors in standard deviations, by forecast and step; empty if there is only one.
    """

    rows: int
    losses: dict[str, float]
    errors: dict[str, dict[str, tuple[float, float]]]
    steps: list[int]
    by_step: dict[str, list[float]]

    def best_simple(self) -> tuple[str, float]:
        """Return the best simple forecast, and its squared error as a fraction of the model's."""
        # The squared errors of all columns, each as a fraction of that of the mean.
        mean = self.errors["the mean so far"].items()
        fractions = {
            name: float(np.mean([(errors[column][1] / rmse) ** 2 if rmse else 1.0 for column, (_, rmse) in mean]))
            for name, errors in self.errors.items()
        }
        best = min((name for name in fractions if name != MODEL), key=fractions.__getitem__)
        return best, fractions[best] / fractions[MODEL] if fractions[MODEL] else 1.0


def summary(lines: Sequence[dict[str, Any]], steps: Sequence[int] = (1,), *, squared: bool = True) -> Summary | None:
    """Compare a model with simple forecasts, over the last half of a run.

    Args:
        lines: lines of metrics of a run on rows.
        steps: the steps that it forecasts.
        squared: whether its losses are squared errors.

    Returns:
        The summary; None if nothing was scored.
    """
    last = last_half([line for line in lines if line.get("errors")])
    if not last:
        return None

    def rows(name: str) -> np.ndarray:
        found = [line["errors"].get(name, {"": {"rows": 0}}).values() for line in last]
        return np.array([max(column["rows"] for column in columns) for columns in found])

    # The best period may change during a run. Each line is compared with the best one at that time.
    periods = dict.fromkeys(line["period"] for line in last if "period" in line)
    losses, errors, by_step, weights = {}, {}, {}, rows("model")
    for title, (name, entry) in FORECASTS.items():
        shown = title or f"{' or '.join(map(str, periods))} rows ago"
        # A simple forecast that is missing for some of the rows is left out.
        if (rows(name) < weights).any():
            continue
        errors[shown] = {}
        for column in last[-1]["errors"][name]:
            parts = [line["errors"][name][column] for line in last]
            mae, rmse, counts = ([part[kind] for part in parts] for kind in ("mae", "rmse", "rows"))
            if any(counts):
                errors[shown][column] = float(_mean(mae, counts)), float(_mean(rmse, counts, power=2))
        if "by_step" in last[-1]:
            by_step[shown] = _mean([line["by_step"][name] for line in last], weights, power=2).tolist()
        loss = float(_mean([line.get(entry) for line in last], weights))
        if squared and not np.isnan(loss):
            losses[shown] = loss
    return Summary(int(weights.sum()), losses, errors, steps_shown(steps), by_step)


def steps_shown(steps: Sequence[int]) -> list[int]:
    """Select the steps whose errors a line of metrics has under `by_step`: all, or an evenly spaced selection."""
    return [steps[place] for place in np.unique(np.linspace(0, len(steps) - 1, STEPS_SHOWN).round().astype(int))]


def _mean(values: list[Any], weights: Any, power: int = 1) -> np.ndarray:
    """The weighted power mean over lines, ignoring unknown values; NaN where all are unknown."""
    powers = np.array(values, float) ** power
    known = np.where(np.isnan(powers), 0, np.reshape(weights, (-1, *[1] * (powers.ndim - 1))))
    total, count = (known * np.nan_to_num(powers)).sum(axis=0), known.sum(axis=0)
    return np.where(count > 0, total / np.where(count > 0, count, 1), np.nan) ** (1 / power)


def table(result: Summary) -> str:
    """Format a summary as text, with a warning if a simple forecast was better."""
    columns = list(result.errors[MODEL])[:TARGETS]
    head = [f"last {counted(result.rows, 'forecast' if result.by_step else 'row')}"]
    head += ["squared error"] if result.losses else []
    rows = [[*head, *(f"{column[:20]}: {kind}" for column in columns for kind in ("MAE", "RMSE"))]]
    for name, errors in result.errors.items():
        cells = [f"{result.losses[name]:.4f}"] if name in result.losses else [""] if result.losses else []
        rows.append([name, *cells, *(f"{value:.4g}" for column in columns for value in errors[column])])
    lines = _aligned(rows)
    if result.by_step:
        chosen = sorted({round(place) for place in np.geomspace(1, len(result.steps), STEPS)})
        rows = [["RMSE in σ, rows ahead", *(str(result.steps[place - 1]) for place in chosen)]]
        rows += [[name, *(f"{errors[place - 1]:.4f}" for place in chosen)] for name, errors in result.by_step.items()]
        lines += _aligned(rows)
    if (more := len(result.errors[MODEL]) - len(columns)) > 0:
        lines.append(f"The errors of {more} other targets are in metrics.jsonl.")
    best, fraction = result.best_simple()
    if fraction < CLEARLY:
        lines.append(f"Warning: {best} was a better forecast than this model. Use that instead, or train longer.")
    elif fraction < 1:
        lines.append(f"Warning: {best} was as good a forecast as this model, and is simpler.")
    return "\n".join(lines)


def _aligned(rows: list[list[str]]) -> list[str]:
    """Format rows of cells as lines of text, the first column to the left and the others to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
