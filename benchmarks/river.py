"""norewind compared with River, on the data sets in River's wheel: `python -m benchmarks.river [DATASET ...]`.

All scores are progressive: predict a row, then learn from it. Every method is tried once, with its defaults. (SNARIMAX
and Holt-Winters have none; they are set as in deep-river's benchmark and River's documentation, with the length of a
season.) norewind has three seeds, and the score is their mean. It uses the previous target, so for a fair comparison
River's models are run a second time with the previous target as a feature. Simple rules and the numbers published by
deep-river are included. Writes a record per data set to results/river/records.jsonl.
"""

import sys
import time
from collections import deque
from collections.abc import Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from river import (
    anomaly,
    datasets,
    dummy,
    forest,
    linear_model,
    metrics,
    neighbors,
    preprocessing,
    stats,
    time_series,
)

from norewind.forecasting import river as ours
from norewind.sweeps.record import versions, write_record

OUT = Path("results/river")
SEED = 42
SEEDS = (42, 43, 44)
# As in deep-river's benchmark: the number of rows to forecast, and of rows that are only learned from at first.
AHEAD, SEASON = 3, 12
SHUTTLE = 3_000
# The first rows include compilation, and are not timed.
FIRST = 20


# The repository online-ml/deep-river at commit a4a2bfd930163b912cd0765b3e1d1f1b39d85d01, folder benchmarks. There, the
# forecasts of rows t, t + 1 and t + 2 are compared with rows t + 1, t + 2 and t + 3; here with their own rows. norewind
# and SNARIMAX are measured both ways.
PUBLISHED = {
    "TrumpApproval": {"LSTM": 10.706, "MLP, its best": 1.3152},
    "TrumpApproval-ahead": {"LSTM": 22.410, "N-BEATS, its best": 1.0665, "SNARIMAX": 0.31021},
    "AirlinePassengers": {"LSTM": 295.09, "N-BEATS, its best": 48.518, "SNARIMAX": 32.773},
    "Phishing": {"LSTM": 0.8696, "RNN, its best": 0.8784},
}


class Last:
    """Predicts the previous target."""

    latest: Any = 0.0

    def learn_one(self, x: dict, y: Any) -> None:
        self.latest = y

    def predict_one(self, x: dict) -> Any:
        return self.latest


def progressive(rows: list, model: Any, metric: Any, remembers: bool) -> tuple[float, float]:
    """Score a model progressively.

    Args:
        rows: features and targets.
        model: the model.
        metric: the metric of River.
        remembers: add the previous target as a feature.

    Returns:
        The score, and CPU seconds per row after the first ones.
    """
    latest, began = {"target before": 0.0}, 0.0
    for number, (x, y) in enumerate(rows):
        if number == FIRST:
            began = time.process_time()
        x = {**x, **latest} if remembers else x
        metric.update(y, model.predict_one(x) or 0)
        model.learn_one(x, y)
        latest = {"target before": float(y)} if isinstance(y, int | float) else {f"target before: {y}": 1.0}
    return metric.get(), (time.process_time() - began) / (len(rows) - FIRST)


def compared(rows: list, models: list, metric: Any) -> Iterator[dict[str, Any]]:
    for name, make, remembers in models:
        if name == "norewind":
            yield seeded(lambda seed, make=make: progressive(rows, make(seed=seed), metric(), False))
            continue
        score, seconds = progressive(rows, make(), metric(), remembers)
        yield entry(name + (", with the target before" if remembers else ""), score, seconds)


def seeded(run: Any) -> dict[str, Any]:
    """Run norewind with several seeds. The fastest time counts, since the first run compiles."""
    scores, seconds = zip(*map(run, SEEDS), strict=True)
    return {**entry("norewind", sum(scores) / len(scores), min(seconds)), "scores": [float(f"{s:.6g}") for s in scores]}


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
        ("Mondrian forest", lambda: forest.AMFRegressor(seed=SEED)),
        ("nearest neighbours", lambda: scaled() | neighbors.KNNRegressor()),
    )
    simple = ("the last target", Last, False), ("the mean", lambda: dummy.StatisticRegressor(stats.Mean()), False)
    models = [("norewind", ours.RiverRegressor, False), *simple, *river]
    return compared(rows, models, metrics.MAE)


def classification(rows: list) -> Iterator[dict[str, Any]]:
    scaled = preprocessing.StandardScaler
    river = twice(
        ("softmax regression", lambda: scaled() | linear_model.SoftmaxRegression()),
        ("adaptive random forest", lambda: forest.ARFClassifier(seed=SEED)),
        ("Mondrian forest", lambda: forest.AMFClassifier(seed=SEED)),
        ("nearest neighbours", lambda: scaled() | neighbors.KNNClassifier()),
    )
    simple = ("the last class", Last, False), ("the most frequent class", dummy.PriorClassifier, False)
    models = [("norewind", ours.RiverClassifier, False), *simple, *river]
    return compared(rows, models, metrics.Accuracy)


class Repeated:
    """Forecasts the last value, or the value one season ago."""

    def __init__(self, season: int):
        self.values: deque[float] = deque([0.0] * season, season)

    def learn_one(self, y: float) -> None:
        self.values.append(y)

    def forecast(self, rows: int) -> list[float]:
        return [self.values[ahead % len(self.values)] for ahead in range(rows)]


def ahead(values: list[float], season: int, model: Any, *, late: int = 0) -> tuple[float, float]:
    """Score forecasts of the next rows.

    Args:
        values: the series.
        season: the number of rows at the start that are learned from but not scored.
        model: the model.
        late: compare with rows this many rows too late, as deep-river does.

    Returns:
        The mean absolute error, and CPU seconds per row.
    """
    total, count, began = 0.0, 0, 0.0
    rows = len(values) - AHEAD - late
    for number, value in enumerate(values[:rows], 1):
        if number == FIRST:
            began = time.process_time()
        model.learn_one(value)
        if number >= season:
            errors = zip(model.forecast(AHEAD), values[number + late : number + late + AHEAD], strict=True)
            total, count = total + sum(abs(made - came) for made, came in errors), count + AHEAD
    return total / count, (time.process_time() - began) / (rows - FIRST)


def series(values: list[float], season: int = SEASON) -> Iterator[dict[str, Any]]:
    def snarimax(**orders: int) -> Any:
        return time_series.SNARIMAX(**{"p": 1, "d": 1, "q": 0, "m": season, "sp": 1, "sd": 0, "sq": 0, **orders})

    for late, name in ((0, ""), (1, ", as deep-river compares")):
        ours_too = seeded(lambda seed, late=late: ahead(values, season, ours.RiverForecaster(seed=seed), late=late))
        yield {**ours_too, "model": "norewind" + name}
        yield entry("SNARIMAX" + name, *ahead(values, season, snarimax(), late=late))
    for name, model in (
        ("the last value", Repeated(1)),
        (f"the value {season} rows ago", Repeated(season)),
        ("SNARIMAX, as in River's documentation", snarimax(p=12, q=12, sp=0, sd=1)),
        ("Holt-Winters", time_series.HoltWinters(0.3, 0.1, 0.6, season, multiplicative=True)),
    ):
        yield entry(name, *ahead(values, season, model))


class Farthest:
    """Scores a row by the largest deviation of a feature from its mean so far, in standard deviations."""

    def __init__(self) -> None:
        self.statistics: dict[str, stats.Var] = {}

    def score_one(self, x: dict) -> float:
        known = ((x[name] - var.mean.get(), var.get() ** 0.5) for name, var in self.statistics.items())
        return max((abs(distance) / deviation for distance, deviation in known if deviation > 0), default=0.0)

    def learn_one(self, x: dict) -> None:
        for name, value in x.items():
            self.statistics.setdefault(name, stats.Var()).update(value)


def detected(rows: list, model: Any) -> tuple[float, float]:
    metric, began = metrics.ROCAUC(), 0.0
    for number, (x, y) in enumerate(rows):
        if number == FIRST:
            began = time.process_time()
        metric.update(bool(y), model.score_one(x))
        model.learn_one(x)
    return metric.get(), (time.process_time() - began) / (len(rows) - FIRST)


def anomalies(rows: list) -> Iterator[dict[str, Any]]:
    yield seeded(lambda seed: detected(rows, ours.RiverAnomalyDetector(seed=seed)))
    yield entry("the oddest feature", *detected(rows, Farthest()))
    trees = preprocessing.MinMaxScaler() | anomaly.HalfSpaceTrees(seed=SEED)
    yield entry("half-space trees", *detected(rows, trees))


def numbers(data: Any) -> list:
    return [({name: float(v) for name, v in x.items() if isinstance(v, int | float)}, y) for x, y in data]


def hours(data: Any) -> list:
    return [({"hour": float(x["Time"].hour), "weekday": float(x["Time"].weekday())}, y) for x, y in data]


SETS = {
    "TrumpApproval": ("MAE", lambda: regression(numbers(datasets.TrumpApproval()))),
    "Phishing": ("accuracy", lambda: classification(numbers(datasets.Phishing()))),
    "TrumpApproval-ahead": ("MAE, next 3 rows", lambda: series([y for _, y in datasets.TrumpApproval()])),
    "AirlinePassengers": ("MAE, next 3 months", lambda: series([y for _, y in datasets.AirlinePassengers()])),
    "WaterFlow": ("MAE", lambda: regression(hours(datasets.WaterFlow()))),
    "WaterFlow-ahead": ("MAE, next 3 hours", lambda: series([y for _, y in datasets.WaterFlow()], season=24)),
    "Bananas": ("accuracy", lambda: classification(numbers(datasets.Bananas()))),
    "ImageSegments": ("accuracy", lambda: classification(numbers(datasets.ImageSegments()))),
    "Shuttle": (f"ROC AUC, {SHUTTLE} rows", lambda: anomalies(numbers(datasets.Shuttle().take(SHUTTLE)))),
}


def main() -> None:
    for name in sys.argv[1:] or SETS:
        metric, run = SETS[name]
        print(name, flush=True)
        began = time.process_time()
        published = [
            {"model": f"deep-river's {model}", "score": score} for model, score in PUBLISHED.get(name, {}).items()
        ]
        settings = {"seed": SEED, "seeds": SEEDS, "settings": "defaults"}
        record = {"data": name, "metric": metric, **settings, "rows": list(run()), "published": published}
        more = {"cpu seconds": round(time.process_time() - began, 1), "date": date.today().isoformat()}
        write_record(OUT, name, {**record, **more, "river": version("river"), **versions()})


if __name__ == "__main__":
    main()
