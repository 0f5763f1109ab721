"""The forecaster as a forecaster of sktime: run `pip install '.[sktime]'` in a clone."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from norewind.forecasting import models
from norewind.forecasting.model_settings import settings_of
from norewind.wording import missing_package

try:
    import pandas as pd
    from sktime.forecasting.base import BaseForecaster  # pyright: ignore[reportMissingImports]
except ImportError:
    raise ImportError(f"norewind.forecasting.sktime: {missing_package('sktime', 'sktime')}.") from None


class StreamForecaster(BaseForecaster):
    """Forecasts a series, or several together, and learns from each value once: `update` continues where `fit` ended.

    `fit(a).update(b)` is the same as `fit` on `a` and then `b`. Values up to `horizon` ahead are forecast directly, and
    later ones from the forecasts. Exogenous data and the index are not used.

    Args:
        horizon: the number of values ahead that are forecast directly.
        method: the method of learning, as for `norewind train`.
        budget: for `auto`, the microseconds that a row may take in a long stream.
        seed: the seed of the networks.
        settings: other settings of `norewind train`, such as `{"cell": "lru", "hidden": 32}`.

    Attributes:
        model_: the `norewind.Forecaster` inside.

    >>> import pandas as pd
    >>> from norewind.forecasting.sktime import StreamForecaster
    >>> series = pd.Series([5.0, 1.0] * 20)
    >>> forecaster = StreamForecaster(budget=30).fit(series[:30]).update(series[30:])
    >>> forecaster.predict([1, 2]).round().tolist()
    [5.0, 1.0]
    """

    _tags: ClassVar[dict[str, Any]] = {
        "y_inner_mtype": "pd.DataFrame",
        "capability:multivariate": True,
        "capability:exogenous": False,
        "capability:insample": False,
        "capability:pred_int": True,
        "capability:pred_int:insample": False,
        "capability:missing_values": True,
        "capability:update": True,
        "requires-fh-in-fit": False,
        "authors": ["norewind"],
    }

    # The series is not kept: the memory that a model needs stays constant.
    _config: ClassVar[dict[str, Any]] = {"remember_data": False}

    def __init__(
        self,
        horizon: int = 1,
        method: str = "auto",
        budget: float = 50.0,
        seed: int = 0,
        settings: dict | None = None,
    ):
        self.horizon = horizon
        self.method = method
        self.budget = budget
        self.seed = seed
        self.settings = settings
        super().__init__()

    def _fit(self, y: pd.DataFrame, X: Any = None, fh: Any = None) -> Self:
        names = [f"y{place}" for place in range(y.shape[1])]
        self.model_ = models.Forecaster(names, self.horizon, inputs=names, **settings_of(self))
        return self._learn(y)

    def _update(self, y: pd.DataFrame, X: Any = None, update_params: bool = True) -> Self:
        # A stream cannot be read without learning from it, so `update_params` makes no difference. Values that were
        # passed before are not learned from again.
        return self._learn(y.loc[y.index > self._latest_label])

    def _learn(self, y: pd.DataFrame) -> Self:
        if len(y):
            self.model_.fit(y.astype(np.float64).set_axis([f"y{place}" for place in range(y.shape[1])], axis=1))
            self._latest_label = y.index[-1]
        return self

    def _predict(self, fh: Any, X: Any = None) -> pd.DataFrame:
        return self._ahead("forecast", fh)

    def _predict_var(self, fh: Any = None, X: Any = None, cov: bool = False) -> pd.DataFrame:
        return self._ahead("deviation", fh) ** 2

    def _ahead(self, entry: str, fh: Any) -> pd.DataFrame:
        """Return the entry of each of the rows ahead that were asked for."""
        steps = np.asarray(fh.to_relative(self.cutoff), int)
        names = self._get_varnames()
        rows = self.model_.values_ahead(entry, int(steps.max()))
        rows = [[row] if len(names) == 1 else [*row.values()] for row in rows]
        values = np.array(rows, np.float64)[steps - 1]
        return pd.DataFrame(values, index=fh.to_absolute_index(self.cutoff), columns=names)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> Sequence[dict[str, Any]]:
        """Return arguments for sktime's tests.

        Args:
            parameter_set: ignored.
        """
        return [{"budget": 30.0}, {"horizon": 3, "budget": 30.0}]
