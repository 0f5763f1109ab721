"""The forecasting models as models of River: run `pip install '.[river]'` in a clone."""

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from norewind.forecasting import models
from norewind.forecasting.hedge import Hedge
from norewind.forecasting.model_settings import settings_of
from norewind.forecasting.uninterruptible_lock import UninterruptibleLock, uninterrupted
from norewind.streams import StreamError
from norewind.wording import missing_package

try:
    from river import base
    from river.time_series.base import Forecaster as BaseForecaster
except ImportError:
    raise ImportError(f"norewind.forecasting.river: {missing_package('river', 'river')}.") from None

Features = dict[Any, Any]
TARGET, NOTHING = "(target)", "(nothing)"


class _RiverModel:
    """The base class of the models. The model inside is created at the first row, which determines the features.

    Features that appear later are ignored.

    Attributes:
        model_class: the class of the model inside.
        model_options: the arguments that it is always created with.
        target_is_input: whether the target is also an input.
    """

    model_class: type = models.Forecaster
    model_options: ClassVar[dict[str, Any]] = {}
    target_is_input = False

    def __init__(self, method: str = "auto", budget: float = 50.0, seed: int = 0, settings: dict | None = None):
        self.method = method
        self.budget = budget
        self.seed = seed
        self.settings = settings
        self._lock = UninterruptibleLock()
        self._model: Any = None
        self._names: list[str] = []
        self._asked_row: Any = None
        self._answer: Any = None
        self._hedge, self._latest = Hedge(2), 0.0

    def _learn(self, x: Features, **more: Any) -> None:
        x, self._asked_row = _usable(x), None
        if self._model is None:
            # Sorted, so that the result does not depend on the order of the features.
            self._names = sorted(x) or [NOTHING]
            inputs = [*self._names, *([TARGET] if self.target_is_input else [])]
            chosen = {"bad": "skip", **settings_of(self)}
            self._model = self.model_class(inputs=inputs, **self.model_options, **chosen)
        self._model.learn_one({**self._row(x), **more})

    def _learn_number(self, x: Features, y: float, predict: Callable[[], Sequence[float]]) -> None:
        """Learn from a row with a numeric target. `predict()` returns the predictions that are averaged."""
        if math.isfinite(y):
            self._hedge.learn(predict(), y)
            self._latest = y
        self._learn(x, **{TARGET: y})

    def _row(self, x: Features) -> dict[str, Any]:
        return {name: x.get(name, 0.0 if name == NOTHING else None) for name in self._names}

    @uninterrupted
    def _ask(self, question: str, x: Features) -> Any:
        """Call the model's method `question` on a row; None if the row is bad. The answer is kept until it learns."""
        row = self._row(_usable(x))
        if self._asked_row != row:
            self._asked_row = row
            try:
                self._answer = None if self._model is None else getattr(self._model, question)(row)
            except StreamError:
                self._answer = None
        return self._answer


class RiverRegressor(_RiverModel, base.Regressor):
    """Predicts a number from the features of a row, the previous rows, and the previous targets.

    The prediction of the model is averaged with the previous target, with weights that follow
    their absolute errors (`norewind.forecasting.hedge`). The sum of absolute errors is therefore
    never much above that of repeating the previous target. Features are numbers, booleans and
    text.

    Args:
        method: the method of learning: `auto`, or a method of `norewind train` without windows.
        budget: for `auto`, the microseconds that a row may take in a long stream.
        seed: the seed of the networks.
        settings: other settings of `norewind train`, such as `{"cell": "lru", "hidden": 32}`.
    """

    model_options: ClassVar = {"targets": TARGET, "horizon": 0}

    @uninterrupted
    def learn_one(self, x: Features, y: Any) -> None:
        """Learn from a row.

        Args:
            x: the features.
            y: the target.
        """
        self._learn_number(x, float(y), lambda: self._predictions(x))

    @uninterrupted
    def predict_one(self, x: Features) -> float:
        """Predict the target of a row.

        Args:
            x: the features.
        """
        return self._hedge.mixed(self._predictions(x))

    def _predictions(self, x: Features) -> tuple[float, float]:
        prediction = self._ask("predict_one", x)
        return self._latest if prediction is None else prediction, self._latest


class RiverForecaster(_RiverModel, BaseForecaster):
    """Forecasts the next numbers of a series from its past and that of other features.

    Beyond the next number, forecasts take the place of rows. Features that are known in advance
    are not used. As in `RiverRegressor`, the forecasts are averaged with the latest number; the
    weights follow the errors one row ahead. The arguments are those of `RiverRegressor`.
    """

    model_options: ClassVar = {"targets": TARGET}
    target_is_input = True
    _kept_forecasts: Sequence[float] = ()

    @uninterrupted
    def learn_one(self, y: Any, x: Features | None = None) -> None:
        """Learn from the next number of the series.

        Args:
            y: the number.
            x: the features of the same row.
        """
        self._learn_number(x or {}, float(y), lambda: (self._forecasts(1)[0], self._latest))
        self._kept_forecasts = ()

    @uninterrupted
    def forecast(self, horizon: int, xs: list[Features] | None = None) -> list[float]:
        """Forecast the next numbers of the series.

        Args:
            horizon: how many.
            xs: ignored; River passes the features of the rows ahead.
        """
        return [self._hedge.mixed((value, self._latest)) for value in self._forecasts(horizon)]

    def _forecasts(self, horizon: int) -> Sequence[float]:
        """Return the forecasts of the model. They are kept until it learns."""
        if len(self._kept_forecasts) < horizon:
            values = [None] * horizon if self._model is None else self._model.values_ahead("forecast", horizon)
            self._kept_forecasts = [self._latest if value is None else value for value in values]
        return self._kept_forecasts[:horizon]


class RiverClassifier(_RiverModel, base.Classifier):
    """Predicts class probabilities from the features of a row, the previous rows, and the previous classes.

    At most sixteen classes are distinguished. The arguments are those of `RiverRegressor`.
    """

    model_class = models.Classifier
    model_options: ClassVar = {"target": TARGET}

    @property
    def _multiclass(self) -> bool:
        return True

    @uninterrupted
    def learn_one(self, x: Features, y: Any) -> None:
        """Learn from a row.

        Args:
            x: the features.
            y: the class.
        """
        self._learn(x, **{TARGET: y})

    def predict_proba_one(self, x: Features, **kwargs: Any) -> dict[Any, float]:
        """Predict the probability of every class seen so far.

        Args:
            x: the features.
            kwargs: ignored.
        """
        return dict(self._ask("predict_proba_one", x) or {})


class RiverAnomalyDetector(_RiverModel, base.AnomalyDetector):
    """Scores how unusual a row is, from 0 to 1; see `norewind.AnomalyDetector`.

    Only numeric features are used. The arguments are those of `RiverRegressor`.
    """

    model_class = models.AnomalyDetector

    @uninterrupted
    def learn_one(self, x: Features) -> None:
        """Learn from a row.

        Args:
            x: the features.
        """
        self._learn({name: value for name, value in x.items() if _is_number(value)})

    def score_one(self, x: Features) -> float:
        """Score a row.

        Args:
            x: the features.
        """
        return self._ask("score_one", x) or 0.0


def _usable(x: Features) -> dict[str, Any]:
    """Return the features that are numbers or text, by name. Others, such as times, need an encoder in the pipeline."""
    return {
        str(name): _finite(value) if _is_number(value) else value
        for name, value in x.items()
        if _is_number(value) or value is None or isinstance(value, str)
    }


def _is_number(value: Any) -> bool:
    # Nearly all values are floats, and the check for `Real` takes longer than everything else here.
    return type(value) is float or isinstance(value, Real | np.bool_)


def _finite(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) and abs(number) < 3e38 else None
