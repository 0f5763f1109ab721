"""What a live run says about a row, were it the next one, and about the rows to come. Nothing is learned."""

from typing import Any

import numpy as np

from norewind.people.table import Row
from norewind.runs.forecast import Forecast, check_ahead, rows_to_come
from norewind.runs.metrics import seven_digits
from norewind.runs.row_scores import RowScore
from norewind.streams import Samples, StreamError
from norewind.streams.columns import BadRow

SOON = 20
"""Rows that are enough to judge the columns by when an answer is wanted."""


def predicted(live: Any, row: Row) -> dict[str, Any] | None:
    """The forecast made at a row, or with a horizon of 0 what is predicted of it; None while too little is known."""
    if (found := _answered(live, row)) is None:
        return None
    score, samples, outputs = found
    if score.horizon:
        return score.row(score.forecast(samples, outputs)[0].tolist())
    values, _ = score.predicted(samples, outputs)
    return score.row(values[0].tolist()) if score.was_forecast(samples)[0] else None


def surprise(live: Any, row: Row) -> float | None:
    """How surprising a row is, in standard deviations; None while too little is known."""
    if (found := _answered(live, row)) is None:
        return None
    score, samples, outputs = found
    _, errors = score.predicted(samples, outputs)
    return score.surprise(errors[0])


def class_outputs(live: Any, row: Row) -> np.ndarray | None:
    """The logarithms of the probabilities of classes at a row, by step; None while too little is known."""
    if (found := _answered(live, row)) is None:
        return None
    _, _, outputs = found
    made = np.asarray(outputs[0] if live.settings.horizon else outputs, np.float64)
    return made.reshape(len(live.settings.steps), -1)


def _answered(live: Any, row: Row) -> tuple[RowScore, Samples, Any] | None:
    """How it is scored, a row as a sample, and the outputs there; None while too little is known."""
    if not live.open(only_if=SOON):
        return None
    try:
        samples = live.opened.stream.peek([row])
    except BadRow as problem:
        raise StreamError(f"the row is bad: {problem}.") from None
    return live.opened.score, samples, live.built.learner.forward(live.run_now(), samples.xs)[1]


def next_values(live: Any, steps: int) -> list[dict[str, float | None]]:
    """The next rows."""
    made = forecast(live, steps)
    return [dict(zip(made.columns, map(seven_digits, row), strict=True)) for row in made.means.tolist()]


def forecast(live: Any, steps: int) -> Forecast:
    """The next rows, with their deviations."""
    check_ahead(live.settings, steps)
    if not live.open():
        raise StreamError("there is nothing to forecast from yet: fit the model, or let it learn some rows.")
    live.add_up()
    return rows_to_come(live.settings, live.opened, live.built.learner, live.run_now(), steps, live.samples)
