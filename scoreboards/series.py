"""The default method on series that nobody here made, compared with what a person would use who knows each of them.

    python -m scoreboards.series DATA [--half even|odd|all] [--quick] [--only NAME ...] [--without RIVAL ...]

DATA has the folders `series`, `classes` and `nab`; the other series come from packages (`pip install statsmodels river
pmdarima vega_datasets sktime statsforecast lightgbm`). Everything is one pass: a forecast of the next row and of one
farther row is made at every row, from the rows up to it. The score is the root mean squared error from the tenth row
on. Settings were chosen on the series whose name's CRC-32 is even. Records are in results/series, and a run that is
interrupted continues where it was.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from norewind.sweeps.record import read_records, versions, write_record
from scoreboards.series_data import NumberSeries, is_even, load_series
from scoreboards.series_rivals import rivals_of

RESULTS = Path("results/series")
FIRST_ROW = 10
QUICK_ROWS = 300
SLOW = ("ETS", "Theta", "AutoARIMA", "MSTL", "LightGBM")
# Every series is forecast so many rows ahead, and its own second step.
STEPS = 1, 6, 24
OURS = "norewind"


def default_forecasts(series: NumberSeries, steps: Sequence[int], budget: float) -> np.ndarray:
    """Return the forecasts that the default method makes at each row (rows, steps), in the units of the series.

    Args:
        series: the series. Its periods are not used.
        steps: the steps.
        budget: the microseconds that a row may take.
    """
    from norewind.streams.table.scaling import TableLayout, init_series, scale_rows
    from norewind.training import auto
    from norewind.training.open_stream import StreamShape

    none, column = np.zeros(0, np.int64), np.zeros(1, np.int64)
    layout = TableLayout(
        1,
        np.array(steps),
        column,
        column,
        none,
        none,
        np.zeros(0),
        none,
        True,
        True,
        classes=False,
        before=False,
        with_scales=True,
    )
    samples = scale_rows(layout, init_series(layout), series.values[:, None].astype(np.float64))
    xs, targets, scales = samples[0], samples[1], samples[4]
    learner, run = auto.series(StreamShape(1, 1, False, 1, tuple(steps), (0,), scales=3), False, budget, 0)
    _, _, (made, _) = learner.scan(run, xs, targets, outputs=True)
    forecasts = scales[:, :, 0] + scales[:, :, 1] * made
    # There are no units before the tenth row.
    return np.where(np.isfinite(forecasts), forecasts, series.values[:, None])


def errors_of(series: NumberSeries, forecasts: np.ndarray, steps: Sequence[int]) -> list[float]:
    """Return the root mean squared error of each step.

    Args:
        series: the series.
        forecasts: those made at each row (rows, steps).
        steps: the steps.
    """
    values, errors = series.values, []
    for place, step in enumerate(steps):
        squares = (values[FIRST_ROW + step :] - forecasts[FIRST_ROW : len(values) - step, place]) ** 2
        errors.append(float(np.sqrt(squares.mean())))
    return errors


def score_series(name: str, series: NumberSeries, folder: Path, without: Sequence[str], budget: float) -> None:
    """Write a record for every method on a series, if there is none yet.

    Args:
        name: the name of the series.
        series: the series.
        folder: the folder of the records.
        without: the methods to leave out.
        budget: the microseconds that a row of the default may take.
    """
    steps = sorted({*STEPS, series.far})
    methods = {OURS: lambda steps: default_forecasts(series, steps, budget), **rivals_of(series)}
    for method, forecast in methods.items():
        if f"{name}/{method}" in read_records(folder) or method in without:
            continue
        began = time.process_time()
        errors = errors_of(series, forecast(steps), steps)
        seconds = time.process_time() - began
        entries = {"series": name, "method": method, "rows": len(series.values), "steps": list(steps), "rmse": errors}
        write_record(folder, f"{name}/{method}", {**entries, "seconds": round(seconds, 2), **versions()})


def ratios_of(folder: Path, names: Sequence[str]) -> list[tuple[str, int, float, str]]:
    """Return, for each series and step, our error relative to that of the best other method, and the latter's name.

    Args:
        folder: the folder of the records.
        names: the series.
    """
    records, found = read_records(folder), []
    for name in names:
        own = [record for record in records.values() if record["series"] == name]
        ours = next((record for record in own if record["method"] == OURS), None)
        others = [record for record in own if record["method"] != OURS]
        if ours is None or not others:
            continue
        for place, step in enumerate(ours["steps"]):
            best = min(others, key=lambda record, place=place: record["rmse"][place])
            found.append((name, step, ours["rmse"][place] / best["rmse"][place], best["method"]))
    return found


def report(folder: Path, names: Sequence[str]) -> None:
    """Print how the default compares on every series, and the geometric means of both halves.

    Args:
        folder: the folder of the records.
        names: the series.
    """
    ratios = ratios_of(folder, names)
    for name, step, ratio, best in ratios:
        print(f"{name:36} {step:3} ahead  {ratio:6.3f}  {best}")
    for half, chosen in (("even", True), ("odd", False)):
        part = np.array([ratio for name, _, ratio, _ in ratios if is_even(name) == chosen])
        if len(part):
            mean, above = np.exp(np.log(part).mean()), int(np.sum(part > 1.05))
            print(f"{half}: geometric mean {mean:.3f}, worst {part.max():.3f}, {above} of {len(part)} above 1.05")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scoreboards.series", description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--half", choices=["even", "odd", "all"], default="all")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--without", nargs="*", default=[])
    parser.add_argument("--budget", type=float, default=100.0)
    parser.add_argument("--quick", action="store_true", help="the first rows of each series, without slow methods")
    options = parser.parse_args()
    found = load_series(options.data)
    halves = {"even": (True,), "odd": (False,), "all": (True, False)}[options.half]
    names = [name for name in found if is_even(name) in halves and (not options.only or name in options.only)]
    out = options.out / "quick" if options.quick else options.out
    without = (*options.without, *(SLOW if options.quick else ()))
    for name in names:
        series = found[name]
        if options.quick:
            series = series._replace(values=series.values[:QUICK_ROWS])
        score_series(name, series, out, without, 0.0 if options.quick else options.budget)
    report(out, names)


if __name__ == "__main__":
    main()
