"""The estimators for people as estimators of River: `pip install norewind[river]`."""

import math
from numbers import Real
from typing import Any

import numpy as np

from norewind.people import models
from norewind.people.hedge import Hedge
from norewind.streams import StreamError

try:
    from river import base
    from river.time_series.base import Forecaster as RiverForecaster
except ImportError:
    raise ImportError("norewind.people.river needs River: pip install 'norewind[river]'") from None

Features = dict[Any, Any]
TARGET, NOTHING = "(target)", "(nothing)"
UNUSABLE = object()


class _Rows:
    """A model that is made at the first row, which names the features; later ones that are new are ignored."""

    def __init__(self, kind: type, own: dict[str, Any], settings: dict[str, Any], *, ahead: bool = False):
        self.kind, self.own, self.settings, self.ahead = kind, own, settings, ahead
        self.model: Any = None
        self.names: list[str] = []
        self.asked: Any = None
        self.answer: Any = None

    def learn(self, x: Features, **more: Any) -> None:
        x, self.asked = _usable(x), None
        if self.model is None:
            # In an order that does not depend on how they were sent.
            self.names = sorted(x) or [NOTHING]
            known = [TARGET] if self.ahead else []
            self.model = self.kind(**self.own, inputs=[*self.names, *known], bad="skip", **self.settings)
        self.model.learn_one({**self.row(x), **more})

    def row(self, x: Features) -> dict[str, Any]:
        return {name: x.get(name, 0.0 if name == NOTHING else None) for name in self.names}

    def ask(self, question: str, x: Features) -> Any:
        """What the model says of a row; the same row again costs nothing until something is learned."""
        row = self.row(_usable(x))
        if self.asked != row:
            self.asked, self.answer = row, self._answer(question, row)
        return self.answer

    def _answer(self, question: str, row: dict[str, Any]) -> Any:
        try:
            return None if self.model is None else getattr(self.model, question)(row)
        except StreamError:
            return None  # a row that cannot be read


class Regressor(base.Regressor):
    """A number from the features of a row, the rows before it, and the numbers learned before.

    What the model predicts is averaged with the number before, by weights that follow their
    absolute errors (`norewind.people.hedge`), so that the sum of absolute errors is never much
    above that of repeating the number before. Features are numbers, booleans and text; of a
    text feature sixteen values are told apart.

    Parameters
    ----------
    method
        What learns: `auto`, or a method of `norewind train` without windows.
    budget
        For `auto`, the microseconds that a row may take in a long stream.
    seed
        The seed of the networks.
    settings
        Other settings of `norewind train`, such as `{"cell": "lru", "hidden": 32}`.

    """

    def __init__(self, method: str = "auto", budget: float = 50.0, seed: int = 0, settings: dict | None = None):
        self.method, self.budget, self.seed, self.settings = method, budget, seed, settings
        self._rows = _Rows(models.Forecaster, {"targets": TARGET, "horizon": 0}, _settings(self))
        self._hedge, self._newest = Hedge(2), 0.0

    def learn_one(self, x: Features, y: Any) -> None:
        y = float(y)
        if math.isfinite(y):
            self._hedge.learn(self._predictions(x), y)
            self._newest = y
        self._rows.learn(x, **{TARGET: y})

    def predict_one(self, x: Features) -> float:
        return self._hedge.mixed(self._predictions(x))

    def _predictions(self, x: Features) -> tuple[float, float]:
        found = self._rows.ask("predict_one", x)
        return self._newest if found is None else found, self._newest


class Forecaster(RiverForecaster):
    """The next numbers of a series, from its past and that of other features.

    Beyond the next one, they are forecast from the forecasts before them; features that are
    known ahead are not used yet. As in `Regressor`, the newest number is averaged in; the
    weights follow the errors of the next row. Parameters: see `Regressor`.
    """

    def __init__(self, method: str = "auto", budget: float = 50.0, seed: int = 0, settings: dict | None = None):
        self.method, self.budget, self.seed, self.settings = method, budget, seed, settings
        self._rows = _Rows(models.Forecaster, {"targets": TARGET}, _settings(self), ahead=True)
        self._hedge, self._newest = Hedge(2), 0.0
        self._made: list[float] = []

    def learn_one(self, y: Any, x: Features | None = None) -> None:
        y = float(y)
        if math.isfinite(y):
            self._hedge.learn((self._forecasts(1)[0], self._newest), y)
            self._newest = y
        self._rows.learn(x or {}, **{TARGET: y})
        self._made = []

    def forecast(self, horizon: int, xs: list[Features] | None = None) -> list[float]:
        return [self._hedge.mixed((made, self._newest)) for made in self._forecasts(horizon)]

    def _forecasts(self, horizon: int) -> list[float]:
        """Those of the model; again without cost until something is learned."""
        if len(self._made) < horizon:
            found = [None] * horizon if self._rows.model is None else self._rows.model.forecast(horizon)
            self._made = [self._newest if value is None else value for value in found]
        return self._made[:horizon]


class Classifier(base.Classifier):
    """The probabilities of classes, from the features of a row, the rows before it, and the classes learned before.

    Sixteen classes are told apart. Parameters: see `Regressor`.
    """

    def __init__(self, method: str = "auto", budget: float = 50.0, seed: int = 0, settings: dict | None = None):
        self.method, self.budget, self.seed, self.settings = method, budget, seed, settings
        self._rows = _Rows(models.Classifier, {"target": TARGET}, _settings(self))

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: Features, y: Any) -> None:
        self._rows.learn(x, **{TARGET: y})

    def predict_proba_one(self, x: Features, **kwargs: Any) -> dict[Any, float]:
        return dict(self._rows.ask("predict_proba_one", x) or {})


class AnomalyDetector(base.AnomalyDetector):
    """How far a row lies from what the rows before let expect, in standard deviations. Parameters: see `Regressor`."""

    def __init__(self, method: str = "auto", budget: float = 50.0, seed: int = 0, settings: dict | None = None):
        self.method, self.budget, self.seed, self.settings = method, budget, seed, settings
        self._rows = _Rows(models.AnomalyDetector, {}, _settings(self))

    def learn_one(self, x: Features) -> None:
        self._rows.learn({name: value for name, value in x.items() if type(value) is float or _is_number(value)})

    def score_one(self, x: Features) -> float:
        return self._rows.ask("score_one", x) or 0.0


def _settings(estimator: Any) -> dict[str, Any]:
    chosen = {"budget": estimator.budget} if estimator.method == "auto" else {}
    return {"method": estimator.method, "seed": estimator.seed, **chosen, **(estimator.settings or {})}


def _usable(x: Features) -> dict[str, Any]:
    """Features by name, as numbers and text; others, such as times, need an encoder before."""
    found = {str(name): _value(value) for name, value in x.items()}
    return {name: value for name, value in found.items() if value is not UNUSABLE}


def _is_number(value: Any) -> bool:
    return isinstance(value, Real | np.bool_)


def _value(value: Any) -> Any:
    # Nearly all are floats, and asking whether something is a `Real` takes longer than the rest.
    if type(value) is float or _is_number(value):
        number = float(value)
        return number if math.isfinite(number) and abs(number) < 3e38 else None
    return value if value is None or isinstance(value, str) else UNUSABLE
