"""norewind beside River, on the data sets in River's wheel: `python -m benchmarks.river [DATASET ...]`.

Everything is scored progressively: predict a row, then learn from it. Our estimators remember the target before; so
that the comparison is fair, River's are also given it as a feature. Writes a record per data set to results/river/.
"""

import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from river import base, datasets, ensemble, forest, linear_model, metrics, neighbors, preprocessing, time_series

from norewind.people import river as ours
from norewind.runs.record import versions, write_record

OUT = Path("results/river")
SEED = 42


class Before(base.Transformer):
    """The target before as one more feature, for the estimators of River."""

    newest: Any = 0.0

    def transform_one(self, x: dict) -> dict:
        return {**x, "y before": float(self.newest)}


class LastTarget(base.Regressor):
    """The last target again."""

    newest: Any = 0.0

    def learn_one(self, x, y):
        self.newest = y

    def predict_one(self, x):
        return self.newest


def numbers(x: dict) -> dict:
    return {name: float(value) for name, value in x.items() if isinstance(value, int | float)}


def progressive(rows: list, model: Any, metric: Any, remembers: bool) -> tuple[float, float]:
    """The score, and CPU seconds after the first 20 rows, which compile, per row."""
    before, began = Before(), 0.0
    for number, (x, y) in enumerate(rows):
        if number == 20:
            began = time.process_time()
        x = before.transform_one(numbers(x)) if remembers else numbers(x)
        metric.update(y, model.predict_one(x) or 0)
        model.learn_one(x, y)
        before.newest = y
    return metric.get(), (time.process_time() - began) / (len(rows) - 20)


def regressors() -> Iterator[tuple[str, Any, bool]]:
    scaler = preprocessing.StandardScaler
    yield "norewind (auto)", ours.Regressor(), False
    yield "the last target", LastTarget(), False
    for remembers in (False, True):
        yield "linear regression", scaler() | linear_model.LinearRegression(), remembers
        yield "nearest neighbours", scaler() | neighbors.KNNRegressor(), remembers
        yield "adaptive random forest", scaler() | forest.ARFRegressor(seed=SEED), remembers


def classifiers() -> Iterator[tuple[str, Any, bool]]:
    scaler = preprocessing.StandardScaler
    yield "norewind (auto)", ours.Classifier(classes=2), False
    for remembers in (False, True):
        yield "logistic regression", scaler() | linear_model.LogisticRegression(), remembers
        yield "adaptive random forest", forest.ARFClassifier(seed=SEED), remembers
        bagged = ensemble.ADWINBaggingClassifier(linear_model.LogisticRegression(), seed=SEED)
        yield "bagged logistic regression", scaler() | bagged, remembers


def table(data: Any, models: Callable, metric: Callable) -> list[dict[str, Any]]:
    rows = []
    for name, model, remembers in models():
        score, seconds = progressive(list(data), model, metric(), remembers)
        rows.append(_row(name + (", with the target before" if remembers else ""), score, seconds))
    return rows


def airline() -> list[dict[str, Any]]:
    """The mean absolute error over the next twelve months, from every month on, as in River's documentation."""
    found = []
    snarimax = time_series.SNARIMAX(p=12, d=1, q=12, m=12, sd=1)
    for name, model in (
        ("norewind (auto)", ours.Forecaster()),
        ("SNARIMAX", snarimax),
        ("Holt-Winters", time_series.HoltWinters(0.3, 0.1, 0.6, 12, multiplicative=True)),
    ):
        began = time.process_time()
        score = time_series.evaluate((({}, y) for _, y in datasets.AirlinePassengers()), model, metrics.MAE(), 12)
        mean = sum(one.get() for one in score.metrics) / len(score.metrics)
        found.append(_row(name, mean, None) | {"cpu seconds": round(time.process_time() - began, 1)})
    return found


def _row(name: str, score: float, seconds: float | None) -> dict[str, Any]:
    row = {"model": name, "score": round(score, 4), "rows per second": round(1 / seconds) if seconds else None}
    print(row, flush=True)
    return row


SETS: dict[str, tuple[str, Callable[[], list[dict[str, Any]]]]] = {
    "TrumpApproval": ("MAE", lambda: table(datasets.TrumpApproval(), regressors, metrics.MAE)),
    "AirlinePassengers": ("MAE, mean over 12 months", airline),
    "Phishing": ("accuracy", lambda: table(datasets.Phishing(), classifiers, metrics.Accuracy)),
    "WaterFlow": ("MAE", lambda: table(((_hour(x), y) for x, y in datasets.WaterFlow()), regressors, metrics.MAE)),
}


def _hour(x: dict) -> dict:
    return {"hour": x["Time"].hour, "weekday": x["Time"].weekday()}


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or SETS:
        metric, run = SETS[name]
        print(name, flush=True)
        began = time.process_time()
        record = {"data": name, "metric": metric, "seed": SEED, "rows": run()}
        more = {"cpu seconds": round(time.process_time() - began, 1), "date": date.today().isoformat()}
        write_record(OUT / f"{name}.json", {**record, **more, "river": version("river"), **versions()})


if __name__ == "__main__":
    main()
