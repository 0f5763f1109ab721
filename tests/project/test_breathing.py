"""The study of breathing: recordings are read without their end marks, and no forecast uses anything from later."""

import numpy as np
import pytest

from examples import breathing


def test_recordings_are_read_without_the_zeros_at_their_end(tmp_path):
    for marker, rows in zip("ABC", (3, 4, 3), strict=True):
        lines = [f"{i};{100 * i};-{i + 1},5;2,5;{ord(marker)}" for i in range(rows)]
        text = "\n".join(["Frame;Timestamp;x;y;z", *lines, "0;0;0;0;0", ""])
        (tmp_path / f"2012-{marker}-1.csv").write_text(text)
    (rows,) = breathing.read_recordings(tmp_path).values()
    assert rows.shape == (3, 9)
    assert rows[2].tolist() == [-3.5, 2.5, 65, -3.5, 2.5, 66, -3.5, 2.5, 67]


def test_scores_of_a_known_error():
    rows = np.random.default_rng(0).normal(size=(50, 9))
    forecasts = np.zeros_like(rows)
    forecasts[:-2] = rows[2:] + 1
    scores = breathing.scores_of(rows, forecasts, 2, 10)
    assert scores["rmse"] == pytest.approx(np.sqrt(3))
    assert scores["largest"] == pytest.approx(np.sqrt(3))
    steps = np.linalg.norm(np.diff(rows[10:], axis=0).reshape(39, 3, 3), axis=2)
    assert scores["jitter"] == pytest.approx(steps.mean())


@pytest.mark.parametrize(
    "name", ["last position", "LMS", "linear regression", pytest.param("uoro", marks=pytest.mark.slow)]
)
def test_later_rows_change_no_forecast(name):
    ahead, rows = 3, np.random.default_rng(1).normal(size=(700, 9))
    later = rows.copy()
    later[650:] += 5
    if name == "uoro":
        network = breathing.network_forecasts(name, ahead)
        first, second = (network(part, 0.01, 0) for part in (rows, later))
    else:
        methods = {"last position": breathing.last_position, "LMS": breathing.lms}
        run = methods.get(name, breathing.regression)(ahead)
        first, second = run(rows, 0.1), run(later, 0.1)
    assert np.array_equal(first[:650], second[:650])
    assert not np.array_equal(first[650:], second[650:])


def test_learning_too_early_uses_what_is_not_known_yet():
    """As the published code does: the weights of a forecast have learned from the rows before its target."""
    ahead, rows = 3, np.random.default_rng(1).normal(size=(700, 9))
    later = rows.copy()
    later[650:] += 5
    first, second = (breathing.lms(ahead, early=True)(part, 0.1) for part in (rows, later))
    changed = np.flatnonzero((first != second).any(axis=1))
    assert changed[0] == 650 - ahead + 1
    known, early = (breathing.lms(1, early=early)(rows, 0.1) for early in (False, True))
    assert np.array_equal(known, early)
