"""The forecasting models as estimators of scikit-learn: run `pip install '.[sklearn]'` in a clone."""

from typing import Any, Self

import numpy as np

from norewind.forecasting import models
from norewind.forecasting.model_settings import settings_of
from norewind.streams.table.columns import CATEGORIES
from norewind.wording import missing_package

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise ImportError(f"norewind.forecasting.sklearn: {missing_package('scikit-learn', 'sklearn')}.") from None

TARGET = "(target)"


class _StreamEstimator(BaseEstimator):
    """The base class of the estimators: a model inside that learns from rows in order.

    Args:
        method: the method of learning, as for `norewind train`.
        budget: for `auto`, the microseconds that a row may take in a long stream.
        seed: the seed of the networks.
        settings: other settings of `norewind train`, such as `{"cell": "lru", "hidden": 32}`.

    Attributes:
        model_: the model inside, a `Forecaster` or a `Classifier`.
    """

    def __init__(self, method: str = "auto", budget: float = 50.0, seed: int = 0, settings: dict | None = None):
        self.method = method
        self.budget = budget
        self.seed = seed
        self.settings = settings

    def _forget(self) -> None:
        for name in ("model_", "classes_"):
            if hasattr(self, name):
                delattr(self, name)

    def _learn(self, X: Any, y: np.ndarray, model_class: type) -> Self:
        """Learn from checked rows, with a new model unless there is one."""
        if not hasattr(self, "model_"):
            self.model_ = model_class(TARGET, horizon=0, inputs=list(_row(X[0])), **settings_of(self))
        self.model_.fit({**_row(x), TARGET: target} for x, target in zip(X, y.tolist(), strict=True))
        return self

    def _checked_rows(self, X: Any) -> list[dict[str, float]]:
        check_is_fitted(self, "model_")
        return [_row(x) for x in np.asarray(validate_data(self, X, reset=False))]


class StreamRegressor(RegressorMixin, _StreamEstimator):
    """Predicts a number from the inputs of a row, the rows before it, and their targets.

    The arguments are the method, the budget, the seed and other settings of `norewind train`, as for `RiverRegressor`.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from rows in order, from the beginning.

        Args:
            X: the inputs, by row and column.
            y: the target of each row.
        """
        self._forget()
        return self.partial_fit(X, y)

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn from more rows.

        Args:
            X: the inputs, by row and column.
            y: the target of each row.
        """
        X, y = validate_data(self, X, y, reset=not hasattr(self, "model_"), y_numeric=True)
        self._latest = float(y[-1])
        return self._learn(X, y, models.Forecaster)

    def predict(self, X: Any) -> np.ndarray:
        """Predict the target of each row as if it came next; nothing is learned.

        A target with too few values, or with a constant one, is predicted to keep its last value.

        Args:
            X: the inputs, by row and column.
        """
        found = [self.model_.predict_one(row) for row in self._checked_rows(X)]
        return np.array([self._latest if value is None else value for value in found])


class StreamClassifier(ClassifierMixin, _StreamEstimator):
    """Predicts the class of a row from its inputs, the rows before it, and their classes.

    At most sixteen classes are distinguished. The arguments are those of `StreamRegressor`.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from rows in order, from the beginning.

        Args:
            X: the inputs, by row and column.
            y: the class of each row.
        """
        self._forget()
        return self.partial_fit(X, y)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn from more rows.

        Args:
            X: the inputs, by row and column.
            y: the class of each row.
            classes: all classes; by default those that have appeared.

        Raises:
            ValueError: there are more than sixteen classes.
        """
        X, y = validate_data(self, X, y, reset=not hasattr(self, "model_"))
        check_classification_targets(y)
        known = [part for part in (getattr(self, "classes_", None), classes) if part is not None]
        classes_ = np.unique(np.concatenate([*known, y]))
        if len(classes_) > CATEGORIES:
            raise ValueError(f"y has {len(classes_)} classes, but at most {CATEGORIES} are distinguished.")
        self.classes_ = classes_
        # In parentheses, so that no class looks like a missing value, and spaces count.
        return self._learn(X, np.array([_name(label) for label in y.tolist()]), models.Classifier)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict the probability of each of `classes_` for each row as if it came next; nothing is learned.

        Args:
            X: the inputs, by row and column.
        """
        rows = [self.model_.predict_proba_one(row) for row in self._checked_rows(X)]
        return np.array([[row.get(_name(label), 0.0) for label in self.classes_.tolist()] for row in rows])

    def predict(self, X: Any) -> np.ndarray:
        """Predict the most likely class of each row as if it came next; nothing is learned.

        Args:
            X: the inputs, by row and column.
        """
        likeliest = self.predict_proba(X).argmax(axis=1)
        return self.classes_[likeliest]


def _row(x: np.ndarray) -> dict[str, float]:
    return {f"x{place}": value for place, value in enumerate(x.tolist())}


def _name(label: Any) -> str:
    return f"({label})"
