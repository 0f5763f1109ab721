"""Forecasts of classes: reading them, mixing experts without using later rows, and scoring."""

from pathlib import Path

import numpy as np
import pytest
from stream_pipes import Pipe

from norewind.core.losses import known_cross_entropy
from norewind.learners.class_least_squares import MIN_SHARE, ClassLeastSquares
from norewind.learners.class_mixture import (
    CLASS_SWITCHING,
    COUNT_DECAY,
    MIN_PROBABILITY,
    PRIOR_COUNT,
    PRODUCT_WEIGHT,
    ClassMixture,
)
from norewind.learners.learner import Forecasts, Learner
from norewind.learners.least_squares import LeastSquares
from norewind.learners.mixture import Member
from norewind.learners.product_of_experts import KEPT_CURVATURE, LEAST, PRIOR_CURVATURE
from norewind.plotting.figures import classes_figure, save
from norewind.scoring.class_score import ClassScore
from norewind.streams import ReadOptions, RowStream, Samples, StreamError
from norewind.testing import check_learner

CLASSES = ReadOptions(classes=True)
ROWS = 120
STEPS = (1, 2, 5)


def table(steps=(0,), seed=0):
    """Return classes in a cycle, with some exceptions and a few unknown. The inputs carry no information."""
    random = np.random.default_rng(seed)
    targets = ((np.arange(ROWS) + (random.random(ROWS) < 0.1)) % 3).astype(np.float32)
    targets[[7, 50]] = np.nan
    return np.zeros((ROWS, 1), np.float32), np.repeat(targets[:, None], len(steps), axis=1)


class Logits(Learner):
    """A member with given forecasts."""

    def __init__(self, logits, steps):
        self.logits, self.steps = logits, steps

    def scan(self, run, xs, targets, *, count=None, outputs=False):
        return run + (len(xs) if count is None else count), None, self._shown(run, xs)

    def forward(self, run, xs, *, count=None):
        return run + (len(xs) if count is None else count), self._shown(run, xs)

    def _shown(self, run, xs):
        made = self.logits[int(run[0]) : int(run[0]) + len(xs)]
        return Forecasts(made, None)

    def reset(self, run):
        return 0 * run


def closing_words(lines):
    return ClassScore(4, str, STEPS).closing_text(lines, Path())


def learner(steps, logits=None):
    if logits is None:
        logits = np.random.default_rng(2).normal(size=(2 * ROWS, 4 * len(steps))).astype(np.float32)
    return ClassMixture([Member(Logits(logits, steps), np.zeros(1, int))], 4, steps)


def plain_loop(targets, logits, step):
    """Compute the forecast that `ClassMixture` makes at each row for one step, by plain loops."""
    counts, pairs = np.full(4, PRIOR_COUNT), np.full((4, 4), PRIOR_COUNT)
    weights, classes, made, mixtures = np.array([*[(1 - PRODUCT_WEIGHT) / 3] * 3, PRODUCT_WEIGHT]), [], [], []
    exponents, curvature = np.full(3, 1 / 3), PRIOR_CURVATURE * np.eye(3)
    ahead = max(1, step)
    for t, target in enumerate(targets):

        def learn(came, t=t):
            nonlocal weights, exponents, curvature
            counts[:] = COUNT_DECAY * counts + np.eye(4)[came]
            before = classes[t - ahead] if t >= ahead else -1
            if before >= 0:
                pairs[before] = COUNT_DECAY * pairs[before] + np.eye(4)[came]
            if t >= step:
                gained = weights * made[t - step][:, came]
                weights = gained / gained.sum()
                weights = (1 - CLASS_SWITCHING) * weights + CLASS_SWITCHING / 3 * (1 - weights)
                logs = np.log(np.maximum(made[t - step][:3], LEAST))
                product = np.exp(exponents @ logs) / np.exp(exponents @ logs).sum()
                spread = logs - (logs @ product)[:, None]
                curvature = KEPT_CURVATURE * curvature + (1 - KEPT_CURVATURE) * PRIOR_CURVATURE * np.eye(3)
                curvature += (spread * product) @ spread.T
                exponents = exponents + np.linalg.solve(curvature, spread[:, came])

        came = -1 if np.isnan(target) else int(target)
        if step and came >= 0:
            learn(came)
        before = classes[-1] if classes else -1
        classes.append(came if came >= 0 else before)
        latest = classes[-1] if step else before
        of_all = counts / counts.sum()
        after = of_all if latest < 0 else (pairs[latest] + of_all) / (pairs[latest] + of_all).sum()
        own = np.exp(logits[t]) / np.exp(logits[t]).sum()
        single = (1 - 4 * MIN_PROBABILITY) * np.stack([of_all, after, own]) + MIN_PROBABILITY
        product = np.exp(exponents @ np.log(np.maximum(single, LEAST)))
        product = (1 - 4 * MIN_PROBABILITY) * product / product.sum() + MIN_PROBABILITY
        made.append(np.stack([*single, product]))
        mixtures.append(weights @ made[t])
        if not step and came >= 0:
            learn(came)
    return np.log(mixtures)


@pytest.mark.parametrize("steps", [(0,), (1,), STEPS])
def test_the_mixture_is_that_of_a_plain_loop(steps):
    xs, targets = table(steps)
    made_of = learner(steps)
    logits = made_of.members[0].logits.astype(float)
    _, losses, outputs = made_of.scan(made_of.init(), xs, targets, outputs=True)
    made, due = outputs
    total = np.zeros(ROWS)
    for place, step in enumerate(steps):
        block = slice(4 * place, 4 * place + 4)
        expected = plain_loop(targets[:, 0], logits[:, block], step)
        np.testing.assert_allclose(made[:, block], expected, atol=1e-5)
        known = ~np.isnan(targets[step:, 0])
        came = targets[step:, 0][known].astype(int)
        total[step:][known] -= expected[: ROWS - step][known, came]
        np.testing.assert_array_equal(due[step:, block], made[: ROWS - step, block])
    np.testing.assert_allclose(losses, total, atol=1e-5)
    assert losses[-60:].mean() / len(steps) < 0.75 < np.log(3)


@pytest.mark.parametrize("steps", [(0,), (1,), STEPS])
def test_they_are_learners(steps):
    xs, targets = table(steps)
    mixture = learner(steps)
    check_learner(mixture, mixture.init(), xs, targets)
    squares = ClassLeastSquares(1, 4, steps=steps)
    check_learner(squares, squares.init(), xs, targets)


@pytest.mark.parametrize("steps", [(0,), (1,), STEPS])
def test_forecasts_without_learning_are_those_of_rows_without_a_class(steps):
    xs, targets = table(steps)
    mixture = learner(steps)
    run, _, _ = mixture.scan(mixture.init(), xs, targets)
    _, forecasts = mixture.forward(run, xs)
    _, _, expected = mixture.scan(run, xs, np.full_like(targets, np.nan))
    np.testing.assert_array_equal(forecasts.made, expected.made)
    np.testing.assert_array_equal(forecasts.due, expected.due)


@pytest.mark.parametrize("unknown", [0, 1])
def test_a_class_that_is_known_for_one_step_is_counted_but_teaches_only_the_weights_of_that_step(unknown):
    xs, targets = table((1, 2))
    some = targets.copy()
    some[60, unknown] = np.nan
    mixture = learner((1, 2))
    runs = [mixture.scan(mixture.init(), xs, known, count=61)[0].mixture for known in (targets, some)]
    for name in ("classes", "pairs", "latest"):
        np.testing.assert_array_equal(*(getattr(run, name) for run in runs), err_msg=name)
    whole, part = (run.log_weights for run in runs)
    np.testing.assert_array_equal(part[1 - unknown], whole[1 - unknown])
    assert not np.array_equal(part[unknown], whole[unknown])


def test_no_class_is_read_before_it_is_due():
    xs, targets = table(STEPS)
    mixture = learner(STEPS)
    _, _, (made, _) = mixture.scan(mixture.init(), xs, targets, outputs=True)
    for t in (20, 60, 119):
        changed = targets.copy()
        changed[t:] = 3
        _, _, (found, _) = mixture.scan(mixture.init(), xs, changed, outputs=True)
        np.testing.assert_array_equal(found[:t], made[:t])
        assert not np.array_equal(found[t], made[t])


def test_a_new_sequence_does_not_know_the_latest_class():
    xs, targets = table((1,))
    mixture = ClassMixture([], 4, (1,))
    run, _, _ = mixture.scan(mixture.init(), xs, targets)
    frequencies = run.mixture.classes / run.mixture.classes.sum()
    product = frequencies ** run.mixture.exponents.sum()
    share = np.exp(run.mixture.log_weights[0, -1])
    run, losses, (made, due) = mixture.scan(mixture.reset(run), xs[:1], [[np.nan]], outputs=True)
    expected = (1 - share) * frequencies + share * product / product.sum()
    np.testing.assert_allclose(np.exp(made[0]), expected, atol=1e-5)
    assert not losses.any()
    assert not due.any()


def test_the_first_rows_of_a_new_sequence_have_no_forecasts_that_weights_could_learn_from():
    xs, targets = table(STEPS)
    mixture = learner(STEPS)
    run, _, _ = mixture.scan(mixture.init(), xs[:60], targets[:60])
    weights, run = run.mixture.log_weights.copy(), mixture.reset(run)
    run, losses, _ = mixture.scan(run, xs[60:61], targets[60:61])
    np.testing.assert_array_equal(run.mixture.log_weights, weights)
    assert losses[0] == 0
    run, losses, _ = mixture.scan(run, xs[61:62], targets[61:62])
    assert (run.mixture.log_weights != weights).any(axis=1).tolist() == [True, False, False]
    assert losses[0] > 0


def test_a_failing_member_does_not_affect_the_others():
    xs, targets = table()
    for bad in (np.nan, np.inf, -np.inf):
        mixture = learner((1,), np.full((ROWS, 4), bad, np.float32))
        _, losses, (made, _) = mixture.scan(mixture.init(), xs, targets, outputs=True)
        assert np.isfinite(made).all()
        assert losses[-60:].mean() < 0.75


@pytest.mark.parametrize("step", [1, 4])
def test_a_member_is_weighted_by_its_earlier_forecasts(step):
    classes = np.random.default_rng(0).integers(0, 4, ROWS + step)
    mixture = learner((step,), 20 * np.eye(4, dtype=np.float32)[classes[step:]])
    came = classes[:ROWS, None].astype(np.float32)
    _, losses, _ = mixture.scan(mixture.init(), came, came)
    assert losses[20:].max() < 0.01


def test_the_mixture_is_hardly_worse_than_its_best_member_on_any_stream():
    rng = np.random.default_rng(3)
    xs, targets = np.zeros((ROWS, 1), np.float32), rng.integers(0, 4, (ROWS, 1)).astype(np.float32)
    # It is right in the first half and wrong in the second.
    hot = np.eye(4, dtype=np.float32)[targets[:, 0].astype(int)]
    logits = np.where(np.arange(ROWS)[:, None] < ROWS // 2, 9 * hot, -9 * hot)
    mixture = learner((0,), logits)
    _, losses, _ = mixture.scan(mixture.init(), xs, targets)
    alone = plain_loop(targets[:, 0], np.zeros((ROWS, 4)), 0)
    assert losses[: ROWS // 2].sum() < np.log(3) + ROWS // 2 * (np.log(1 / (1 - CLASS_SWITCHING)) + 1e-3)
    second = np.arange(ROWS // 2, ROWS)
    best = -alone[second, targets[second, 0].astype(int)].sum()
    assert losses[second].sum() < best + np.log(2 / CLASS_SWITCHING) + 20 * np.log(4 / 3)


def test_least_squares_of_classes_are_those_of_ones_and_zeros():
    rng = np.random.default_rng(1)
    xs, targets = rng.normal(size=(80, 2)).astype(np.float32), rng.integers(0, 3, (80, 2)).astype(np.float32)
    targets[9] = np.nan
    squares, numbers = ClassLeastSquares(2, 3, steps=(1, 4)), LeastSquares(2, 3, steps=(1, 4))
    hot = np.where(np.isnan(targets)[:, :, None], np.nan, np.eye(3)[np.nan_to_num(targets).astype(int)])
    run, losses, (made, _) = squares.scan(squares.init(), xs, targets, outputs=True)
    other, expected, (shares, _) = numbers.scan(numbers.init(), xs, hot.reshape(80, 6), outputs=True)
    np.testing.assert_array_equal(losses, expected)
    np.testing.assert_array_equal(made, np.log(np.maximum(shares, MIN_SHARE)))
    np.testing.assert_array_equal(squares.upcoming(run)[[0, 3]].ravel(), made[-1])
    shares = numbers.forward(other, xs)[1][0]
    np.testing.assert_array_equal(squares.forward(run, xs)[1][0], np.log(np.maximum(shares, MIN_SHARE)))


def test_cross_entropy_of_known_classes():
    logits = np.log(np.array([0.5, 0.25, 0.25], np.float32))
    assert float(known_cross_entropy(logits, np.array([1.0]))) == pytest.approx(np.log(4))
    assert float(known_cross_entropy(logits, np.array([np.nan]))) == 0


def test_text_booleans_and_labels_are_classes():
    for written in (["eco", "fast"], ["true", "false"], ["0", "1"]):
        text = "a,y\n" + "".join(f"{i * i},{written[i % 2]}\n" for i in range(9)) + "5,\n"
        with Pipe(text.encode()) as source:
            stream = RowStream(source, read_options=CLASSES, targets=["y"])
            samples = stream.take(100)
        assert stream.inputs == ["a", "y"]
        assert stream.width == 17
        np.testing.assert_array_equal(samples.targets[:, 0], [np.nan, 1, 0, 1, 0, 1, 0, 1, 0, np.nan])
        assert [stream.class_name(number) for number in (0, 1, 2)] == [*written, "(another)"]
    with Pipe(b"a,y\n1,eco\n2,fast\n") as source, pytest.raises(StreamError, match='is text. .*loss="classes"'):
        RowStream(source, targets=["y"])


@pytest.mark.parametrize("horizon", [0, 1, 3])
def test_accuracies_are_those_of_their_definition(horizon):
    _, targets = table()
    values = targets[:, 0]
    text = "y\n" + "".join("\n" if value != value else f"c{int(value)}\n" for value in values)
    text = text.replace("\n\n", '\n""\n').replace("y\n", "y,x\n", 1).replace("\n", ",1\n").replace("x,1", "x")
    with Pipe(text.encode()) as source:
        stream = RowStream(source, read_options=CLASSES, inputs=["x"], targets=["y"], steps=(horizon,))
        samples = stream.take(1_000)
    guesses = np.random.default_rng(1).normal(size=(ROWS, 17))
    score = ClassScore(17, stream.class_name, (horizon,))
    scored = score.add(samples, Forecasts(guesses, guesses))
    line = score.end_interval()
    delay = max(1, horizon)
    right = dict.fromkeys(("accuracy", "majority", "last"), 0)
    for t in range(horizon, ROWS):
        if np.isnan(values[t]):
            continue
        before = samples.values[: t - delay + 1, 0]
        before = before[~np.isnan(before)].astype(int)
        right["accuracy"] += guesses[t].argmax() == samples.values[t, 0]
        right["majority"] += len(before) > 0 and np.bincount(before).argmax() == samples.values[t, 0]
        right["last"] += len(before) > 0 and before[-1] == samples.values[t, 0]
    assert line["scored"] == scored == ROWS - 2 - horizon
    for name, count in right.items():
        assert line[name] == pytest.approx(count / scored, abs=1e-6)
    words = closing_words([{"samples": ROWS, "loss": 2.0, **line}])
    assert "Warning" in words
    entries = list(score.prediction_entries(1, samples, Forecasts(guesses, guesses)))
    assert entries[20]["target"] == stream.class_name(int(samples.values[20, 0]))
    assert ("forecast" in entries[20]) == (horizon > 0)


@pytest.mark.parametrize("horizon", [0, 2])
def test_the_latest_rows_have_their_class_its_forecast_and_its_probability(horizon, tmp_path):
    rng = np.random.default_rng(2)
    targets = rng.integers(3, size=(450, 1)).astype(np.float32)
    targets[[5, 440]] = np.nan
    logits = rng.normal(size=(450, 17))
    outputs = Forecasts(np.zeros_like(logits), logits)
    whole, parts = ClassScore(17, str, (horizon,)), ClassScore(17, str, (horizon,))
    whole.add(Samples(targets, targets, values=targets.astype(float)), outputs)
    for cut in np.split(np.arange(450), [1, 7, 300, 301, 440]):
        own = Forecasts(*(part[cut] for part in outputs))
        parts.add(Samples(targets[cut], targets[cut], values=targets[cut].astype(float)), own)
    recent = whole.state.recent
    np.testing.assert_array_equal(parts.state.recent, recent)
    assert len(recent) == 200
    assert np.isnan(recent[190]).all()
    came, made, probability = recent[-1].tolist()
    shares = np.exp(logits[-1]) / np.exp(logits[-1]).sum()
    assert (came, made) == (targets[-1, 0], logits[-1].argmax())
    assert probability == pytest.approx(shares[int(came)])
    assert save(classes_figure(recent, str, 450), tmp_path / "recent.png").stat().st_size > 10_000
    assert save(classes_figure(np.full((3, 3), np.nan), str, 3), tmp_path / "none.png").stat().st_size > 5_000


def test_a_warning_shows_how_much_better_a_rule_is_unless_it_is_only_as_good():
    lines = [{"samples": 2_000, "loss": 1.0, "scored": 1_001, "accuracy": 0.570430, "last": 0.2}]
    words = closing_words([{**lines[0], "majority": 0.571429}])
    assert "the majority class was right more often than this model, 572 times against 571." in words
    assert "Warning" not in closing_words([{**lines[0], "majority": 0.570430}])
    # Rounding in the lines does not count as a difference.
    assert "Warning" not in closing_words([{**lines[0], "majority": 0.570431}])
