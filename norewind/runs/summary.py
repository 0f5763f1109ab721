"""A short summary of a run on rows, compared with simple forecasts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from norewind.runs.metrics import counted
from norewind.runs.row_scores import steps_shown

STEPS = 8
"""The number of steps whose errors are shown; the others are in the figure."""
TARGETS = 3
"""The number of targets whose errors are shown; the others are in metrics.jsonl."""


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
        shares = {name: self._share(name) for name in self.errors}
        best = min((name for name in shares if name != MODEL), key=shares.__getitem__, default=MODEL)
        return best, shares[best] / shares[MODEL] if shares[MODEL] else 1.0

    def _share(self, name: str) -> float:
        """The squared error as a share of that of the mean, over all columns."""
        pairs = [(self.errors[name][column][1], rmse) for column, (_, rmse) in self.errors["the mean so far"].items()]
        return float(np.mean([(ours / theirs) ** 2 if theirs else 1.0 for ours, theirs in pairs]))


MODEL = "this model"
ENTRIES = {MODEL: "loss", "the last value": "persistence", "the mean so far": "baseline", "": "seasonal"}
NOTHING = {"": {"rows": 0}}
NAMES = {MODEL: "model", "the last value": "persistence", "the mean so far": "mean", "": "seasonal"}


def summary(lines: Sequence[dict[str, Any]], steps: Sequence[int] = (1,), *, squared: bool = True) -> Summary | None:
    """Sum up lines of metrics of a run on rows that forecasts these steps; None if nothing was scored."""
    scored = [line for line in lines if line.get("errors")]
    if not scored:
        return None
    last = [line for line in scored if 2 * line["samples"] > scored[-1]["samples"]]
    # The best period may change on the way. Each line is compared with the one that was the best there.
    periods = dict.fromkeys(line["period"] for line in last if "period" in line)
    losses, errors, by_step = {}, {}, {}
    weights = [_rows(line["errors"]["model"]) for line in last]
    for name, entry in ENTRIES.items():
        shown = name or f"{' or '.join(map(str, periods))} rows ago"
        # What was not known for some of the rows is not compared on the others.
        if any(
            _rows(line["errors"].get(NAMES[name], NOTHING)) < rows for line, rows in zip(last, weights, strict=True)
        ):
            continue
        errors[shown] = _errors([line["errors"][NAMES[name]] for line in last])
        if "by_step" in last[-1]:
            by_step[shown] = _by_step([line["by_step"][NAMES[name]] for line in last], weights)
        values = [(line.get(entry), weight) for line, weight in zip(last, weights, strict=True)]
        known = [(value, weight) for value, weight in values if value is not None and weight]
        if squared and known:
            losses[shown] = sum(value * weight for value, weight in known) / sum(weight for _, weight in known)
    return Summary(sum(weights), losses, errors, steps_shown(steps), by_step)


def _rows(errors: dict[str, dict[str, Any]]) -> int:
    return max(column["rows"] for column in errors.values())


def _errors(parts: list[dict[str, dict[str, Any]]]) -> dict[str, tuple[float, float]]:
    found = {}
    for column in parts[-1]:
        known = [part[column] for part in parts if part[column]["rows"]]
        rows = sum(part["rows"] for part in known)
        if rows:
            total = sum(part["mae"] * part["rows"] for part in known)
            squares = sum(part["rmse"] ** 2 * part["rows"] for part in known)
            found[column] = total / rows, float(np.sqrt(squares / rows))
    return found


def _by_step(parts: list[list[float | None]], weights: list[int]) -> list[float]:
    """Root mean squared errors over lines with these weights, by step; NaN where nothing is known."""
    errors = np.array(parts, float)
    known = np.where(np.isnan(errors), 0, np.array(weights, float)[:, None])
    total = known.sum(axis=0)
    squares = (known * np.nan_to_num(errors) ** 2).sum(axis=0)
    return np.sqrt(np.where(total > 0, squares / np.where(total > 0, total, 1), np.nan)).tolist()


def table(result: Summary) -> str:
    """The summary as text, with a warning if a simple forecast was better."""
    columns = list(result.errors[MODEL])[:TARGETS]
    head = [
        f"last {counted(result.rows, 'forecast' if result.by_step else 'row')}",
        *(["squared error"] if result.losses else []),
    ]
    head += [f"{column[:20]}: {kind}" for column in columns for kind in ("MAE", "RMSE")]
    rows = [head]
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
