"""A short summary of a run on rows, compared with simple forecasts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from norewind.runs.metrics import counted
from norewind.runs.row_scores import steps_shown

# The number of steps whose errors are shown; the others are in the figure.
STEPS = 8
# The number of targets whose errors are shown; the others are in metrics.jsonl.
TARGETS = 3


class Summary(NamedTuple):
    """Forecasts by name over the last half of a run: squared errors in variances, and errors in the table's units.

    `errors` holds, by forecast and column, the mean absolute and the root mean squared error, over
    all steps. `by_step` holds root mean squared errors in standard deviations by forecast and
    step, for the `steps` that are shown; it is empty if there is only one.
    """

    rows: int
    losses: dict[str, float]
    errors: dict[str, dict[str, tuple[float, float]]]
    steps: list[int]
    by_step: dict[str, list[float]]

    @property
    def better(self) -> str | None:
        """The simple forecast that is better than the model, if there is one: the best of them."""
        best, share = self._best()
        return best if share < 1 else None

    @property
    def clearly(self) -> bool:
        """Whether it is better by more than 2 % of the squared error."""
        return self._best()[1] < 0.98

    def _best(self) -> tuple[str, float]:
        """The best simple forecast, and its squared error as a share of that of the model."""
        # The squared errors of all columns, each as a share of that of the mean.
        mean = self.errors["the mean so far"].items()
        shares = {
            name: float(np.mean([(errors[column][1] / rmse) ** 2 if rmse else 1.0 for column, (_, rmse) in mean]))
            for name, errors in self.errors.items()
        }
        best = min((name for name in shares if name != MODEL), key=shares.__getitem__, default=MODEL)
        return best, shares[best] / shares[MODEL] if shares[MODEL] else 1.0


MODEL = "this model"
# How forecasts are shown, the names of their errors in a line of metrics, and those of their losses.
FORECASTS = {
    MODEL: ("model", "loss"),
    "the last value": ("persistence", "persistence"),
    "the mean so far": ("mean", "baseline"),
    "": ("seasonal", "seasonal"),
}


def summary(lines: Sequence[dict[str, Any]], steps: Sequence[int] = (1,), *, squared: bool = True) -> Summary | None:
    """Sum up lines of metrics of a run on rows that forecasts these steps; None if nothing was scored."""
    scored = [line for line in lines if line.get("errors")]
    if not scored:
        return None
    last = [line for line in scored if 2 * line["samples"] > scored[-1]["samples"]]

    def rows(name: str) -> np.ndarray:
        found = [line["errors"].get(name, {"": {"rows": 0}}).values() for line in last]
        return np.array([max(column["rows"] for column in columns) for columns in found])

    # The best period may change on the way. Each line is compared with the one that was the best there.
    periods = dict.fromkeys(line["period"] for line in last if "period" in line)
    losses, errors, by_step, weights = {}, {}, {}, rows("model")
    for title, (name, entry) in FORECASTS.items():
        shown = title or f"{' or '.join(map(str, periods))} rows ago"
        # What was not known for some of the rows is not compared on the others.
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


def _mean(values: list[Any], weights: Any, power: int = 1) -> np.ndarray:
    """The weighted power mean of what is known of values, over lines; NaN where nothing is known."""
    powers = np.array(values, float) ** power
    known = np.where(np.isnan(powers), 0, np.reshape(weights, (-1, *[1] * (powers.ndim - 1))))
    total, count = (known * np.nan_to_num(powers)).sum(axis=0), known.sum(axis=0)
    return np.where(count > 0, total / np.where(count > 0, count, 1), np.nan) ** (1 / power)


def table(result: Summary) -> str:
    """The summary as text, with a warning if a simple forecast was better."""
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
    if result.better and result.clearly:
        lines.append(
            f"Warning: {result.better} was a better forecast than this model. Use that instead, or train longer."
        )
    elif result.better:
        lines.append(f"Warning: {result.better} was as good a forecast as this model, and is simpler.")
    return "\n".join(lines)


def _aligned(rows: list[list[str]]) -> list[str]:
    """Rows of cells as lines of text, the first column to the left and the others to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
