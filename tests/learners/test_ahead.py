"""`AheadLearner` equals a plain loop, and no forecast uses later rows."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from alike import assert_same
from quick import slow_but
from run_folders import MODEST, at_sample, crash, everything, norewind

from norewind import bptt, online, rtrl, uoro, window
from norewind.core.losses import known_squared_error, squared_error
from norewind.core.run import NonFiniteError
from norewind.learners import AheadLearner
from norewind.streams import RowStream, Source
from norewind.training.fit import fit
from norewind.training.log import read_log

ROWS, RATE = 30, 0.1
SLOW = pytest.mark.slow
CASES = [
    ("rtrl", (3,)),
    ("rtrl", (1, 2, 6)),
    ("bptt:4", (1, 2, 6)),
    *(
        pytest.param(method, steps, marks=SLOW)
        for method, steps in [("rtrl", (1,)), ("bptt:4", (1,)), ("bptt:4", (3,))]
    ),
]


def transition(params, state, x):
    state = jnp.tanh(params["recurrent"] @ state + params["input"] @ x + params["bias"])
    return state, params["readout"] @ state


def model(steps=1):
    random = np.random.default_rng(0)
    shapes = {"recurrent": (3, 3), "input": (3, 2), "bias": (3,), "readout": (2 * steps, 3)}
    params = {name: jnp.asarray(random.normal(size=shape)) for name, shape in shapes.items()}
    return params, jnp.asarray(random.normal(size=3))


def table(rows=ROWS, seed=1, steps=1):
    """Return inputs, and targets for each of `steps` steps. Two targets are missing, as in a table with gaps."""
    xs, targets = np.random.default_rng(seed).normal(size=(2, rows, 2))
    targets[5, 0] = targets[11] = np.nan
    return xs, np.tile(targets, steps)


def ahead_of(method, steps, loss=known_squared_error):
    """Return a learner and its initial run."""
    estimator = {"rtrl": rtrl, "uoro": uoro}.get(method)
    made = estimator(transition, loss) if estimator else bptt(*window(transition, loss))
    learner = AheadLearner(online(made, optax.sgd(RATE)), loss, steps, 1 if estimator else 4)
    x, row = np.zeros(2, jnp.zeros(()).dtype), np.zeros(2 * len(steps), jnp.zeros(()).dtype)
    return learner, learner.init(learner.learner.init(*model(len(steps)), jax.random.key(2)), x, row, row)


def in_steps(learner, *parts, steps=None):
    """Arrange rows as steps of the learner, padded to `steps` steps."""
    padded = []
    for part in parts:
        rows = len(part) if steps is None else steps * learner.window
        full = np.concatenate([part, np.zeros((rows - len(part), *part.shape[1:]), part.dtype)])
        padded.append(full if learner.window == 1 else full.reshape(-1, learner.window, *part.shape[1:]))
    return padded


def scanned(learner, run, xs, targets, cuts=(), steps=None):
    """Return the run after all whole windows, the forecasts made and due, and the losses. Chunks end at the cuts."""
    size, parts = learner.window, []
    ends = [*(cut * size for cut in cuts), len(xs) // size * size]
    for start, stop in zip([0, *ends[:-1]], ends, strict=True):
        count = (stop - start) // size
        chunk = in_steps(learner, xs[start:stop], targets[start:stop], steps=steps)
        run, losses, outputs = learner.scan(run, *chunk, count=count, outputs=True)
        assert np.array_equal(losses[count:], np.zeros(len(losses) - count))
        flat = [np.reshape(part, (-1, part.shape[-1]))[: stop - start] for part in outputs]
        parts.append((*flat, losses[:count]))
    return run, *(np.concatenate(part) for part in zip(*parts, strict=True))


# The order of learning and forecasting.


@jax.jit
def exact_gradient(params, state, influence, xs, targets):
    """Do one step of RTRL by its definition: the gradient, the new state and its derivative by the parameters."""
    by_state, by_params = jax.jacobian(lambda s, p: transition(p, s, xs[0])[0], argnums=(0, 1))(state, params)
    influence = jax.tree.map(lambda past, now: jnp.tensordot(by_state, past, 1) + now, influence, by_params)
    state, _ = transition(params, state, xs[0])

    def loss(state, readout):
        return known_squared_error(readout @ state, targets[0])

    by_state, by_readout = jax.grad(loss, argnums=(0, 1))(state, params["readout"])
    gradient = jax.tree.map(lambda past: jnp.tensordot(by_state, past, 1), influence)
    return {**gradient, "readout": by_readout}, state, influence


@jax.jit
def window_gradient(params, state, influence, xs, targets):
    """Truncated BPTT by its definition."""

    def loss(params):
        total, now = 0.0, state
        for x, target in zip(xs, targets, strict=True):
            now, output = transition(params, now, x)
            total += known_squared_error(output, target)
        return total, now

    gradient, state = jax.grad(loss, has_aux=True)(params)
    return gradient, state, influence


def plain_loop(xs, targets, steps, size, gradient_of):
    """At every row, learn from the latest window whose targets have arrived, then forecast from this row."""
    params, state = model(len(steps))
    step = jax.jit(transition)
    influence = jax.tree.map(lambda leaf: jnp.zeros((3, *leaf.shape)), params)
    latest_state, learned, forecasts, losses = state, None, [], []
    for t in range(len(xs)):
        if t % size == 0:
            come = [i for i in range(len(xs)) if i + steps[-1] <= t][-size:]
            if len(come) == size:
                if learned is None:
                    for i in range(come[0]):  # too few rows to fill a window
                        state, _ = step(params, state, xs[i])
                assert learned in (None, come[0] - 1)
                learned = come[-1]
                # The targets of a row arrive this many rows later.
                later = [np.concatenate([targets[i + ahead][:2] for ahead in steps]) for i in come]
                rows = [xs[i] for i in come], later
                gradient, state, influence = gradient_of(params, state, influence, *rows)
                params = jax.tree.map(lambda leaf, slope: leaf - RATE * slope, params, gradient)
        latest_state, forecast = step(params, latest_state, xs[t])
        forecasts.append(forecast)
        blocks = [
            (forecasts[t - ahead][2 * s : 2 * s + 2], targets[t][:2]) for s, ahead in enumerate(steps) if t >= ahead
        ]
        losses.append(sum(float(known_squared_error(*block)) for block in blocks))
    return (params, state, latest_state), np.array(forecasts), np.array(losses)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("method", "steps"), CASES)
def test_it_is_the_plain_loop(method, steps):
    xs, targets = table(steps=len(steps))
    learner, start = ahead_of(method, steps)
    rows = ROWS // learner.window * learner.window
    gradient_of = exact_gradient if method == "rtrl" else window_gradient
    after, forecasts, losses = plain_loop(xs[:rows], targets[:rows], steps, learner.window, gradient_of)
    for cuts in ((), (1, 2, 5), (3,)):
        run, made, due, seen = scanned(learner, start, xs, targets, cuts)
        np.testing.assert_allclose(made, forecasts, rtol=1e-10, atol=1e-10)
        for place, ahead in enumerate(steps):
            block = slice(2 * place, 2 * place + 2)
            np.testing.assert_array_equal(due[ahead:, block], made[:-ahead, block])
        np.testing.assert_allclose(seen, losses.reshape(-1, learner.window).sum(axis=1), rtol=1e-10, atol=1e-10)
        assert_same((run.run.params, run.run.state, run.run.latest_state), after, 1e-10)
        assert int(run.samples) == rows
        # Everything pending: the rows whose targets have not been learned from, and the forecasts of future rows.
        np.testing.assert_array_equal(run.xs, xs[rows - learner.delay : rows])
        np.testing.assert_array_equal(run.outputs, made[-steps[-1] :])
        # Each future row is forecast by the nearest step that reaches it.
        for row, forecast in enumerate(learner.upcoming(run), 1):
            place = next(place for place, ahead in enumerate(steps) if ahead >= row)
            expected = made[rows - 1 - (steps[place] - row), 2 * place : 2 * place + 2]
            np.testing.assert_array_equal(forecast, expected)


@pytest.mark.parametrize(("method", "steps"), [*CASES, ("uoro", (3,))])
def test_cuts_change_no_bit_in_chunks_of_one_length(method, steps):
    xs, targets = (part.astype(np.float32) for part in table(steps=len(steps)))
    learner, start = ahead_of(method, steps)
    whole = scanned(learner, start, xs, targets, steps=ROWS)
    for cuts in ((1,), (2, 3, 6), range(1, ROWS // learner.window)):
        assert_same(scanned(learner, start, xs, targets, cuts, ROWS), whole)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("method", slow_but(["rtrl", "uoro"], "uoro"))
def test_one_row_ahead_is_the_learner_itself_on_shifted_pairs(method):
    xs, targets = table()
    learner, start = ahead_of(method, (1,))
    run, made, _, losses = scanned(learner, start, xs, targets)
    expected, their_losses, outputs = learner.learner.scan(
        start.run._replace(latest_state=None), xs[:-1], targets[1:], outputs=True
    )
    np.testing.assert_allclose(made[:-1], outputs, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(losses[1:], their_losses, rtol=1e-12, atol=1e-12)
    assert losses[0] == 0
    assert_same(run.run._replace(latest_state=None), expected, 1e-12)


def test_without_learning_only_the_latest_state_moves():
    xs, targets = (part.astype(np.float32) for part in table())
    learner, start = ahead_of("bptt:4", (3,))
    trained, *_ = scanned(learner, start, xs, targets)
    run, outputs = trained.run.latest_state, []
    for x in xs:
        run, output = transition(trained.run.params, run, x)
        outputs.append(output)
    for cuts in ([30], [1, 30], [2, 17, 30]):
        after, made, due = trained, [], []
        for first, last in zip([0, *cuts[:-1]], cuts, strict=True):
            after, parts = learner.forward(after, np.resize(xs[first:last], (30, 2)), count=last - first)
            made, due = [*made, *parts[0][: last - first]], [*due, *parts[1][: last - first]]
        np.testing.assert_allclose(made, outputs, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(due, [*trained.outputs, *made[:-3]])
        assert_same(after.run._replace(latest_state=None), trained.run._replace(latest_state=None))


def test_a_reset_begins_again_with_the_parameters_learned():
    xs, targets = (part.astype(np.float32) for part in table())
    learner, start = ahead_of("bptt:4", (3,))
    trained, *_ = scanned(learner, start, xs, targets)
    again = learner.reset(trained)
    params = start.run._replace(params=trained.run.params, steps=trained.run.steps, samples=trained.run.samples)
    assert_same(again, start._replace(run=params))


def test_bad_arguments_raise_errors(tmp_path):
    for steps in ((0, 1), (), (2, 1), (1, 1)):
        with pytest.raises(ValueError, match="AheadLearner: steps must be"):
            AheadLearner(ahead_of("rtrl", (1,))[0].learner, squared_error, steps)
    learner, run = ahead_of("rtrl", (1,))
    xs, targets = table()
    for wrong in (run.run._replace(latest_state=None), {}), (run.run, {"resets": np.zeros(ROWS, bool)}):
        with pytest.raises(ValueError, match="with `latest`, the run must have a `latest_state`"):
            learner.learner.scan(wrong[0], xs, targets, latest=xs, **wrong[1])
    with pytest.raises(ValueError, match="forward: count is 31"):
        learner.learner.forward(run.run, xs, count=31)
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n1,2\n")
    for steps, size, message in (
        ((2,), 1, "use norewind.learners.AheadLearner.*steps=stream.steps"),
        ((3,), 4, "takes windows of 1"),
        ((0,), 1, "use norewind.learners.AheadLearner.*steps=stream.steps"),
    ):
        learner, run = ahead_of("rtrl", (3,))
        columns = {"inputs": ["a"], "targets": ["b"]} if steps == (0,) else {}
        with RowStream(Source(path), steps=steps, **columns) as stream, pytest.raises(ValueError, match=message):
            fit(stream, learner, run, window=size)


@pytest.mark.parametrize(("method", "bad"), [("rtrl", 17), ("rtrl", 1), ("bptt:4", 17)])
def test_numbers_that_are_not_finite_leave_the_run_before_them(method, bad):
    """Continuing from the last good run without the bad row gives the same numbers as a stream without it."""
    xs, targets = (part.astype(np.float32) for part in table())
    learner, start = ahead_of(method, (3,))
    worse = xs.copy()
    worse[bad] = np.inf
    with pytest.raises(NonFiniteError) as caught:
        scanned(learner, start, worse, targets, steps=ROWS)
    # It is noticed when it is forecast from or, before anything has been learned, when it is learned from.
    step = (bad if bad >= learner.delay else bad + learner.delay) // learner.window
    good, *_ = scanned(learner, start, xs[: step * learner.window], targets[: step * learner.window], steps=ROWS)
    assert int(caught.value.run.samples) == step * learner.window
    if bad >= learner.delay:
        assert_same(caught.value.run, good)


def test_the_last_good_run_keeps_its_latest_state():
    xs, targets = (part.astype(np.float32) for part in table())
    learner, start = ahead_of("rtrl", (3,))
    worse = xs.copy()
    worse[17] = np.inf
    with pytest.raises(NonFiniteError) as caught:
        learner.learner.scan(start.run, xs[:-3], targets[3:], latest=worse[3:])
    good, _, _ = learner.learner.scan(start.run, xs[:-3], targets[3:], latest=xs[3:], count=14)
    assert caught.value.step == 15
    assert_same(caught.value.run, good, 1e-6)


def test_skipped_numbers_leave_the_latest_state_finite():
    xs, targets = (part.astype(np.float32) for part in table())
    xs[17] = np.inf
    _, start = ahead_of("rtrl", (3,))
    learner = AheadLearner(
        online(rtrl(transition, known_squared_error), optax.sgd(RATE), nonfinite="skip"), known_squared_error, (3,)
    )
    run, made, *_ = scanned(learner, start, xs, targets)
    assert int(run.run.skipped) == 1
    assert np.isfinite(made[18:]).all()
    assert np.isfinite(run.run.latest_state).all()


# Nothing from the future.


@pytest.mark.parametrize(("method", "steps"), [*CASES, ("uoro", (6,))])
def test_no_forecast_depends_on_a_later_row(method, steps):
    xs, targets = parts = [part.astype(np.float32) for part in table(steps=len(steps))]
    others = [part.astype(np.float32) for part in table(seed=2, steps=len(steps))]
    learner, start = ahead_of(method, steps)
    _, made, due, losses = scanned(learner, start, xs, targets)
    for t in range(len(made)):
        changed = [np.concatenate([part[: t + 1], other[t + 1 :]]) for part, other in zip(parts, others, strict=True)]
        _, other_made, other_due, other_losses = scanned(learner, start, *changed)
        np.testing.assert_array_equal(other_made[: t + 1], made[: t + 1])
        np.testing.assert_array_equal(other_due[: t + 1], due[: t + 1])
        whole = (t + 1) // learner.window
        np.testing.assert_array_equal(other_losses[:whole], losses[:whole])
        # Every forecast does depend on the latest targets, which arrive with the first row of a window.
        if t >= learner.delay and t % learner.window == 0 and np.isfinite(targets[t]).all():
            newer = targets.copy()
            newer[t] += 1
            assert (scanned(learner, start, xs, newer)[1][t] != made[t]).any()


BLOCK = 6
TRAIN = ("--only-steps", BLOCK, "--inputs", "x", "--targets", "y", "--predictions", "file", *MODEST, "--no-standardise")


def signs(rows, times=1):
    """Return rows in blocks as long as the horizon. All targets of a block share a random sign."""
    blocks = times * np.random.default_rng(0).choice([-1, 1], -(-rows // BLOCK))
    return [f"{times * np.sin(t):.3f},{sign}\n" for t, sign in enumerate(np.repeat(blocks, BLOCK)[:rows], 1)]


def write(path, rows):
    path.write_text("x,y\n" + "".join(rows))
    return path


@pytest.mark.usefixtures("shared_programs")
def test_random_signs_of_later_blocks_are_not_forecast(tmp_path):
    """A learner of shifted pairs has seen the rows in between, and so the sign of the next block: its loss was 0.79."""
    source = write(tmp_path / "signs.csv", signs(3_000))
    options = (*TRAIN, "--method", "rtrl", "--optimizer", "sgd", "--rate", 0.1, "--alpha", 0)
    assert norewind("train", source, "--out", tmp_path / "run", *options) == 0
    # Without knowledge of the sign, the best forecast is 0, with an error of 1.
    assert read_log(tmp_path / "run" / "metrics.jsonl")[-1]["mean"] > 0.97
    entries = read_log(tmp_path / "run" / "predictions.jsonl")
    errors = [(entry["target"]["y"] - entry["prediction"]["y"]) ** 2 for entry in entries[BLOCK:]]
    assert np.mean(errors) > 0.97


@pytest.mark.usefixtures("shared_programs")
@pytest.mark.parametrize("method", slow_but(["rtrl", "bptt:4"], "bptt:4"))
def test_no_prediction_in_a_file_depends_on_a_later_row(tmp_path, capsys, method):
    rows, others = signs(32), signs(32, times=-1)
    options = (*TRAIN, "--method", method, "--rate", 0.1)

    def trained(name, rows):
        assert norewind("train", write(tmp_path / f"{name}.csv", rows), "--out", tmp_path / name, *options) == 0
        return read_log(tmp_path / name / "predictions.jsonl")

    def learning(name, rows):
        """Learn from twelve rows, then predict the rest."""
        write(tmp_path / f"{name}.csv", rows[:12])
        assert norewind("train", tmp_path / f"{name}.csv", "--out", tmp_path / name, *options) == 0
        write(tmp_path / f"{name}.csv", rows)
        capsys.readouterr()
        assert norewind("predict", tmp_path / name, "--learn") == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    whole, rest = trained("whole", rows), learning("rest", rows)
    assert [entry["sample"] for entry in whole] == list(range(1, 33))
    # The forecasts do not depend on how they are requested.
    assert [entry["forecast"] for entry in rest] == [entry["forecast"] for entry in whole[12:]]
    for t in range(1, 32, 1 if method == "rtrl" else 5):
        changed = trained(f"train{t}", rows[:t] + others[t:])
        assert changed[:t] == whole[:t]
        # Later rows do influence later forecasts.
        assert changed[t]["forecast"] != whole[t]["forecast"]
        if t > 12:
            assert learning(f"learn{t}", rows[:t] + others[t:])[: t - 12] == rest[: t - 12]


# Interruptions.


@pytest.mark.usefixtures("shared_programs")
@pytest.mark.parametrize(("method", "moment"), [("uoro:window=4", 1), ("uoro:window=4", 700), ("rtrl", 400)])
def test_a_crash_changes_nothing(tmp_path, monkeypatch, method, moment):
    source = write(tmp_path / "signs.csv", signs(900))
    options = (*TRAIN, "--method", method)
    assert norewind("train", source, "--out", tmp_path / "whole", *options) == 0

    with monkeypatch.context() as patch:
        at_sample(patch, moment, crash)
        with pytest.raises(RuntimeError, match="a crash"):
            norewind("train", source, "--out", tmp_path / "run", *options)
    assert norewind("resume", tmp_path / "run", "--quiet") == 0
    assert everything(tmp_path / "run") == everything(tmp_path / "whole")


@pytest.mark.usefixtures("shared_programs")
@pytest.mark.parametrize("lengths", [(3, 7, 8, 61, 62, 200), (9, 10, 11, 12, 13, 200)])
def test_a_file_that_grows_changes_nothing(tmp_path, lengths):
    """This includes interruptions within the first rows and within a window."""
    rows = signs(200)
    options = (*TRAIN, "--method", "bptt:4", "--flush", 0.01)
    source = write(tmp_path / "signs.csv", rows)
    assert norewind("train", source, "--out", tmp_path / "whole", *options) == 0
    write(source, rows[: lengths[0]])
    assert norewind("train", source, "--out", tmp_path / "run", *options) == 0
    for length in lengths[1:]:
        write(source, rows[:length])
        assert norewind("resume", tmp_path / "run", "--quiet") == 0
    assert everything(tmp_path / "run") == everything(tmp_path / "whole")
