"""Simple forecasts of a season that is shorter than the horizon."""

import numpy as np
import pytest
from run_folders import norewind

from norewind.learners.learner import Forecasts
from norewind.scoring.row_score import RowScore
from norewind.streams import Samples
from norewind.training.log import read_log

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.mark.parametrize(("steps", "period"), [((1, 2, 3), 2), ((1, 2, 3), 3), ((5,), 1), ((168,), None), ((400,), 7)])
def test_the_value_a_season_ago_is_one_that_was_known(steps, period):
    rows, width = 900, len(steps)
    values = np.random.default_rng(0).normal(size=rows)
    scales = np.tile([0.0, 1.0], (rows, width, 1))
    targets = np.tile(values[:, None], width)
    for place, step in enumerate(steps):
        targets[:step, place] = np.nan
    raw = np.tile(values[:, None], width)
    samples = Samples(raw, targets.astype(np.float32), scales, raw, scales, raw)
    score = RowScore(["v"], "squared", steps, period)
    due = np.zeros((rows, width), np.float32)
    for part in (slice(0, 7), slice(7, 500), slice(500, rows)):
        cut = Samples(*(None if one is None else one[part] for one in samples))
        score.add(cut, Forecasts(due[part], due[part]))
    for number, season in enumerate(score.periods):
        for place, step in enumerate(steps):
            ago = next(rows_ago for rows_ago in range(season, 10_000, season) if rows_ago >= step)
            errors = values[ago:] - values[:-ago]
            count, _, squares = score.state.errors[3 + number, place, 0]
            assert count == len(errors)
            assert squares == pytest.approx((errors**2).sum())


@pytest.mark.parametrize(
    "options", [("--horizon", 168), ("--horizon", 3, "--period", 2), ("--horizon", 3, "--period", 3)]
)
def test_a_run_may_look_further_ahead_than_a_season(options, tmp_path):
    values = np.random.default_rng(0).normal(size=400).cumsum()
    (tmp_path / "rows.csv").write_text("v\n" + "\n".join(f"{value:.4f}" for value in values) + "\n")
    steps = () if options[-1] != 168 else ("--only-steps", 1, 168)
    network = ("--method", "uoro", "--hidden", 3, "--quiet")
    assert norewind("train", tmp_path / "rows.csv", "--out", tmp_path / "run", *options, *steps, *network) == 0
    assert read_log(tmp_path / "run" / "metrics.jsonl")[-1]["errors"]["seasonal"]["v"]["rows"] > 0
