"""norewind beside River, on the data sets in River's wheel: `python -m benchmarks.river [DATASET ...]`.

Everything is scored progressively: predict a row, then learn from it. Every method has one try, with its defaults
(SNARIMAX and Holt-Winters, which have none, as in River's documentation). Ours knows the target before; so that the
comparison is fair, River's are run a second time with that as a feature.
Writes a record per data set to results/river/.
"""

import sys
import time
from collections.abc import Iterator
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from river import anomaly, datasets, forest, linear_model, metrics, preprocessing, time_series

from norewind.people import river as ours
from norewind.runs.record import versions, write_record

OUT = Path("results/river")
SEED = 42
MONTHS = 12
SHUTTLE = 3_000
FIRST = 20
"""Rows that compile, and are not timed."""


class Last:
    """The last target again."""

    newest: Any = 0.0

    def learn_one(self, x: dict, y: Any) -> None:
        self.newest = y

    def predict_one(self, x: dict) -> Any:
        return self.newest


def progressive(rows: list, model: Any, metric: Any, remembers: bool) -> tuple[float, float]:
    """The score, and CPU seconds per row after the first ones."""
    newest, began = {"target before": 0.0}, 0.0
    for number, (x, y) in enumerate(rows):
        if number == FIRST:
            began = time.process_time()
        x = {**x, **newest} if remembers else x
        metric.update(y, model.predict_one(x) or 0)
        model.learn_one(x, y)
        newest = {"target before": float(y)} if isinstance(y, int | float) else {f"target before: {y}": 1.0}
    return metric.get(), (time.process_time() - began) / (len(rows) - FIRST)


def compared(rows: list, models: list, metric: Any) -> Iterator[dict[str, Any]]:
    for name, make, remembers in models:
        score, seconds = progressive(rows, make(), metric(), remembers)
        yield entry(name + (", with the target before" if remembers else ""), score, seconds)


def entry(name: str, score: float, seconds: float) -> dict[str, Any]:
    row = {"model": name, "score": float(f"{score:.6g}"), "rows per second": round(1 / seconds)}
    print(row, flush=True)
    return row


def twice(*models: tuple) -> list:
    return [(name, make, remembers) for remembers in (False, True) for name, make in models]


def regression(rows: list) -> Iterator[dict[str, Any]]:
    scaled = preprocessing.StandardScaler
    river = twice(
        ("linear regression", lambda: scaled() | linear_model.LinearRegression()),
        ("adaptive random forest", lambda: scaled() | forest.ARFRegressor(seed=SEED)),
    )
    models = [("norewind", partial(ours.Regressor, seed=SEED), False), ("the last target", Last, False), *river]
    return compared(rows, models, metrics.MAE)


def classification(rows: list) -> Iterator[dict[str, Any]]:
    scaled = preprocessing.StandardScaler
    river = twice(
        ("softmax regression", lambda: scaled() | linear_model.SoftmaxRegression()),
        ("adaptive random forest", lambda: forest.ARFClassifier(seed=SEED)),
    )
    models = [("norewind", partial(ours.Classifier, seed=SEED), False), ("the last class", Last, False), *river]
    return compared(rows, models, metrics.Accuracy)


def series(rows: list) -> Iterator[dict[str, Any]]:
    """The mean absolute error over the next twelve months, from the thirteenth month on."""
    for name, model in (
        ("norewind", ours.Forecaster(seed=SEED)),
        ("SNARIMAX", time_series.SNARIMAX(p=12, d=1, q=12, m=12, sd=1)),
        ("Holt-Winters", time_series.HoltWinters(0.3, 0.1, 0.6, 12, multiplicative=True)),
    ):
        values, total, count, began = [y for _, y in rows], 0.0, 0, 0.0
        for number, value in enumerate(values[:-MONTHS], 1):
            if number == FIRST:
                began = time.process_time()
            model.learn_one(value)
            if number > MONTHS:
                errors = zip(model.forecast(MONTHS), values[number : number + MONTHS], strict=True)
                total, count = total + sum(abs(made - came) for made, came in errors), count + MONTHS
        yield entry(name, total / count, (time.process_time() - began) / (len(values) - MONTHS - FIRST))


def anomalies(rows: list) -> Iterator[dict[str, Any]]:
    for name, model in (
        ("norewind", ours.AnomalyDetector(seed=SEED)),
        ("half-space trees", preprocessing.MinMaxScaler() | anomaly.HalfSpaceTrees(seed=SEED)),
    ):
        metric, began = metrics.ROCAUC(), 0.0
        for number, (x, y) in enumerate(rows):
            if number == FIRST:
                began = time.process_time()
            metric.update(bool(y), model.score_one(x))
            model.learn_one(x)
        yield entry(name, metric.get(), (time.process_time() - began) / (len(rows) - FIRST))


def numbers(data: Any) -> list:
    return [({name: float(v) for name, v in x.items() if isinstance(v, int | float)}, y) for x, y in data]


def hours(data: Any) -> list:
    return [({"hour": float(x["Time"].hour), "weekday": float(x["Time"].weekday())}, y) for x, y in data]


SETS = {
    "TrumpApproval": ("MAE", lambda: regression(numbers(datasets.TrumpApproval()))),
    "Phishing": ("accuracy", lambda: classification(numbers(datasets.Phishing()))),
    "AirlinePassengers": ("MAE, mean over 12 months", lambda: series(list(datasets.AirlinePassengers()))),
    "WaterFlow": ("MAE", lambda: regression(hours(datasets.WaterFlow()))),
    "ImageSegments": ("accuracy", lambda: classification(numbers(datasets.ImageSegments()))),
    "Shuttle": (f"ROC AUC, {SHUTTLE} rows", lambda: anomalies(numbers(datasets.Shuttle().take(SHUTTLE)))),
}


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or SETS:
        metric, run = SETS[name]
        print(name, flush=True)
        began = time.process_time()
        record = {"data": name, "metric": metric, "seed": SEED, "settings": "defaults", "rows": list(run())}
        more = {"cpu seconds": round(time.process_time() - began, 1), "date": date.today().isoformat()}
        write_record(OUT / f"{name}.json", {**record, **more, "river": version("river"), **versions()})


if __name__ == "__main__":
    main()
