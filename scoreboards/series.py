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

from norewind.plotting.tables import markdown
from norewind.sweeps.record import Record, read_records, versions, write_record
from scoreboards.board import Board
from scoreboards.series_data import NumberSeries, is_even, load_series
from scoreboards.series_rivals import rivals_of

RESULTS = Path("results/series")
FIRST_ROW = 10
QUICK_ROWS = 300
SLOW = ("ETS", "Theta", "AutoARIMA", "MSTL", "LightGBM")
# Every series is forecast so many rows ahead, and its own second step.
STEPS = 1, 6, 24
OURS = "norewind"
# The microseconds that a row of the default may take: without networks, which are compiled for every set of steps.
BUDGET = 30.0


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
        entries |= {"budget": budget} if method == OURS else {}
        write_record(folder, f"{name}/{method}", {**entries, "seconds": round(seconds, 2), **versions()})


def ratios_of(records: dict[str, Record], names: Sequence[str]) -> list[tuple[str, int, float, str]]:
    """Return, for each series and step, our error relative to that of the best other method, and the latter's name.

    Args:
        records: the records by name.
        names: the series.
    """
    found = []
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


def halves_of(ratios: Sequence[tuple[str, int, float, str]]) -> dict[str, dict[str, float]]:
    """Return the geometric mean, the worst ratio and the share above 1.05 of each half.

    Args:
        ratios: what `ratios_of` returns.
    """
    found = {}
    for half, chosen in (("even", True), ("odd", False)):
        part = np.array([ratio for name, _, ratio, _ in ratios if is_even(name) == chosen])
        if len(part):
            mean, above = float(np.exp(np.log(part).mean())), int(np.sum(part > 1.05))
            found[half] = {"mean": mean, "worst": float(part.max()), "above": above, "count": len(part)}
    return found


def report(folder: Path, names: Sequence[str]) -> None:
    """Print how the default compares on every series, and the geometric means of both halves.

    Args:
        folder: the folder of the records.
        names: the series.
    """
    ratios = ratios_of(read_records(folder), names)
    for name, step, ratio, best in ratios:
        print(f"{name:36} {step:3} ahead  {ratio:6.3f}  {best}")
    for half, part in halves_of(ratios).items():
        print(f"{half}: geometric mean {part['mean']:.3f}, worst {part['worst']:.3f}, ", end="")
        print(f"{part['above']} of {part['count']} above 1.05")


def run(data: Path, out: Path, quick: bool) -> None:
    """Score the default method and its alternatives on all series.

    Args:
        data: the folder `series`, next to which are the folders `classes` and `nab`.
        out: the folder of the records.
        quick: whether to use only the first rows, without slow methods.
    """
    found = load_series(data.parent)
    for name, series in found.items():
        series = series._replace(values=series.values[:QUICK_ROWS]) if quick else series
        score_series(name, series, out, SLOW if quick else (), BUDGET)
    report(out, list(found))


def quote(records: dict[str, Record]) -> dict[str, str]:
    """Return how both halves compare, the ratios of every series, and the time per row.

    Args:
        records: the records by name.
    """
    ours = [record for record in records.values() if record["method"] == OURS]
    if not ours:
        return {}
    names = sorted(record["series"] for record in ours)
    ratios = ratios_of(records, names)
    halves = halves_of(ratios)
    rows = []
    for name in names:
        own = {step: (ratio, best) for series, step, ratio, best in ratios if series == name}
        last = max(own)
        shown = [f"{own[step][0]:.2f}" for step in STEPS if step in own]
        rows.append((name, "even" if is_even(name) else "odd", *shown, own[1][1], own[last][1]))
    lines = {
        half: f"{part['mean']:.3f} | {part['worst']:.2f} | {part['above']} of {part['count']}"
        for half, part in halves.items()
    }
    table = markdown(["series", "half", "1", "6", "24", "best other, 1 ahead", "best other, far ahead"], rows)
    means = {half: f"{part['mean']:.3f}" for half, part in halves.items()}
    summary = f"{means.get('odd', '')} (the half that settings were chosen on: {means.get('even', '')})"
    cost = np.median([1e6 * record["seconds"] / record["rows"] for record in ours])
    return {**lines, "table": table, "count": str(len(names)), "ours": summary, "microseconds": f"{cost:.0f}"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scoreboards.series", description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--half", choices=["even", "odd", "all"], default="all")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--without", nargs="*", default=[])
    parser.add_argument("--budget", type=float, default=BUDGET)
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


BOARD = Board(
    "series",
    "Series: numbers of all kinds",
    "error relative to the best of a dozen alternatives for each series and step, lower is better",
    "1 (the best alternative, chosen afterwards)",
    "series",
    "the packages statsmodels, river, pmdarima, vega_datasets and sktime, and the other benchmarks' folders",
    run,
    quote,
)


if __name__ == "__main__":
    main()
