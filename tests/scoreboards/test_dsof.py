"""The board of ETTh2 and Exchange: nothing from the future, and errors as its protocol says."""

import csv
import gzip

import numpy as np
import pytest

from norewind.sweeps.record import read_records
from scoreboards import dsof

RANDOM = np.random.default_rng(0)
SERIES = dsof.Series(RANDOM.normal(size=(130, 2)).cumsum(axis=0), 20, 40)


def test_errors_are_those_of_a_plain_loop():
    values, made = SERIES.values, RANDOM.normal(size=(130, 48, 2))
    mean, deviation = values[:20].mean(axis=0), values[:20].std(axis=0)
    for horizon, found in zip(dsof.HORIZONS, dsof.errors_of(SERIES, made), strict=True):
        squares = []
        for row in range(39, 130 - horizon):
            for step in range(1, horizon + 1):
                squares.append(((values[row + step] - made[row, step - 1]) / deviation) ** 2)
        assert found == pytest.approx(np.mean(squares))
    assert mean.shape == (2,)


@pytest.mark.slow
def test_no_forecast_uses_a_later_row():
    changed = SERIES.values.copy()
    changed[100:] += 50
    before, after = dsof.forecasts_of(SERIES.values, 0), dsof.forecasts_of(changed, 0)
    np.testing.assert_array_equal(before[:100], after[:100])
    assert not np.array_equal(before[100:], after[100:])
    np.testing.assert_array_equal(before[0], np.tile(SERIES.values[0], (48, 1)))


def test_both_tables_are_read_run_and_quoted(tmp_path, monkeypatch):
    tables = {"ETTh2": RANDOM.normal(size=(14_500, 7)), "Exchange": RANDOM.normal(size=(400, 8))}
    with (tmp_path / "ETTh2.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [["date", *"abcdefg"], *([number, *row] for number, row in enumerate(tables["ETTh2"]))]
        )
    lines = "".join(",".join(map(str, row)) + "\n" for row in tables["Exchange"])
    (tmp_path / "exchange_rate.txt.gz").write_bytes(gzip.compress(lines.encode()))
    read = dsof.read_all(tmp_path)
    np.testing.assert_allclose(read["ETTh2"].values, tables["ETTh2"][:14_400])
    assert (read["Exchange"].standardised, read["Exchange"].first) == (80, 100)
    monkeypatch.setattr(dsof, "forecasts_of", lambda values, seed: np.repeat(values[:, None], 48, axis=1))
    dsof.run(tmp_path, tmp_path / "out", quick=True)
    records = read_records(tmp_path / "out")
    # The method that repeats the last value has its error.
    assert records["ETTh2/seed 0"]["errors"] == records["ETTh2/last value"]["errors"]
    monkeypatch.setattr(dsof, "forecasts_of", None)
    dsof.run(tmp_path, tmp_path / "out", quick=True)
    assert dsof.quote(records)["ours"].startswith("ETTh2 ")
    assert dsof.quote({}) == {}
