"""Models for tables: a forecaster, a classifier and an anomaly detector that learn from rows, one at a time or many."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from norewind.forecasting.backtest import Backtest, backtest
from norewind.forecasting.base_model import MODEL_FILE, ForecastingModel
from norewind.forecasting.forecasts import check_rows, forecast_next_rows
from norewind.forecasting.frames import build_frame, check_is_frame, continued_index, forecast_columns, style_of
from norewind.forecasting.model_settings import Names, check_is_one_series, names_of, settings_for_rows
from norewind.forecasting.uninterruptible_lock import locked, uninterrupted
from norewind.learners.learner import Learner
from norewind.scoring.number_score import NumberScore
from norewind.scoring.row_score import RowScore
from norewind.scoring.score import log_probabilities
from norewind.streams import StreamError
from norewind.streams.table.columns import category_of, is_missing
from norewind.streams.table.python_rows import PythonRows, iterate_rows
from norewind.training.build import in_precision
from norewind.training.folder import saved_run
from norewind.training.open_stream import open_stream
from norewind.training.settings import SettingsError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Forecaster(ForecastingModel):
    """Forecasts columns of a table, up to `horizon` rows ahead, and learns as rows arrive.

    Args:
        targets: the column to forecast, or several; by default all numeric columns. With one name, forecasts are
            numbers; otherwise they are dicts.
        horizon: how many rows ahead to forecast; every row up to this one is forecast. `only_steps=(1, 6, 24)`
            selects some of them. With 0, the targets are those of the same row.
        inputs: the columns to forecast from; by default all numeric columns except row counters and timestamps.
        settings: other settings of `norewind train`, such as `interval=(0.8, 0.95)`, `method="uoro"` or
            `loss="gaussian"`.

    >>> import math, norewind
    >>> model = norewind.Forecaster(targets="tide").fit({"tide": math.sin(hour / 2)} for hour in range(300))
    >>> [round(value, 1) for value in model.forecast(3)], [round(math.sin(hour / 2), 1) for hour in (300, 301, 302)]
    ([-0.7, -0.3, 0.2], [-0.7, -0.3, 0.2])
    """

    def __init__(self, targets: Names = (), horizon: int = 1, *, inputs: Names = (), **settings: Any):
        names = {"targets": names_of(targets), "inputs": names_of(inputs)}
        super().__init__(settings_for_rows(settings, horizon=horizon, **names))

    def predict_one(self, row: Any) -> Any:
        """Forecast from this row as if it were the next one, without learning from it.

        Args:
            row: a dict by column, a row of a data frame, or a vector.

        Returns:
            The forecast; None while there are too few rows to forecast from.
        """
        if (found := self._predict_at(row)) is None:
            return None
        score, samples, outputs = found
        assert isinstance(score, NumberScore)
        if score.horizon:
            return self._value(score.by_column(score.forecasts_in_units(samples, outputs)[0].tolist()))
        values, _ = score.predictions_and_errors(samples, outputs)
        return self._value(score.by_column(values[0].tolist())) if score.has_prediction(samples)[0] else None

    def forecast(self, rows: int = 1, *, known_future: Any = None) -> Any:
        """Forecast the next rows. Beyond the horizon, forecasts take the place of rows, with a warning.

        Args:
            rows: the number of rows.
            known_future: what is known in advance about these rows: a frame, or dicts by column, with the columns that
                the setting `known_future` names. By default, what the model was told when it learned.

        Returns:
            One forecast per row: a number if one target was named, otherwise a dict by column. After `fit` on a pandas
            or Polars frame, a frame of the same kind: its times or its index continued, the forecasts, their
            deviations and the bounds of their intervals.

        Raises:
            SettingsError: `rows` is not a number from 1 to 100,000, or the horizon is 0.
            StreamError: the model has not learned from any row yet, or `known_future` does not fit.
        """
        entries = self.entries_ahead(rows, known_future=known_future, warn=True)
        if self.style is None or self.training is None:
            return [self._value(each["forecast"]) for each in entries]
        clock = self.training.windowed.rows.clock
        columns = forecast_columns(entries, clock if clock in self.style.types else None)
        return build_frame(self.style, columns, continued_index(self.style, rows, self.samples))

    @locked
    @in_precision
    def predict(self, data: Any) -> Any:
        """Predict at every row of a frame in turn, without learning from them.

        Args:
            data: a pandas or Polars frame that continues the rows learned from.

        Returns:
            A frame of the same kind and length, with a column for each target: the forecast made at the row, or with
            `horizon=0` the prediction of its target. With several steps, the columns are called `power +1` and so on.

        Raises:
            StreamError: the data is not a frame, or one of its rows is bad.
        """
        style = check_is_frame(style_of(data, 0), "predict")
        if (training := self._open()) is None:
            raise StreamError("there is nothing to predict from yet: call fit or learn_one first.")
        position = training.snapshot().entries["position"]["stream"]
        opened = open_stream(self.settings, position, source=PythonRows(iterate_rows(data)))
        name = "forecast" if self.settings.horizon else "prediction"
        with opened.stream as stream:
            run, columns = training.run_so_far(), {}
            assert isinstance(training.learner, Learner)
            while (samples := stream.take(training.chunk_size)) is not None:
                run, outputs = training.learner.forward(run, samples.xs)
                for entry in opened.score.prediction_entries(1, samples, outputs):
                    for column, value in _flat(entry[name]).items():
                        columns.setdefault(column, []).append(value)
        return build_frame(style, columns, getattr(data, "index", None))

    def backtest(self, data: Any, *, origins: int | Sequence[int] = 10, horizon: int | None = None) -> Backtest:
        """Forecast at some rows of a frame, each time from the rows before alone, with a copy of this model.

        Args:
            data: a pandas or Polars frame, in chronological order.
            origins: numbers of rows after which to forecast, or how many of them, evenly spaced over the second half.
            horizon: the number of rows to forecast each time; by default the horizon of the model.

        Returns:
            The forecasts next to the actual values as a frame, and a figure.

        Raises:
            StreamError: the data is not a frame, or too short for the origins.
        """
        return backtest(self, data, origins, horizon)

    @uninterrupted
    @in_precision
    def plot(self, rows: int | None = None) -> "Figure":
        """Draw the latest rows and the forecasts of the next ones.

        Args:
            rows: the number of rows to forecast; by default the horizon.
        """
        check_rows(self.settings, rows)
        if (training := self._open()) is None:
            raise StreamError("there is nothing to plot yet: call fit or learn_one first.")
        return forecast_next_rows(self.settings, training, rows).figure()

    def spread(self, rows: int = 1) -> list[Any]:
        """Return the standard deviations of the forecasts of the next rows.

        Args:
            rows: the number of rows.

        Returns:
            One entry per row, like those of `forecast`.
        """
        return self.values_ahead("deviation", rows)

    def intervals(self, rows: int = 1) -> list[Any]:
        """Return the intervals of the forecasts of the next rows, one for each level of the setting `interval`.

        Args:
            rows: the number of rows.

        Returns:
            One entry per row, like those of `forecast`: `(low, high)` by level, where None means that this side is
            unbounded.

        Raises:
            SettingsError: the model was made without `interval=`.
        """
        if not self.settings.interval:
            raise SettingsError("this model has no intervals: make it with interval=0.9, or several levels.")
        return self.values_ahead("interval", rows)

    def values_ahead(self, entry: str, rows: int) -> list[Any]:
        """Return one entry of the forecasts of the next rows, like those of `forecast`.

        Args:
            entry: `"forecast"`, `"deviation"` or `"interval"`.
            rows: the number of rows.
        """
        return [self._value(each[entry]) for each in self.entries_ahead(rows)]

    @uninterrupted
    @in_precision
    def entries_ahead(self, rows: int, *, known_future: Any = None, warn: bool = False) -> list[dict[str, Any]]:
        """Return the forecasts of the next rows, as `norewind forecast` prints them.

        Args:
            rows: the number of rows.
            known_future: what is known in advance about them; see `forecast`.
            warn: whether to warn about rows beyond the horizon.
        """
        check_rows(self.settings, rows)
        if (training := self._open()) is None:
            raise StreamError("there is nothing to forecast from yet: call fit or learn_one first.")
        plan = None if known_future is None else iterate_rows(known_future)
        result = forecast_next_rows(self.settings, training, rows, plan)
        if warn and result.warning:
            warnings.warn(result.warning, stacklevel=5)  # of the caller of forecast
        return result.entries

    def _value(self, values: dict[str, Any]) -> Any:
        """Return the value alone if one target was named, otherwise the dict."""
        targets = self.settings.targets
        if len(targets) != 1:
            return values
        return values[targets[0]] if targets[0] in values else {step: self._value(row) for step, row in values.items()}


class AnomalyDetector(ForecastingModel):
    """Scores how unusual a row is, from 0 to 1: without anomalies, at most 1 − s of all rows have a score of s or more.

    A row is compared with its forecast, and with the values and errors so far (`norewind.scoring.anomalies`). The first
    single row takes longer, since the model is compiled then:

        model = norewind.AnomalyDetector()
        for row in rows:
            print(model.score_one(row))
            model.learn_one(row)

    Args:
        inputs: the columns to use; by default all numeric columns except row counters and timestamps.
        settings: other settings of `norewind train`.
    """

    def __init__(self, inputs: Names = (), **settings: Any):
        super().__init__(settings_for_rows({"loss": "gaussian", **settings}, inputs=names_of(inputs), horizon=1))

    @uninterrupted
    def score_one(self, row: Any) -> float:
        """Score a row as if it were the next one, without learning from it.

        Args:
            row: a dict by column, a row of a data frame, or a vector.

        Returns:
            The score. It is 0 while there are too few rows to compare with, and in the hundred rows after an unusual
            row, unless a row is even rarer.
        """
        if (found := self._predict_at(row)) is None:
            return 0.0
        score, samples, outputs = found
        assert isinstance(score, RowScore)
        assert self.training is not None
        return next(score.anomaly_entries(samples, outputs, self.training.usual_so_far()))["anomaly"]


class Classifier(ForecastingModel):
    """Predicts the class of a row, with probabilities, and learns as rows with known classes arrive.

    The first single row takes longer, since the model is compiled then:

        model = norewind.Classifier("light")
        for second in range(300):
            model.learn_one({"second": second % 30, "light": "red" if second % 30 < 20 else "green"})
        model.predict_one({"second": 5})

    Args:
        target: the column that holds the class: text, a number, or a boolean. At most sixteen classes are
            distinguished.
        horizon: how many rows ahead to forecast the class; every row up to this one is forecast. 0 for the class of
            the same row.
        inputs: the columns to use; by default all numeric columns except row counters and timestamps.
        settings: other settings of `norewind train`.
    """

    def __init__(self, target: str, horizon: int = 0, *, inputs: Names = (), **settings: Any):
        names = {"targets": (target,), "inputs": names_of(inputs)}
        super().__init__(settings_for_rows({**settings, "loss": "classes"}, horizon=horizon, **names))

    def predict_one(self, row: Any) -> Any:
        """Predict the most likely class, without learning from the row.

        Args:
            row: a dict by column, a row of a data frame, or a vector.

        Returns:
            The class, in the nearest row that is forecast; None while there are too few rows to predict from.
        """
        chances = self.predict_proba_one(row)
        return max(chances, key=chances.__getitem__) if chances else None

    def predict_proba_one(self, row: Any) -> dict[Any, float]:
        """Predict the probability of every class seen so far, without learning from the row.

        Args:
            row: a dict by column, a row of a data frame, or a vector.

        Returns:
            Probabilities by class, in the nearest row that is forecast; empty while there are too few rows.
        """
        if (found := self._predict_at(row)) is None or self.training is None:
            return {}
        made, names = found[2].made, self.training.windowed.rows.classes
        # The classes seen so far, at the nearest step.
        logits = np.reshape(made, (len(self.settings.steps), -1))[0, : len(names)]
        probabilities = np.exp(log_probabilities(logits)).tolist()
        return dict(zip((self.labels.get(n, n) for n in names), probabilities, strict=True))

    def _note_row(self, row: dict[str, Any]) -> dict[str, Any]:
        value = row.get(self.settings.targets[0])
        if len(self.labels) <= 1000 and not is_missing(value) and not isinstance(value, dict | list):
            self.labels.setdefault(category_of(value), value)
        return row


def _flat(forecasts: dict[str, Any]) -> dict[str, float]:
    """Return the forecasts of a row by column, and if there are several steps by column and step."""
    if not all(isinstance(part, dict) for part in forecasts.values()):
        return forecasts
    return {f"{column} +{step}": value for step, part in forecasts.items() for column, value in part.items()}


def load(folder: str | Path) -> Any:
    """Load the model in a run folder, written by `save` or by `norewind train` on rows.

    Args:
        folder: the run folder.

    Returns:
        A `Forecaster`, `Classifier` or `AnomalyDetector`.

    Raises:
        SettingsError: the run was not trained on rows, or has a model for every key.
        StreamError: the file that describes the model is damaged.
    """
    folder, path = Path(folder), Path(folder) / MODEL_FILE
    settings, saved = saved_run(folder)
    if not settings.has_rows:
        raise SettingsError(f"{folder} has learned from {settings.kind}: only runs on rows can be loaded.")
    check_is_one_series(settings)
    try:
        about = json.loads(path.read_bytes())
    except FileNotFoundError:
        about = {"model": "Classifier" if settings.loss == "classes" else "Forecaster"}
    except ValueError:
        about = {}
    kinds = {kind.__name__: kind for kind in (Forecaster, AnomalyDetector, Classifier)}
    kind = kinds.get(about.get("model", "")) if isinstance(about, dict) else None
    if kind is None or (kind is Classifier) != (settings.loss == "classes"):
        raise StreamError(f"{path} does not describe a norewind model. Remove it, or save the model again.")
    model = kind.__new__(kind)
    ForecastingModel.__init__(model, settings, saved, folder.resolve())
    if isinstance(model, Classifier):
        labels = about.get("labels", {})
        model.labels = labels if isinstance(labels, dict) else {}
    return model
