"""ETTh2 and Exchange by the protocol of DSOF (Lau et al., ICLR 2025), without leakage: `norewind.Forecaster`.

All columns are forecast from all columns. Errors are squared, standardised by mean and deviation of an initial part,
and averaged over columns, all steps up to a horizon and all rows to forecast from. A row is learned from when it has
come, not before. One run with a horizon of 48 rows makes the forecasts of all three horizons.
"""

import csv
import gzip
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import norewind
from norewind.plotting.tables import markdown
from norewind.sweeps.record import Record, read_records, versions, write_record
from norewind.training.hooks import Hooks
from scoreboards.board import Board

HORIZONS = (1, 24, 48)
SEEDS = (0, 1, 2)
QUICK_ROWS = 600


class Series(NamedTuple):
    """A table to forecast.

    Attributes:
        values: its rows (rows, columns).
        standardised: the number of initial rows whose mean and deviation are the units of errors.
        first: the first row that is forecast.
    """

    values: np.ndarray
    standardised: int
    first: int


def read_all(data: Path) -> dict[str, Series]:
    """Return both tables, by name.

    Args:
        data: the folder with `ETTh2.csv` of github.com/zhouhaoyi/ETDataset and `exchange_rate.txt.gz` of
            github.com/laiguokun/multivariate-time-series-data.
    """
    with (data / "ETTh2.csv").open(newline="") as lines:
        hourly = np.array([row[1:] for row in list(csv.reader(lines))[1:14_401]], float)
    text = gzip.decompress((data / "exchange_rate.txt.gz").read_bytes()).decode()
    daily = np.array([line.split(",") for line in text.split()], float)
    rows = len(daily)
    return {"ETTh2": Series(hourly, 2_880, 3_600), "Exchange": Series(daily, rows // 5, rows // 4)}


def forecasts_of(values: np.ndarray, seed: int) -> np.ndarray:
    """Return the forecasts made at each row (rows, steps, columns), in the units of the table.

    Args:
        values: its rows.
        seed: the seed of the networks.
    """
    made, columns = [], [f"c{place}" for place in range(values.shape[1])]
    model = norewind.Forecaster(columns, HORIZONS[-1], seed=seed)

    def keep(_: int, samples, outputs) -> None:
        # There are no units in the first rows, where the last value is forecast.
        scaled = samples.scales_after[..., 0] + samples.scales_after[..., 1] * np.asarray(outputs.made)
        latest = np.tile(samples.values[:, : len(columns)], HORIZONS[-1])
        made.append(np.where(np.isfinite(scaled), scaled, latest))

    model.fit((dict(zip(columns, row, strict=True)) for row in values.tolist()), hooks=Hooks(outputs=keep))
    return np.concatenate(made).reshape(len(values), HORIZONS[-1], len(columns))


def errors_of(series: Series, forecasts: np.ndarray) -> list[float]:
    """Return the mean squared error of each horizon.

    Args:
        series: the table.
        forecasts: those made at each row (rows, steps, columns).
    """
    start = series.values[: series.standardised]
    values, made = ((part - start.mean(axis=0)) / start.std(axis=0) for part in (series.values, forecasts))
    errors = []
    for horizon in HORIZONS:
        # All steps of a row are scored, or none.
        rows = np.arange(series.first - 1, len(values) - horizon)
        steps = [(values[rows + step] - made[rows, step - 1]) ** 2 for step in range(1, horizon + 1)]
        errors.append(float(np.mean(steps)))
    return errors


def run(data: Path, out: Path, quick: bool) -> None:
    """Forecast both tables with each seed. Runs that have a record are not repeated.

    Args:
        data: the folder of the tables.
        out: the folder of the records.
        quick: use only the first rows and one seed.
    """
    for name, series in read_all(data).items():
        if quick:
            series = Series(series.values[:QUICK_ROWS], QUICK_ROWS // 5, QUICK_ROWS // 4)
        if f"{name}/last value" not in read_records(out):
            latest = np.repeat(series.values[:, None], HORIZONS[-1], axis=1)
            write_record(out, f"{name}/last value", {"errors": errors_of(series, latest), **versions()})
        for seed in SEEDS[:1] if quick else SEEDS:
            if f"{name}/seed {seed}" in read_records(out):
                continue
            began = time.process_time()
            errors = errors_of(series, forecasts_of(series.values, seed))
            cost = 1e6 * (time.process_time() - began) / len(series.values)
            found = {"errors": errors, "rows": len(series.values), "microseconds": round(cost)}
            write_record(out, f"{name}/seed {seed}", {**found, **versions()})
    quoted = quote(read_records(out))
    print(markdown(["", *map(str, HORIZONS)], [(key, *quoted[key].split(" / ")) for key in quoted if "errors" in key]))


def quote(records: dict[str, Record]) -> dict[str, str]:
    """Return the mean errors over the seeds, their spread, those of the last value, and the time per row.

    Args:
        records: the records by name.
    """
    quoted, first, costs = {}, [], []
    for name in ("ETTh2", "Exchange"):
        own = [record for key, record in records.items() if key.startswith(f"{name}/seed")]
        if not own or f"{name}/last value" not in records:
            return {}
        errors = np.array([record["errors"] for record in own])
        costs.append(f"{min(record['microseconds'] for record in own):,}")
        latest = records[f"{name}/last value"]["errors"]
        quoted[f"{name} errors"] = " / ".join(f"{error:.3g}" for error in errors.mean(axis=0))
        quoted[f"{name} errors of the last value"] = " / ".join(f"{error:.3g}" for error in latest)
        quoted[f"{name} seeds"] = str(len(own))
        quoted[f"{name} spread"] = ", ".join(f"{spread:.2g}" for spread in np.ptp(errors, axis=0))
        first.append(f"{name} " + " / ".join(f"{error:.3g}" for error in errors.mean(axis=0)))
    return {**quoted, "ours": "; ".join(first), "microseconds": "; ".join(costs)}


BOARD = Board(
    "dsof",
    "Online forecasting: ETTh2 and Exchange",
    "squared error 1 / 24 / 48 rows ahead, lower is better",
    "ETTh2 .365 / 1.694 / 2.988; Exchange .009 / .093 / .176",
    "series",
    "https://github.com/zhouhaoyi/ETDataset (ETTh2.csv) and "
    "https://github.com/laiguokun/multivariate-time-series-data (exchange_rate.txt.gz)",
    run,
    quote,
)
