"""Scores of rows and classes equal plain sums, and do not depend on how the rows are divided."""

from itertools import pairwise

import numpy as np
import pytest
from msgspec.structs import asdict

from norewind.learners.learner import Forecasts
from norewind.scoring.class_score import ClassScore
from norewind.scoring.compare_rows import ERROR_DECAY, MAX_ERROR
from norewind.scoring.row_score import PERIODS, RowScore
from norewind.scoring.text_score import LineScore
from norewind.storage.checkpoint import CheckpointError
from norewind.streams import Samples
from norewind.training.folder import SavedRun

pytestmark = pytest.mark.usefixtures("shared_programs")

CUTS = [(), (1,), (7, 8, 40)]


def row_samples(steps, rows=60, targets=2, seed=0):
    """Rows with missing values, scales that vary from row to row, and forecasts."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, targets))
    values[rng.random((rows, targets)) < 0.1] = np.nan
    width = len(steps) * targets
    scales = np.stack([rng.normal(size=(rows, width)), rng.uniform(0.5, 2, (rows, width))], axis=-1)
    for place, step in enumerate(steps):
        scales[: max(1, step), place * targets : (place + 1) * targets] = np.nan
    whole = np.tile(values, len(steps))
    standard = ((whole - scales[..., 0]) / scales[..., 1]).astype(np.float32)
    due = rng.normal(size=(rows, width)).astype(np.float32)
    return Samples(np.zeros((rows, 1), np.float32), standard, scales, standard * 0, scales, whole), due


def cut(parts, cuts, rows):
    ends = [0, *cuts, rows]
    for start, stop in pairwise(ends):
        yield tuple(None if part is None else part[start:stop] for part in parts)


def plain_errors(samples, due, steps, targets):
    """Sum the counts and the absolute and squared errors of every forecast, step and target, row by row."""
    rows = len(due)
    values = samples.values[:, :targets].copy()
    latest = values.copy()
    for row in range(1, rows):
        latest[row] = np.where(np.isnan(latest[row]), latest[row - 1], latest[row])
    sums = np.zeros((3 + len(PERIODS), len(steps), targets, 3))
    recent = np.zeros((len(steps), targets, 2))
    for row in range(rows):
        for s, step in enumerate(steps):
            delay = max(1, step)
            for k in range(targets):
                place = s * targets + k
                center, deviation = samples.scales[row, place]
                model = center + deviation * due[row, place]
                ago = [delay, *(-(-delay // period) * period for period in PERIODS)]
                known = [latest[row - rows_ago, k] if row >= rows_ago else np.nan for rows_ago in ago]
                if np.isnan([samples.targets[row, place], model, known[0]]).any():
                    continue
                for number, made in enumerate([model, center, *known]):
                    error = made - values[row, k]
                    if not np.isnan(error):
                        sums[number, s, k] += 1, abs(error), error**2
                square = min((model - values[row, k]) ** 2, (MAX_ERROR * deviation) ** 2)
                recent[s, k] = ERROR_DECAY * recent[s, k] + (1 - ERROR_DECAY) * np.array([1, square])
    return sums, recent


@pytest.mark.parametrize("steps", [(0,), (1,), (3,), (1, 2, 3, 4, 5, 6, 7, 8)])
@pytest.mark.parametrize("cuts", CUTS)
def test_errors_of_rows_are_plain_sums(steps, cuts):
    samples, due = row_samples(steps)
    score = RowScore(["a", "b"], "squared", steps)
    for *part, outputs in cut((*samples, due), cuts, len(due)):
        score.add(Samples(*part), Forecasts(outputs, outputs))
    sums, recent = plain_errors(samples, due, steps, 2)
    np.testing.assert_allclose(score.state.errors, sums, rtol=1e-9)
    np.testing.assert_allclose(score.state.recent_squares, recent, rtol=1e-9)
    assert sums[..., 0].min() > 0 or 168 in PERIODS  # every simple forecast but that of a long period was compared


def test_cuts_change_no_bit_of_a_score():
    steps = (1, 2, 5)
    samples, due = row_samples(steps)
    states = []
    for cuts in CUTS:
        score = RowScore(["a", "b"], "squared", steps)
        for *part, outputs in cut((*samples, due), cuts, len(due)):
            score.add(Samples(*part), Forecasts(outputs, outputs))
        states.append(asdict(score.state))
    for state in states[1:]:
        for name, value in states[0].items():
            np.testing.assert_array_equal(state[name], value, err_msg=name)


def test_a_line_has_errors_by_step():
    steps = (1, 2, 5)
    samples, due = row_samples(steps, rows=200)
    score = RowScore(["a", "b"], "squared", steps)
    score.add(samples, Forecasts(due, due))
    squares = score.state.squares.copy()
    line = score.end_interval()
    expected = np.sqrt(squares[0, :, 1] / squares[0, :, 0])
    np.testing.assert_allclose(line["by_step"]["model"], expected, rtol=1e-5)
    assert line["errors"]["model"]["a"]["rows"] == score_rows(samples, 2)
    assert not score.state.errors.any()


def test_entries_have_the_deviations_of_every_step_and_column_and_rows_with_any_known_target_count():
    """Outputs are the means of all steps and columns, followed by their variances."""
    steps, rng = (1, 3), np.random.default_rng(1)
    samples, _ = row_samples(steps)
    rows = len(samples.xs)
    samples.scales[5, 0] = np.nan  # of two columns, one has too few values yet
    samples = samples._replace(scales_after=rng.uniform(0.5, 2, (rows, 4, 2)))
    outputs = rng.normal(size=(rows, 8)).astype(np.float32)
    score = RowScore(["a", "b"], "gaussian", steps)
    known = ~np.isnan(samples.targets)
    assert known.any(axis=1).sum() > known.all(axis=1).sum()
    assert score.add(samples, Forecasts(outputs, outputs)) == known.any(axis=1).sum()
    deviations = np.exp(5 * np.tanh(outputs[:, 4:] / 10))
    for row, entry in enumerate(score.prediction_entries(1, samples, Forecasts(outputs, outputs))):
        for place, (step, column) in enumerate((str(step), column) for step in steps for column in "ab"):
            mean, scale = samples.scales_after[row, place]
            assert entry["forecast"][step][column] == pytest.approx(mean + scale * outputs[row, place], rel=1e-5)
            assert entry["deviation"][step][column] == pytest.approx(scale * deviations[row, place], rel=1e-5)
        assert ("prediction" in entry) == (row > 0)
        errors = ((samples.targets - outputs[:, :4]) / deviations)[row, :2]
        if row and not np.isnan(errors).all():
            assert entry["surprise"] == pytest.approx(np.sqrt(np.nanmean(errors**2)), abs=1e-5)


def score_rows(samples, targets):
    known = ~np.isnan(samples.targets[:, ::targets])
    known[0] = False  # there is no last value yet
    return known.sum()


def plain_classes(values, targets, guesses, steps, classes):
    baseline, right = np.zeros((len(steps), 2)), np.zeros((len(steps), 3))
    for row in range(len(values)):
        for s, step in enumerate(steps):
            if np.isnan(targets[row, s]):
                continue
            known = values[: row - max(1, step) + 1]
            known = known[~np.isnan(known)].astype(int)
            counts, came = np.bincount(known, minlength=classes), int(targets[row, s])
            share = (counts[came] + 0.5) / (counts.sum() + 0.5 * ((counts > 0).sum() + 1))
            baseline[s] += 1, -np.log2(share)
            right[s, 0] += guesses[row, s] == came
            right[s, 1] += len(known) > 0 and counts.argmax() == came
            right[s, 2] += len(known) > 0 and known[-1] == came
    return baseline, right


@pytest.mark.parametrize("steps", [(0,), (1,), (1, 3, 5)])
@pytest.mark.parametrize("cuts", CUTS)
def test_classes_are_compared_with_what_was_known(steps, cuts):
    rng = np.random.default_rng(0)
    rows, classes = 60, 4
    values = rng.integers(0, classes, rows).astype(float)
    values[rng.random(rows) < 0.2] = np.nan
    targets = np.repeat(values[:, None], len(steps), axis=1)
    for place, step in enumerate(steps):
        targets[:step, place] = np.nan
    due = rng.normal(size=(rows, len(steps) * classes)).astype(np.float32)
    score = ClassScore(classes, str, steps)
    parts = (np.zeros((rows, 1)), targets, None, None, None, values[:, None], None, None, None, due)
    for *part, outputs in cut(parts, cuts, rows):
        score.add(Samples(*part), Forecasts(outputs, outputs))
    guesses = due.reshape(rows, len(steps), classes).argmax(axis=-1)
    baseline, right = plain_classes(values, targets, guesses, steps, classes)
    np.testing.assert_allclose(score.state.baseline, baseline, rtol=1e-12)
    np.testing.assert_array_equal(score.state.right, right)


SCORES = {
    "class": lambda: ClassScore(3, str, (0,)),
    "row": lambda: RowScore(["a"], "squared"),
    "line": lambda: LineScore(3, str, bytes),
}
FITTING = {
    "class": {"recent": np.zeros((4, 3))},
    "row": {"recent": np.zeros((4, 1, 3))},
    "line": {"symbols": [2], "bits": [1]},
}
UNFITTING = [
    ("class", {"recent": np.zeros((4, 2))}),
    ("class", {"recent": np.zeros((201, 3))}),
    ("class", {"counts": -np.ones(3)}),
    ("class", {"past": np.zeros((2, 2))}),
    ("class", {"rows": 1.5}),
    ("class", {"rows": -1}),
    ("row", {"recent_squares": np.full((1, 1, 2), np.nan)}),
    ("row", {"squares": np.zeros((7, 1, 2), np.float32)}),
    ("row", {"baseline": [0, np.inf]}),
    ("line", {"symbols": [3], "bits": [1]}),
    ("line", {"symbols": [2]}),
    ("line", {"counts": [0, 0]}),
    ("line", {"top": [{"line": 1}]}),
    ("line", {"more": 1}),
]


@pytest.mark.parametrize("name", SCORES)
def test_a_saved_state_is_continued_as_a_copy(tmp_path, name):
    saved, score = asdict(SCORES[name]().state) | FITTING[name], SCORES[name]()
    SavedRun(tmp_path, {}, {"score": saved}).restore_score(score)
    np.testing.assert_equal(asdict(score.state), saved)
    for field, value in FITTING[name].items():
        assert getattr(score.state, field) is not value


@pytest.mark.parametrize(("name", "changed"), UNFITTING)
def test_the_state_of_another_score_is_rejected(tmp_path, name, changed):
    score = SCORES[name]()
    for saved in (asdict(score.state) | changed, {}):
        with pytest.raises(CheckpointError, match="does not fit this stream"):
            SavedRun(tmp_path, {}, {"score": saved}).restore_score(score)
