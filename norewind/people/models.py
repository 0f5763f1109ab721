"""Estimators for people who have data: forecast, classify, and notice what is odd, one row at a time or many."""

import json
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Self

from norewind import shown
from norewind.files import write_atomically
from norewind.people.ahead import forecasts
from norewind.people.live import Live
from norewind.runs.fit import Hooks
from norewind.runs.settings import Settings, SettingsError

NO_HOOKS = Hooks()
MODEL = "model.json"
"""Beside a run's settings: which of the three it is, and what it knows beside the run."""


class Model:
    """What the three have in common: they learn from rows, and live in a run folder if they are saved."""

    live: Live

    def fit(self, data: Any, hooks: Hooks = NO_HOOKS) -> Self:
        """Learn from a data frame, an array, an iterable of rows, or a file by its path; again to go on with more."""
        self.live.fit(self._rows(data), hooks)
        return self

    def learn_one(self, row: Any) -> None:
        """Learn from one more row."""
        self.live.learn(self._row(row))

    def save(self, folder: str | Path) -> None:
        """Write a run folder, which `norewind.load` and the command line can open."""
        self.live.save(Path(folder))
        about = {"model": type(self).__name__, **self._about()}
        write_atomically(Path(folder) / MODEL, json.dumps(about, ensure_ascii=False).encode())

    def _about(self) -> dict[str, Any]:
        return {}

    def __repr__(self) -> str:
        facts = self._facts()
        if curve := shown.sparkline(self._curve()):
            facts["loss"] += f"  {curve}"
        return shown.lines(facts.pop("title"), facts)

    def _repr_html_(self) -> str:
        facts = self._facts()
        return shown.table(facts.pop("title"), facts, self._curve())

    def _facts(self) -> dict[str, str]:
        live = self.live
        title = f"{type(self).__name__} after {live.samples:,} rows"
        if live.opened is None:
            return {"title": title, "method": live.settings.method}
        loss, stream = live.mean_loss, live.opened.stream
        return {
            "title": title,
            "inputs": _listed(stream.inputs),
            "targets": f"{_listed(stream.targets)}, {live.settings.horizon} ahead",
            "method": live.settings.method,
            "loss": "not known yet" if loss is None else f"{loss:.4g} {live.opened.score.unit} (mean)",
        }

    def _curve(self) -> list[float | None]:
        return [line["loss"] for line in self.live.lines]

    def _rows(self, data: Any) -> Any:
        return data

    def _row(self, row: Any) -> Any:
        return row

    @property
    def samples(self) -> int:
        """How many rows it has learned from."""
        return self.live.samples


class Forecaster(Model):
    """Forecasts columns of a table, `horizon` rows ahead, and learns while rows come.

    Args:
        targets: the column to forecast, or several; by default all numeric ones. For one name, forecasts are
            numbers; otherwise they are dicts.
        horizon: how many rows ahead. With 0 the targets are those of the same row.
        inputs: the columns to forecast from; by default all numeric ones.
        settings: other settings of `norewind train`, such as `loss="gaussian"` for spreads, or `method="uoro"`.

    >>> import math, norewind
    >>> model = norewind.Forecaster(targets="tide")
    >>> for hour in range(300):
    ...     model.learn_one({"tide": math.sin(hour / 2)})
    >>> [round(value, 1) for value in model.forecast(3)], [round(math.sin(hour / 2), 1) for hour in (300, 301, 302)]
    ([-0.7, -0.3, 0.2], [-0.7, -0.3, 0.2])
    """

    def __init__(
        self, targets: str | Sequence[str] = (), horizon: int = 1, *, inputs: Sequence[str] = (), **settings: Any
    ):
        self.one = targets if isinstance(targets, str) else None
        names = (targets,) if isinstance(targets, str) else tuple(targets)
        self.live = Live(settings_of(settings, targets=names, inputs=names_of(inputs), horizon=horizon))

    def predict_one(self, row: Any) -> Any:
        """The forecast made at this row, from which nothing is learned; None while too little is known."""
        entry = self.live.predicted(row)
        return self._shown((entry or {}).get("forecast" if self.live.settings.horizon else "prediction"))

    def forecast(self, steps: int = 1, others: Iterable[dict[str, Any]] = ()) -> list[Any]:
        """The next rows. Beyond the horizon, they are forecast from the forecasts before them.

        `others` are columns of these rows that are known already, one dict a row.
        """
        return [self._shown(row["forecast"]) for row in self._next(steps, others)]

    def spread(self, steps: int = 1) -> list[Any]:
        """The standard deviations of these forecasts; needs `loss="gaussian"`."""
        if self.live.settings.loss != "gaussian":
            raise SettingsError('spreads are not forecast: make the model with loss="gaussian".')
        return [self._shown(row["deviation"]) for row in self._next(steps)]

    def _next(self, steps: int, others: Iterable[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        if not self.live.settings.horizon:
            raise SettingsError("with a horizon of 0 there is nothing ahead: use predict_one(row).")
        return list(islice(forecasts(self.live, others), steps))

    def _about(self) -> dict[str, Any]:
        return {"one": self.one}

    def _shown(self, values: dict[str, Any] | None) -> Any:
        if self.one is None:
            return values
        return None if values is None else values[self.one]


class AnomalyDetector(Model):
    """Says how odd a row is: how far it lies from what the rows before let expect, in standard deviations.

    Args:
        columns: the columns to look at; by default all numeric ones.
        settings: other settings of `norewind train`.

    Example (the first call compiles for some seconds)::

        model = norewind.AnomalyDetector()
        for row in rows:
            print(model.score_one(row))
            model.learn_one(row)
    """

    def __init__(self, columns: Sequence[str] = (), **settings: Any):
        self.live = Live(settings_of({"loss": "gaussian", **settings}, inputs=names_of(columns), horizon=1))

    def score_one(self, row: Any) -> float:
        """How surprising the row would be, were it the next; 0 while too little is known. Nothing is learned."""
        return (self.live.predicted(row) or {}).get("surprise") or 0.0

    predict_one = score_one


def settings_of(settings: dict[str, Any], **given: Any) -> Settings:
    """The settings of a run on rows from Python: as JSON lines that come from a pipe."""
    try:
        return Settings(**{"source": "-", "format": "jsonl", **settings, **given})
    except TypeError as error:
        raise SettingsError(f"{error}: the other settings are those of norewind train, with _ for -.") from None


def names_of(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _listed(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
