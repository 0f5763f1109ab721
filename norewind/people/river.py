"""The estimators for people as estimators of River: `pip install norewind[river]`."""

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, ClassVar

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


class _Estimator:
    """What all have in common: a model that is made at the first row, which names the features.

    Features that appear later are ignored. Subclasses say which model, `kind`, and its own settings, `own`; `ahead` if
    the target is an input, too.
    """

    kind: type = models.Forecaster
    own: ClassVar[dict[str, Any]] = {}
    ahead = False

    def __init__(self, method: str = "auto", budget: float = 50.0, seed: int = 0, settings: dict | None = None):
        self.method, self.budget, self.seed, self.settings = method, budget, seed, settings
        self._model: Any = None
        self._names: list[str] = []
        self._asked: Any = None
        self._answer: Any = None
        self._hedge, self._newest = Hedge(2), 0.0

    def _learn(self, x: Features, **more: Any) -> None:
        x, self._asked = _usable(x), None
        if self._model is None:
            # In an order that does not depend on how they were sent.
            self._names = sorted(x) or [NOTHING]
            inputs = [*self._names, *([TARGET] if self.ahead else [])]
            chosen = {"method": self.method, "seed": self.seed}
            chosen |= {"budget": self.budget} if self.method == "auto" else {}
            self._model = self.kind(**self.own, inputs=inputs, bad="skip", **chosen, **(self.settings or {}))
        self._model.learn_one({**self._row(x), **more})

    def _learn_number(self, x: Features, y: float, predict: Callable[[], Sequence[float]]) -> None:
        """Learn a target, which `predict()` predicts."""
        if math.isfinite(y):
            self._hedge.learn(predict(), y)
            self._newest = y
        self._learn(x, **{TARGET: y})

    def _row(self, x: Features) -> dict[str, Any]:
        return {name: x.get(name, 0.0 if name == NOTHING else None) for name in self._names}

    def _ask(self, question: str, x: Features) -> Any:
        """The model's answer about a row; None if it cannot be read. Asking again costs nothing until it learns."""
        row = self._row(_usable(x))
        if self._asked != row:
            self._asked = row
            try:
                self._answer = None if self._model is None else getattr(self._model, question)(row)
            except StreamError:
                self._answer = None
        return self._answer


class Regressor(_Estimator, base.Regressor):
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

    own: ClassVar = {"targets": TARGET, "horizon": 0}

    def learn_one(self, x: Features, y: Any) -> None:
        self._learn_number(x, float(y), lambda: self._predictions(x))

    def predict_one(self, x: Features) -> float:
        return self._hedge.mixed(self._predictions(x))

    def _predictions(self, x: Features) -> tuple[float, float]:
        found = self._ask("predict_one", x)
        return self._newest if found is None else found, self._newest


class Forecaster(_Estimator, RiverForecaster):
    """The next numbers of a series, from its past and that of other features.

    Beyond the next one, they are forecast from the forecasts before them; features that are
    known ahead are not used yet. As in `Regressor`, the newest number is averaged in; the
    weights follow the errors of the next row. Parameters: see `Regressor`.
    """

    own: ClassVar = {"targets": TARGET}
    ahead = True
    _made: Sequence[float] = ()

    def learn_one(self, y: Any, x: Features | None = None) -> None:
        self._learn_number(x or {}, float(y), lambda: (self._forecasts(1)[0], self._newest))
        self._made = ()

    def forecast(self, horizon: int, xs: list[Features] | None = None) -> list[float]:
        return [self._hedge.mixed((made, self._newest)) for made in self._forecasts(horizon)]

    def _forecasts(self, horizon: int) -> Sequence[float]:
        """Those of the model; again without cost until something is learned."""
        if len(self._made) < horizon:
            found = [None] * horizon if self._model is None else self._model.forecast(horizon)
            self._made = [self._newest if value is None else value for value in found]
        return self._made[:horizon]


class Classifier(_Estimator, base.Classifier):
    """The probabilities of classes, from the features of a row, the rows before it, and the classes learned before.

    Sixteen classes are told apart. Parameters: see `Regressor`.
    """

    kind = models.Classifier
    own: ClassVar = {"target": TARGET}

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: Features, y: Any) -> None:
        self._learn(x, **{TARGET: y})

    def predict_proba_one(self, x: Features, **kwargs: Any) -> dict[Any, float]:
        return dict(self._ask("predict_proba_one", x) or {})


class AnomalyDetector(_Estimator, base.AnomalyDetector):
    """How far a row lies from what the previous rows suggest, in standard deviations. Parameters: see `Regressor`."""

    kind = models.AnomalyDetector

    def learn_one(self, x: Features) -> None:
        self._learn({name: value for name, value in x.items() if type(value) is float or _is_number(value)})

    def score_one(self, x: Features) -> float:
        return self._ask("score_one", x) or 0.0


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
