"""Classes: read as they are written, forecast without the future, and scored beside simple rules."""

import numpy as np
import pytest
from alike import assert_same
from stream_pipes import Pipe

from norewind.checkpoint import CheckpointError
from norewind.instruments.row_figures import draw_classes
from norewind.learners.classes import LEAST, PRIOR, REMEMBERED, SWITCHING, ClassLearner
from norewind.losses import known_cross_entropy
from norewind.runs.class_scores import ClassScore, class_words
from norewind.runs.entries import check_score
from norewind.streams import Dialect, RowStream, Samples, StreamError

CLASSES = Dialect(classes=True)
ROWS = 120


def table(seed=0):
    """Classes that follow each other in a circle, with some exceptions; a few are unknown."""
    random = np.random.default_rng(seed)
    targets = (np.arange(ROWS) + (random.random(ROWS) < 0.1)) % 3
    targets = targets.astype(np.float32)[:, None]
    targets[[7, 50]] = np.nan
    return np.zeros((ROWS, 1), np.float32), targets


def scanned(learner, xs, targets, cuts=()):
    run, parts = learner.init(), []
    for start, stop in zip([0, *cuts], [*cuts, len(xs)], strict=True):
        pad = [(0, 5), (0, 0)]  # chunks may be longer than what counts
        run, (losses, outputs) = learner.scan(
            run, np.pad(xs[start:stop], pad), np.pad(targets[start:stop], pad), count=stop - start, outputs=True
        )
        shown = outputs if learner.horizon else (outputs, outputs)
        parts.append((losses[: stop - start], *(np.asarray(part)[: stop - start] for part in shown)))
    return run, *(np.concatenate(part) for part in zip(*parts, strict=True))


@pytest.mark.parametrize("horizon", [0, 1, 4])
def test_the_mixture_learns_what_follows_what_and_nothing_comes_from_the_future(horizon):
    learner = ClassLearner([], 4, horizon)
    xs, targets = table()
    run, losses, made, due = scanned(learner, xs, targets)
    np.testing.assert_allclose(np.exp(made).sum(axis=1), 1, rtol=1e-5)
    if horizon:
        np.testing.assert_array_equal(due[horizon:], made[:-horizon])
    known = ~np.isnan(targets[:, 0])
    came = targets[known, 0].astype(int)
    np.testing.assert_allclose(losses[known], -due[known, came], rtol=1e-6)
    assert (losses[~known] == 0).all()
    assert losses[-60:].mean() < 0.75 < np.log(3)
    # Cuts change nothing, and no forecast depends on a later class.
    for cuts in ((1,), (3, 4, 60)):
        assert_same(scanned(learner, xs, targets, cuts), (run, losses, made, due))
    other = table(seed=1)[1]
    for t in range(0, ROWS, 7):
        changed = np.concatenate([targets[: t + 1], other[t + 1 :]])
        _, _, again, _ = scanned(learner, xs, changed)
        np.testing.assert_array_equal(again[: t + 1], made[: t + 1])
    if not horizon:
        # Not even on that of its own row.
        changed = targets.copy()
        changed[80] = (changed[80] + 1) % 3
        np.testing.assert_array_equal(scanned(learner, xs, changed)[2][:81], made[:81])


def plain_loop(targets, logits, horizon):
    """What `ClassLearner` does with one member, in the words of its docstring: the forecast made at each row."""
    counts, pairs = np.full(4, PRIOR), np.full((4, 4), PRIOR)
    weights, classes, made, mixtures = np.full(3, 1 / 3), [], [], []
    for t, target in enumerate(targets):

        def learn(came, forecasts, t=t):
            nonlocal weights
            gained = weights * forecasts[:, came]
            weights = gained / gained.sum()
            weights = (1 - SWITCHING) * weights + SWITCHING / 2 * (1 - weights)
            counts[:] = REMEMBERED * counts + np.eye(4)[came]
            before = classes[t - max(1, horizon)] if t >= max(1, horizon) else -1
            if before >= 0:
                pairs[before] = REMEMBERED * pairs[before] + np.eye(4)[came]

        came = -1 if np.isnan(target) else int(target)
        if horizon and came >= 0:
            learn(came, made[t - horizon] if t >= horizon else np.full((3, 4), 1 / 4))
        latest = classes[-1] if classes else -1
        classes.append(came if came >= 0 else latest)
        newest = classes[-1] if horizon else latest
        of_all = counts / counts.sum()
        after = of_all if newest < 0 else (pairs[newest] + of_all) / (pairs[newest] + of_all).sum()
        own = np.exp(logits[t]) / np.exp(logits[t]).sum()
        made.append((1 - 4 * LEAST) * np.stack([of_all, after, own]) + LEAST)
        mixtures.append(weights @ made[t])
        if not horizon and came >= 0:
            learn(came, made[t])
    return np.log(mixtures)


class Given:
    """A member that forecasts what it is told to."""

    def __init__(self, horizon):
        self.horizon = horizon

    def scan(self, run, xs, targets, *, count, outputs):
        return run, (None, (xs, None) if self.horizon else xs)


@pytest.mark.parametrize("horizon", [0, 1, 3])
def test_the_mixture_is_that_of_a_plain_loop(horizon):
    _, targets = table()
    logits = np.random.default_rng(2).normal(size=(ROWS, 4)).astype(np.float32)
    learner = ClassLearner([(Given(horizon), ())], 4, horizon)
    _, _, made, _ = scanned(learner, logits, targets, (11, 60))
    np.testing.assert_allclose(made, plain_loop(targets[:, 0], logits.astype(float), horizon), atol=2e-5)


def test_a_member_that_fails_does_not_take_the_others_along():
    _, targets = table()
    logits = np.full((ROWS, 4), np.nan, np.float32)
    learner = ClassLearner([(Given(1), ())], 4, 1)
    _, losses, made, _ = scanned(learner, logits, targets)
    assert np.isfinite(made).all()
    assert losses[-60:].mean() < 0.75


class Oracle:
    """A member that is told the class that comes `horizon` rows later, as its input."""

    def scan(self, run, xs, targets, *, count, outputs):
        return run, (None, (20 * np.eye(4)[xs[:, 0].astype(int)], None))


def test_a_member_is_weighed_by_what_it_had_forecast():
    random = np.random.default_rng(0).integers(0, 4, ROWS + 4).astype(np.float32)[:, None]
    learner = ClassLearner([(Oracle(), ())], 4, 4)
    _, losses, *_ = scanned(learner, random[4:], random[:ROWS])
    assert losses[20:].max() < 0.01


def test_cross_entropy_of_known_classes():
    logits = np.log(np.array([0.5, 0.25, 0.25], np.float32))
    assert float(known_cross_entropy(logits, np.array([1.0]))) == pytest.approx(np.log(4))
    assert float(known_cross_entropy(logits, np.array([np.nan]))) == 0


def test_text_booleans_and_labels_are_classes():
    for written in (["eco", "fast"], ["true", "false"], ["0", "1"]):
        text = "a,y\n" + "".join(f"{i * i},{written[i % 2]}\n" for i in range(9)) + "5,\n"
        with Pipe(text.encode()) as source:
            stream = RowStream(source, dialect=CLASSES, targets=["y"])
            samples = stream.take(100)
        assert stream.inputs == ["a", "y"]
        assert stream.width == 17
        np.testing.assert_array_equal(samples.targets[:, 0], [np.nan, 1, 0, 1, 0, 1, 0, 1, 0, np.nan])
        assert [stream.class_name(number) for number in (0, 1, 2)] == [*written, "(another)"]
    with Pipe(b"a,y\n1,eco\n2,fast\n") as source, pytest.raises(StreamError, match="'y' is text. .*--loss classes"):
        RowStream(source, targets=["y"])


@pytest.mark.parametrize("horizon", [0, 1, 3])
def test_accuracies_are_those_of_their_definition(horizon):
    _, targets = table()
    values = targets[:, 0]
    text = "y\n" + "".join("\n" if value != value else f"c{int(value)}\n" for value in values)
    text = text.replace("\n\n", '\n""\n').replace("y\n", "y,x\n", 1).replace("\n", ",1\n").replace("x,1", "x")
    with Pipe(text.encode()) as source:
        stream = RowStream(source, dialect=CLASSES, inputs=["x"], targets=["y"], horizon=horizon)
        samples = stream.take(1_000)
    guesses = np.random.default_rng(1).normal(size=(ROWS, 17))
    score = ClassScore(17, stream.class_name, horizon)
    scored = score.add(samples, (guesses, guesses) if horizon else guesses)
    line = score.take()
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
    words = class_words([{"samples": ROWS, "loss": 2.0, **line}])
    assert "Warning" in words
    entries = list(score.predictions(1, samples, (guesses, guesses) if horizon else guesses))
    assert entries[20]["target"] == stream.class_name(int(samples.values[20, 0]))
    assert ("forecast" in entries[20]) == (horizon > 0)


@pytest.mark.parametrize("horizon", [0, 2])
def test_the_newest_rows_have_their_class_its_forecast_and_its_probability(horizon, tmp_path):
    rng = np.random.default_rng(2)
    targets = rng.integers(3, size=(450, 1)).astype(np.float32)
    targets[[5, 440]] = np.nan
    logits = rng.normal(size=(450, 17))
    outputs = (np.zeros_like(logits), logits) if horizon else logits
    whole, parts = ClassScore(17, str, horizon), ClassScore(17, str, horizon)
    whole.add(Samples(targets, targets, values=targets.astype(float)), outputs)
    for cut in np.split(np.arange(450), [1, 7, 300, 301, 440]):
        own = tuple(part[cut] for part in outputs) if horizon else outputs[cut]
        parts.add(Samples(targets[cut], targets[cut], values=targets[cut].astype(float)), own)
    stretch = whole.state["stretch"]
    np.testing.assert_array_equal(parts.state["stretch"], stretch)
    assert len(stretch) == 200
    assert np.isnan(stretch[190]).all()
    came, made, probability = stretch[-1].tolist()
    shares = np.exp(logits[-1]) / np.exp(logits[-1]).sum()
    assert (came, made) == (targets[-1, 0], logits[-1].argmax())
    assert probability == pytest.approx(shares[int(came)])
    assert draw_classes(stretch, str, 450, tmp_path / "stretch.png").stat().st_size > 10_000
    assert draw_classes(np.full((3, 3), np.nan), str, 3, tmp_path / "none.png").stat().st_size > 5_000


def test_the_warning_shows_by_how_much_a_rule_is_better_and_there_is_none_for_as_good():
    lines = [{"samples": 2_000, "loss": 1.0, "scored": 1_001, "accuracy": 0.570430, "last": 0.2}]
    words = class_words([{**lines[0], "majority": 0.571429}])
    assert "the majority class was right more often than this model, 572 times against 571." in words
    assert "Warning" not in class_words([{**lines[0], "majority": 0.570430}])
    # Rounding in the lines is no difference.
    assert "Warning" not in class_words([{**lines[0], "majority": 0.570431}])


def test_the_state_of_another_score_is_refused(tmp_path):
    state = ClassScore(3, str, (0,)).state
    check_score(tmp_path, {**state, "stretch": np.zeros((4, 3))}, state)
    for saved in ({**state, "stretch": np.zeros((4, 2))}, {**state, "rows": 1.5}, {**state, "rows": -1}, {}):
        with pytest.raises(CheckpointError, match="not that of this stream"):
            check_score(tmp_path, saved, state)
