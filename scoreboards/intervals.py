"""Intervals around one-step forecasts of Elec2, by the protocol of Angelopoulos et al. (NeurIPS 2023)."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from norewind.learners.intervals import IntervalLearner
from norewind.learners.learner import Forecasts
from norewind.learners.least_squares import LeastSquares
from norewind.plotting.tables import markdown
from norewind.sweeps.record import Record, read_records, versions, write_record
from scoreboards.board import Board

NAME = "intervals"
ROWS, BURN_IN, MISSES = 2_000, 300, 0.1
# Least squares on the latest three values, fitted to all earlier rows again every half day.
LAGS, FIT_EVERY = 3, 48
# The steps that each method of the protocol may choose from, on the first half of the scored rows.
RATES: dict[str, Sequence[float]] = {
    "ACI": (0.1, 0.01, 0.001, 0.0001, 0.00001),
    "quantile tracker": (0.5, 0.05, 0.01, 0.001, 0.0001),
    "PI control": (0.5, 0.05, 0.01, 0.001, 0.0001),
    "latest 50 errors": (50,),
}
Radii = Callable[[np.ndarray, float], np.ndarray]


def autoregressive_forecasts(values: np.ndarray) -> np.ndarray:
    """Return a forecast of every value from the latest ones before it; the value before while there are too few."""
    made = np.concatenate([values[:1], values[:-1]])
    lagged = np.column_stack([np.ones(len(values) - LAGS), *(values[LAGS - k : len(values) - k] for k in (1, 2, 3))])
    weights = np.zeros(1 + LAGS)
    for row in range(FIT_EVERY, len(values)):
        if row % FIT_EVERY == 0:
            weights = np.linalg.lstsq(lagged[: row - LAGS], values[LAGS:row], rcond=None)[0]
        made[row] = lagged[row - LAGS] @ weights
    return made


def radii_of_aci(errors: np.ndarray, rate: float) -> np.ndarray:
    """Return the radius of each interval by adaptive conformal inference: quantiles of all earlier errors."""
    radii, level = np.full(len(errors), np.inf), MISSES
    for row in range(math.ceil(1 / MISSES), len(errors)):
        wanted = MISSES if row <= BURN_IN else level
        if wanted > 1 / (row + 1):
            radii[row] = np.quantile(errors[:row], 1 - min(wanted, 1.0), method="higher")
        if row > BURN_IN:
            level += rate * (MISSES - (errors[row] > radii[row]))
    return radii


def radii_of_tracker(errors: np.ndarray, rate: float) -> np.ndarray:
    """Return the radius of each interval by online gradient descent on the pinball loss of the errors."""
    radii = np.zeros(len(errors))
    for row in range(len(errors) - 1):
        radii[row + 1] = radii[row] + rate * ((errors[row] > radii[row]) - MISSES)
    return radii


def radii_of_control(errors: np.ndarray, rate: float) -> np.ndarray:
    """Return the radius of each interval by conformal PI control: the tracker, and an integral of its misses."""
    rows = len(errors) - BURN_IN
    saturation = 2 / math.pi * (math.ceil(math.log(rows) * 0.01) - 1 / math.log(rows))
    gain, tracked, missed, radii = float(np.quantile(errors[:BURN_IN], 1 - MISSES)), 0.0, 0.0, np.zeros(len(errors))
    for row in range(len(errors) - 1):
        miss = errors[row] > radii[row]
        tracked += rate * (miss - MISSES)
        after = row - BURN_IN
        missed += miss - MISSES if after > 0 else 0.0
        angle = missed * math.log(after + 1) / (saturation * (after + 1)) if after > 0 else 0.0
        turned = math.copysign(math.inf, angle) if abs(angle) >= math.pi / 2 else math.tan(angle)
        radii[row + 1] = tracked + gain * turned
    return radii


def radii_of_latest(errors: np.ndarray, rate: float) -> np.ndarray:
    """Return the quantile of the latest errors at each row; `rate` is how many of them."""
    radii = np.full(len(errors), np.inf)
    for row in range(math.ceil(1 / MISSES), len(errors)):
        radii[row] = np.quantile(errors[max(0, row - int(rate)) : row], 1 - MISSES, method="higher")
    return radii


METHODS: dict[str, Radii] = {
    "ACI": radii_of_aci,
    "quantile tracker": radii_of_tracker,
    "PI control": radii_of_control,
    "latest 50 errors": radii_of_latest,
}


def own_bounds(values: np.ndarray, forecasts: np.ndarray) -> np.ndarray:
    """Return our bounds around these forecasts (rows, 2). Errors are in deviations of the rows before any is scored."""
    mean, deviation = values[:BURN_IN].mean(), values[:BURN_IN].std()
    scaled, made = ((part[:, None] - mean) / deviation for part in (values, forecasts))
    learner = IntervalLearner(LeastSquares(1, 1, steps=(1,)), [1 - MISSES], targets=1)
    # The forecast of each row was made at the row before it.
    ahead = np.concatenate([made[1:], made[-1:]])
    found = learner.add_bounds(learner.start(), np.zeros(len(values), np.int64), scaled, Forecasts(ahead, made))
    return mean + deviation * found.due[:, 1:].astype(np.float64)


def scores(values: np.ndarray, bounds: np.ndarray) -> dict[str, float]:
    """Return coverage, mean width, share of unbounded intervals, and mean interval score (Winkler) of the bounded."""
    low, high = bounds.T
    is_bounded = np.isfinite(high - low)
    outside = np.maximum(np.maximum(low - values, values - high), 0)[is_bounded]
    width = (high - low)[is_bounded]
    return {
        "coverage": float(np.mean((low <= values) & (values <= high))),
        "width": float(width.mean()),
        "unbounded": float(1 - is_bounded.mean()),
        "score": float(np.mean(width + 2 / MISSES * outside)),
    }


def run(data: Path, results: Path, quick: bool) -> None:
    """Write a record for each base forecast, with the scores of all methods."""
    table = np.genfromtxt(data / "electricity.csv", delimiter=",", names=True, max_rows=ROWS)
    values = np.asarray(table["nswdemand"], np.float64)
    half = (BURN_IN + len(values)) // 2
    bases = {"AR(3)": autoregressive_forecasts(values), "last value": np.concatenate([values[:1], values[:-1]])}
    for base, forecasts in bases.items():
        if base in read_records(results):
            continue
        errors, began, found = np.abs(values - forecasts), time.process_time(), {}
        bounds = own_bounds(values, forecasts)
        seconds = time.process_time() - began
        for part, rows in {"first half": slice(BURN_IN, half), "second half": slice(half, None)}.items():
            found[part] = {"norewind": scores(values[rows], bounds[rows])}
        for method, radii_of in METHODS.items():
            made = {rate: radii_of(errors, rate) for rate in RATES[method]}
            tried = {rate: np.column_stack([forecasts - radii, forecasts + radii]) for rate, radii in made.items()}
            first = {rate: scores(values[BURN_IN:half], each[BURN_IN:half]) for rate, each in tried.items()}
            chosen = min(first, key=lambda rate: first[rate]["score"])
            found["first half"][method] = first[chosen] | {"rate": chosen}
            found["second half"][method] = scores(values[half:], tried[chosen][half:]) | {"rate": chosen}
        settings = {"rows": len(values), "burn_in": BURN_IN, "misses": MISSES, "column": "nswdemand"}
        write_record(results, base, {**settings, "seconds": seconds, "results": found, **versions()})


def quote(records: dict[str, Record]) -> dict[str, str]:
    """Return the table of the page, our result and its time."""
    if not records:
        return {}
    rows = []
    for base, record in records.items():
        for method, found in record["results"]["second half"].items():
            numbers = (f"{found['coverage']:.1%}".replace("%", " %"), f"{found['width']:.4f}", f"{found['score']:.4f}")
            rows.append((base, method, found.get("rate", ""), *numbers))
    own = records["AR(3)"]["results"]["second half"]["norewind"]
    header = ["forecast", "intervals", "step chosen", "coverage", "mean width", "interval score"]
    seconds = sum(record["seconds"] for record in records.values())
    return {
        "table": markdown(header, rows),
        "ours": f"{100 * own['coverage']:.1f} %, {own['score']:.4f}",
        "microseconds": f"{1e6 * seconds / ROWS / len(records):.0f}",
    }


BOARD = Board(
    NAME,
    "Intervals: Elec2",
    "coverage of 90 % intervals, and interval score (lower is better)",
    "ACI 90.4 %, 0.1139",
    "classes",
    "https://www.openml.org/d/151",
    run,
    quote,
)
