"""Intervals on Elec2: no method uses an error that has not come yet, and the board runs."""

import numpy as np
import pytest

from norewind.sweeps.record import read_records
from scoreboards import intervals

RANDOM = np.random.default_rng(0)
VALUES = np.sin(np.arange(600) / 9) + 0.2 * RANDOM.normal(size=600)


def bounds_of(values, method):
    forecasts = intervals.autoregressive_forecasts(values)
    if method == "norewind":
        return intervals.own_bounds(values, forecasts)
    radii = intervals.METHODS[method](np.abs(values - forecasts), intervals.RATES[method][0])
    return np.column_stack([forecasts - radii, forecasts + radii])


@pytest.mark.parametrize("method", ["norewind", *intervals.METHODS])
def test_bounds_use_only_earlier_values(method):
    changed = VALUES.copy()
    changed[450:] += 5
    bounds, later = bounds_of(VALUES, method), bounds_of(changed, method)
    np.testing.assert_array_equal(bounds[:451], later[:451])
    assert not np.array_equal(bounds[451:], later[451:])


def test_the_board_quotes_its_records(tmp_path):
    lines = [f"{value},0" for value in VALUES]
    (tmp_path / "electricity.csv").write_text("\n".join(["nswdemand,class", *lines, ""]))
    intervals.run(tmp_path, tmp_path / "records", True)
    quoted = intervals.quote(read_records(tmp_path / "records"))
    assert quoted["table"].count("\n| AR(3) |") == 5
    assert float(quoted["ours"].split(" %")[0]) == pytest.approx(90, abs=4)
