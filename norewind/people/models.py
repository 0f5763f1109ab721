"""Estimators for people who have data: forecast, classify, and notice what is odd, one row at a time or many."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self

import numpy as np

from norewind import shown
from norewind.files import write_atomically
from norewind.people.live import Live
from norewind.runs.fit import Hooks
from norewind.runs.metrics import counted
from norewind.runs.settings import Settings, SettingsError
from norewind.runs.train import steps_in_words
from norewind.streams import StreamError
from norewind.streams.columns import category_of, is_missing
from norewind.streams.given import SIMPLE, plain

# The name of a column, or several.
Names = str | Sequence[str]
NO_HOOKS = Hooks()
# Beside a run's settings: which of the three it is, and the labels as they were sent.
MODEL = "model.json"


class Model:
    """What the three have in common: they learn from rows, and become a run folder if they are saved."""

    live: Live
    labels: Any = None
    """The classes as they were sent, by name; None if numbers are forecast."""

    def fit(self, data: Any, hooks: Hooks = NO_HOOKS) -> Self:
        """Learn from a data frame, an array, an iterable of rows, or a file by its path; again to go on with more.

        If it fails, the model is as before.
        """
        self.live.fit(data if isinstance(data, str | Path) else map(self._seen, rows_of(data)), hooks)
        return self

    def learn_one(self, row: Any) -> None:
        """Learn from one more row: a dict, a row of a data frame, or a vector."""
        self.live.learn(row_of(row))

    def save(self, folder: str | Path) -> None:
        """Write a run folder, which `norewind.load` and the command line can open."""
        self.live.save(Path(folder))
        about = {"model": type(self).__name__} | ({} if self.labels is None else {"labels": self.labels})
        write_atomically(Path(folder) / MODEL, json.dumps(about, ensure_ascii=False).encode())

    @property
    def samples(self) -> int:
        """How many rows it has learned from."""
        return self.live.samples

    def _seen(self, row: dict[str, Any]) -> dict[str, Any]:
        return row

    def __repr__(self) -> str:
        title, facts, curve = self._shown()
        return shown.lines(title, {**facts, "curve": line} if (line := shown.sparkline(curve)) else facts)

    def _repr_html_(self) -> str:
        return shown.table(*self._shown())

    def _shown(self) -> tuple[str, dict[str, str], list[float | None]]:
        live = self.live
        title = f"{type(self).__name__} after {counted(live.samples, 'row')}"
        if live.opened is None:
            return title, {"method": live.settings.method}, []
        stream, last = live.opened.stream, live.closing()
        lines = [*live.lines, *([last] if last else [])]
        facts = {
            "inputs": _listed(stream.inputs),
            "targets": f"{_listed(stream.targets)}, {steps_in_words(stream.steps)}",
            "method": live.settings.method,
        }
        if lines and (loss := lines[-1]["mean"]) is not None:
            facts["loss"] = f"{loss:.4g} {live.opened.score.unit} (mean)"
        return title, facts, [line["loss"] for line in lines]


class Forecaster(Model):
    """Forecasts columns of a table, up to `horizon` rows ahead, and learns while rows come.

    Args:
        targets: the column to forecast, or several; by default all numbers. For one name, forecasts are numbers;
            otherwise they are dicts.
        horizon: how many rows ahead, all of them up to this one; only some with `only_steps=(1, 6, 24)`. With 0 the
            targets are those of the same row.
        inputs: the columns to forecast from; by default all numbers, except numbers of rows and times.
        settings: other settings of `norewind train`, such as `method="uoro"` or `loss="gaussian"`.

    >>> import math, norewind
    >>> model = norewind.Forecaster(targets="tide").fit({"tide": math.sin(hour / 2)} for hour in range(300))
    >>> [round(value, 1) for value in model.forecast(3)], [round(math.sin(hour / 2), 1) for hour in (300, 301, 302)]
    ([-0.7, -0.3, 0.2], [-0.7, -0.3, 0.2])
    """

    def __init__(self, targets: Names = (), horizon: int = 1, *, inputs: Names = (), **settings: Any):
        self.live = Live(settings_of(settings, targets=names_of(targets), inputs=names_of(inputs), horizon=horizon))

    def predict_one(self, row: Any) -> Any:
        """The forecast made at this row, from which nothing is learned; None while too little is known."""
        if (found := self.live.answer(row_of(row))) is None:
            return None
        score, samples, outputs = found
        if score.horizon:
            return self._one(score.row(score.forecast(samples, outputs)[0].tolist()))
        values, _ = score.predicted(samples, outputs)
        return self._one(score.row(values[0].tolist())) if score.was_forecast(samples)[0] else None

    def forecast(self, steps: int = 1) -> list[Any]:
        """The next rows. Beyond the horizon, they are forecast from the forecasts before them."""
        return self._ahead("forecast", steps)

    def spread(self, steps: int = 1) -> list[Any]:
        """The standard deviations of these forecasts; see `norewind forecast`."""
        return self._ahead("deviation", steps)

    def _ahead(self, entry: str, steps: Any) -> list[Any]:
        if not isinstance(steps, int | np.integer) or not 1 <= steps <= 100_000:
            raise SettingsError(f"forecast: steps is {steps!r}, but it must be a number of rows from 1 to 100,000.")
        return [self._one(row[entry]) for row in self.live.forecast(int(steps)).entries()]

    def _one(self, values: dict[str, Any]) -> Any:
        """Without its name if there is only one target."""
        targets = self.live.settings.targets
        if len(targets) != 1:
            return values
        return values[targets[0]] if targets[0] in values else {rows: self._one(row) for rows, row in values.items()}


class AnomalyDetector(Model):
    """Says how odd a row is: how far it lies from what earlier rows suggest, in standard deviations.

    The first single row waits for compilation:

        model = norewind.AnomalyDetector()
        for row in rows:
            print(model.score_one(row))
            model.learn_one(row)

    Args:
        inputs: the columns to look at; by default all numbers, except numbers of rows and times.
        settings: other settings of `norewind train`.
    """

    def __init__(self, inputs: Names = (), **settings: Any):
        self.live = Live(settings_of({"loss": "gaussian", **settings}, inputs=names_of(inputs), horizon=1))

    def score_one(self, row: Any) -> float:
        """How surprising the row would be, were it the next; 0 while too little is known. Nothing is learned."""
        if (found := self.live.answer(row_of(row))) is None:
            return 0.0
        score, samples, outputs = found
        return score.surprise(score.predicted(samples, outputs)[1][0]) or 0.0


class Classifier(Model):
    """Predicts the class of a row, with probabilities, and learns as rows with known classes arrive.

    The first single row waits for compilation:

        model = norewind.Classifier("light")
        for second in range(300):
            model.learn_one({"second": second % 30, "light": "red" if second % 30 < 20 else "green"})
        model.predict_one({"second": 5})

    Args:
        target: the column that holds the class: text, a number, or a boolean. Sixteen are told apart.
        horizon: how many rows ahead to forecast it, all of them up to this one; 0 for the class of the same row.
        inputs: the columns to look at; by default all numbers, except numbers of rows and times.
        settings: other settings of `norewind train`.
    """

    def __init__(self, target: str, horizon: int = 0, *, inputs: Names = (), **settings: Any):
        names = {"targets": (target,), "inputs": names_of(inputs), "horizon": horizon}
        self.live = Live(settings_of({**settings, "loss": "classes"}, **names))
        self.labels = {}

    def learn_one(self, row: Any) -> None:
        row = row_of(row)
        super().learn_one(row)
        self._seen(row)

    def predict_one(self, row: Any) -> Any:
        """The most likely class, of the nearest row that is forecast; None while too little is known."""
        chances = self.predict_proba_one(row)
        return max(chances, key=chances.__getitem__) if chances else None

    def predict_proba_one(self, row: Any) -> dict[Any, float]:
        """The probability of every class that has come, in the nearest row that is forecast."""
        if (found := self.live.answer(row_of(row))) is None:
            return {}
        made, names = found[2][0] if self.live.settings.horizon else found[2], self.live.opened.stream.classes
        # The classes so far, in the nearest of the steps.
        by_step = np.asarray(made, np.float64).reshape(len(self.live.settings.steps), -1)
        logarithms = by_step[0, : len(names)]
        shares = np.exp(logarithms - logarithms.max())
        return dict(zip((self.labels.get(n, n) for n in names), (shares / shares.sum()).tolist(), strict=True))

    def _seen(self, row: dict[str, Any]) -> dict[str, Any]:
        value = row.get(self.live.settings.targets[0])
        if len(self.labels) <= 1000 and not is_missing(value) and not isinstance(value, dict | list):
            self.labels.setdefault(category_of(value), value)
        return row


def settings_of(settings: dict[str, Any], **given: Any) -> Settings:
    """The settings of a run on rows from Python: as JSON lines that come from a pipe."""
    known = [field.name for field in fields(Settings)]
    for name in settings.keys() - known:
        close = get_close_matches(name, known, 1)
        meant = f" Did you mean {close[0]}?" if close else ""
        raise SettingsError(f"there is no setting {name}.{meant} Settings are those of norewind train, with _ for -.")
    return Settings(**{"source": "-", "format": "jsonl", **settings, **given})


def rows_of(data: Any) -> Iterator[dict[str, Any]]:
    """Rows by column, from a pandas or Polars frame or series, an array, or any iterable of rows."""
    if hasattr(data, "to_frame"):  # a series, which is named as its column would be, or as that of an array
        data = data.to_frame(name=data.name or "1")
    if isinstance(data, Mapping):
        raise StreamError("fit takes many rows; learn_one takes one. A dict of columns? Make a data frame of it first.")
    if hasattr(data, "iter_rows"):  # Polars
        return map(row_of, data.iter_rows(named=True))
    if hasattr(data, "itertuples"):  # pandas
        names = [str(name) for name in data.columns]
        return (row_of(dict(zip(names, values, strict=True))) for values in data.itertuples(index=False, name=None))
    if isinstance(data, bytes) or not isinstance(data, Iterable):
        kinds = "a data frame, an array or an iterable of dicts"
        raise StreamError(f"rows are {kinds}, not a {type(data).__name__}. To read a file, give its path.")
    return map(row_of, data)


def row_of(row: Any) -> dict[str, Any]:
    """One row by column. The columns of an array are called 1, 2, ..., as in a file without a header."""
    if isinstance(row, Mapping):
        return {
            name if type(name) is str else str(name): value if type(value) in SIMPLE else plain(value)
            for name, value in row.items()
        }
    if hasattr(row, "to_dict"):  # a row of pandas
        return row_of(row.to_dict())
    if isinstance(row, str | bytes) or not (hasattr(row, "__len__") or hasattr(row, "__float__")) or np.ndim(row) > 1:
        raise StreamError(f"a row is a dict or a vector of numbers, not a {type(row).__name__}.")
    values = np.atleast_1d(np.asarray(row)).tolist()
    return {str(number): plain(value) for number, value in enumerate(values, 1)}


def names_of(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def load(folder: str | Path) -> Any:
    """The model in a run folder: what `save` wrote, or what `norewind train` made of rows."""
    from norewind.runs.folder import saved_run

    folder = Path(folder)
    settings, saved = saved_run(folder)
    if settings.kind not in ("csv", "jsonl"):
        raise SettingsError(f"{folder} has learned from {settings.kind}: only runs on CSV or JSON lines can be loaded.")
    try:
        about = json.loads((folder / MODEL).read_bytes())
    except FileNotFoundError:
        about = {"model": "Classifier" if settings.loss == "classes" else "Forecaster"}
    except ValueError:
        about = {}
    kinds = {kind.__name__: kind for kind in (Forecaster, AnomalyDetector, Classifier)}
    kind = kinds.get(about.get("model", "")) if isinstance(about, dict) else None
    if kind is None or (kind is Classifier) != (settings.loss == "classes"):
        raise StreamError(f"{folder / MODEL}: describes no model of norewind. Remove it, or save the model again.")
    model = kind.__new__(kind)
    model.live = Live(settings, saved)
    if isinstance(model, Classifier):
        labels = about.get("labels", {})
        model.labels = labels if isinstance(labels, dict) else {}
    return model


def _listed(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
