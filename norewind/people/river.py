"""The estimators for people as estimators of River: `pip install norewind[river]`."""

from numbers import Real
from typing import Any

import numpy as np

from norewind import people

try:
    from river import base
    from river.time_series.base import Forecaster as RiverForecaster
except ImportError:
    raise ImportError("norewind.people.river needs River: pip install 'norewind[river]'") from None

Features = dict[Any, Any]
BEFORE = "y before"


class Regressor(base.Regressor):
    """A number from the features of a row, the rows before it, and the numbers learned before.

    Features that are not numbers are ignored, so put an encoder before it; those that first
    appear after the first row are ignored too.

    Parameters
    ----------
    method
        What learns: `auto`, or a method of `norewind train` without windows.
    budget
        For `auto`, the microseconds that a row may take.
    cell, hidden, rate
        For other methods, the network and its learning rate.
    seed
        The seed of the networks.

    """

    def __init__(
        self,
        method: str = "auto",
        budget: float = 50.0,
        cell: str = "gru",
        hidden: int = 64,
        rate: float = 1e-3,
        seed: int = 0,
    ):
        self.method, self.budget, self.cell, self.hidden, self.rate, self.seed = (
            method,
            budget,
            cell,
            hidden,
            rate,
            seed,
        )
        self._model = people.Forecaster("y", horizon=0, **_settings(self))
        self._before: float | None = None

    def learn_one(self, x: Features, y: Any) -> None:
        y = float(y)
        before = y if self._before is None else self._before
        self._model.learn_one({**_numbers(x), BEFORE: before, "y": y})
        self._before = y

    def predict_one(self, x: Features) -> float:
        if self._before is None:
            return 0.0
        found = self._model.predict_one({**_numbers(x), BEFORE: self._before, "y": None})
        return self._before if found is None else found


class Forecaster(RiverForecaster):
    """The next numbers of a series, from its past and that of other features.

    Beyond the next one, they are forecast from the forecasts before them. Parameters: see `Regressor`.
    """

    def __init__(
        self,
        method: str = "auto",
        budget: float = 50.0,
        cell: str = "gru",
        hidden: int = 64,
        rate: float = 1e-3,
        seed: int = 0,
    ):
        self.method, self.budget, self.cell, self.hidden, self.rate, self.seed = (
            method,
            budget,
            cell,
            hidden,
            rate,
            seed,
        )
        self._model = people.Forecaster("y", **_settings(self))
        self._newest = 0.0

    def learn_one(self, y: Any, x: Features | None = None) -> None:
        self._model.learn_one({"y": float(y), **_numbers(x or {})})
        self._newest = float(y)

    def forecast(self, horizon: int, xs: list[Features] | None = None) -> list[float]:
        if not self._model.samples:
            return [self._newest] * horizon
        found = self._model.forecast(horizon, [_numbers(x) for x in xs or []])
        return [self._newest if value is None else value for value in found]


class Classifier(base.Classifier):
    """The probabilities of labels, from the features of a row, the rows before it, and the label learned before.

    Parameters
    ----------
    classes
        The largest number of different labels.
    method, budget, cell, hidden, rate, seed
        See `Regressor`.

    """

    def __init__(
        self,
        classes: int = 10,
        method: str = "auto",
        budget: float = 50.0,
        cell: str = "gru",
        hidden: int = 64,
        rate: float = 1e-3,
        seed: int = 0,
    ):
        self.classes = classes
        self.method, self.budget, self.cell, self.hidden, self.rate, self.seed = (
            method,
            budget,
            cell,
            hidden,
            rate,
            seed,
        )
        self._model = people.Classifier("y", classes=classes, **_settings(self))

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: Features, y: Any) -> None:
        self._model.learn_one({**_numbers(x), "y": y})

    def predict_proba_one(self, x: Features) -> dict[Any, float]:
        return self._model.predict_proba_one(_numbers(x))


class AnomalyDetector(base.AnomalyDetector):
    """How far a row lies from what the rows before let expect, in standard deviations. Parameters: see `Regressor`."""

    def __init__(
        self,
        method: str = "auto",
        budget: float = 50.0,
        cell: str = "gru",
        hidden: int = 64,
        rate: float = 1e-3,
        seed: int = 0,
    ):
        self.method, self.budget, self.cell, self.hidden, self.rate, self.seed = (
            method,
            budget,
            cell,
            hidden,
            rate,
            seed,
        )
        self._model = people.AnomalyDetector(**_settings(self))

    def learn_one(self, x: Features) -> None:
        if numbers := _numbers(x):
            self._model.learn_one(numbers)

    def score_one(self, x: Features) -> float:
        return self._model.score_one(_numbers(x)) if x else 0.0


def _settings(estimator: Any) -> dict[str, Any]:
    """The settings of norewind; what `auto` chooses itself is left out. River's streams may hold anything: skip it."""
    names = ("budget",) if estimator.method == "auto" else ("cell", "hidden", "rate")
    chosen = {name: getattr(estimator, name) for name in names}
    return {"method": estimator.method, "seed": estimator.seed, "bad": "skip", **chosen}


def _numbers(x: Features) -> dict[str, float]:
    """The features that are numbers or booleans, in an order that does not depend on how they were sent."""
    numbers = {str(name): float(value) for name, value in x.items() if isinstance(value, Real | np.bool_)}
    return dict(sorted(numbers.items()))
