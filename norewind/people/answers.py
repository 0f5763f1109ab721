"""What a live run says about a row, were it the next one, and about the rows to come. Nothing is learned."""

from typing import Any

import jax
import numpy as np

from norewind.people.table import Row
from norewind.runs.forecast import Coming, Forecast, check_ahead, described, rows_to_come
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
    """The logarithms of the probabilities of classes at a row; None while too little is known."""
    if not live.open(only_if=SOON):
        return None
    outputs = live.single.outputs(live.run_now(), _as_next(live, row).xs[0])
    return np.asarray(outputs[0] if live.settings.horizons[-1] else outputs, np.float64)


def _answered(live: Any, row: Row) -> tuple[RowScore, Samples, Any] | None:
    """How it is scored, a row as a sample, and the outputs there; None while too little is known."""
    if not live.open(only_if=SOON):
        return None
    samples = _as_next(live, row)
    outputs = live.single.outputs(live.run_now(), samples.xs[0])
    return live.opened.score, samples, jax.tree.map(lambda leaf: np.asarray(leaf)[None], outputs)


def _as_next(live: Any, row: Row) -> Samples:
    try:
        return live.opened.stream.peek([row])
    except BadRow as problem:
        raise StreamError(f"the row is bad: {problem}.") from None


def next_values(live: Any, steps: int) -> list[dict[str, float | None]]:
    """The next rows."""
    made, columns = _to_come(live, steps), live.opened.score.columns
    return [dict(zip(columns, map(seven_digits, row), strict=True)) for row in made.means.tolist()]


def forecast(live: Any, steps: int) -> Forecast:
    """The next rows, with their deviations."""
    made = _to_come(live, steps)
    live.add_up()
    return described(live.settings, live.opened, made, live.samples)


def _to_come(live: Any, steps: int) -> Coming:
    check_ahead(live.settings, steps)
    if not live.open():
        raise StreamError("there is nothing to forecast from yet: fit the model, or let it learn some rows.")
    if live.settings.horizons[-1] > 1:
        live.add_up()  # the newest errors correct what was forecast some rows ago
    run = live.run_now()
    pending = live.single.pending(run)

    def answer(x: np.ndarray) -> np.ndarray:
        nonlocal run
        run, (outputs, _) = live.single.answer(run, x)
        return np.asarray(outputs)[None]

    return rows_to_come(live.opened, pending, answer, steps)
