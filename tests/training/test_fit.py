"""Tests of norewind.fit."""

import json
import os
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from run_folders import everything

import norewind
from norewind.core.run import NonFiniteError
from norewind.errors import Diverged
from norewind.scoring.score import Score
from norewind.storage.checkpoint import CheckpointError, checkpoints
from norewind.streams import ByteStream, Source, TaskStream
from norewind.training.fit import FitResult, Hooks, Intervals, IteratedStream
from norewind.training.folder import FolderInUse, RunFolder, last_good_checkpoint
from norewind.training.log import read_log
from norewind.training.windows import WindowedStream

pytestmark = pytest.mark.usefixtures("shared_programs")

WINDOW = 3


def transition(params, state, x):
    """A model whose inputs and state are trees; the state holds a counter and a key."""
    noise, key = jax.random.split(state["key"])
    h = jnp.tanh(params["w"] @ state["h"] + params["u"] * x["signal"] + x["bias"][0])
    h = h + 1e-3 * jax.random.normal(noise, h.shape)
    return {"h": h, "seen": state["seen"] + 1, "key": key}, params["out"] @ h


@pytest.fixture(scope="module")
def model():
    estimator = norewind.uoro(*norewind.window(transition, norewind.losses.squared_error))
    learner = norewind.online(estimator, optax.adam(1e-2))
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "w": jax.random.normal(keys[0], (4, 4)) / 4,
        "u": jax.random.normal(keys[1], (4,)),
        "out": jnp.zeros(4),
    }
    state = {"h": jnp.zeros(4), "seen": jnp.array(0), "key": keys[2]}
    return learner, learner.init(params, state, keys[3])


def pairs(count=400):
    """Pairs of trees, whose number is not a multiple of the window."""
    for i in range(count):
        yield (
            {"signal": np.float32(np.sin(i / 5)), "bias": np.array([0.1, i % 2], np.float32)},
            np.float32(np.sin(i / 5 + 0.2)),
        )


def train(model, stream=None, **options) -> FitResult:
    """Call `fit` with short intervals. Options are hooks or intervals by name."""
    rare = {name: options.pop(name) for name in Intervals.__dataclass_fields__ if name in options}
    hooks = {name: options.pop(name) for name in Hooks.__dataclass_fields__ if name in options}
    given = {
        "window": WINDOW,
        "intervals": Intervals(**{"metrics_every": 50, "checkpoint_every": 40, **rare}),
        "hooks": Hooks(**hooks),
        **options,
    }
    return norewind.fit(pairs() if stream is None else stream, *model, **given)


def leaves(run):
    return [
        np.asarray(jax.random.key_data(leaf) if leaf.dtype.name.startswith("key") else leaf).tolist()
        for leaf in jax.tree.leaves(run)
    ]


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit") / "whole"
    lines: list = []
    fitted = train(model, folder=folder, metrics=lines.append)
    return folder, fitted, lines


def test_metrics_are_the_losses_of_the_learner(model, whole):
    learner, run = model
    folder, fitted, lines = whole
    assert (fitted.samples, fitted.ended) == (399, True)
    assert lines == read_log(folder / "metrics.jsonl")
    assert [line["samples"] for line in lines] == [51, 102, 150, 201, 252, 300, 351, 399]
    stream = IteratedStream(pairs(399), WINDOW)
    windowed = WindowedStream(stream, WINDOW)
    taken = windowed.take(133)
    assert taken is not None
    # With the same compiled program, since learning amplifies differences in rounding.
    run, losses, _ = learner.scan(run, *windowed.as_windows(taken, learner.chunk_size(run) // WINDOW), count=133)
    # The mean of every sample, although there is one loss per window of three.
    assert lines[0]["loss"] == pytest.approx(float(losses[:17].sum()) / 51, rel=1e-5)
    # Every line covers its own interval.
    assert lines[1]["loss"] == pytest.approx(float(losses[17:34].sum()) / 51, rel=1e-5)
    assert lines[-1]["mean"] == pytest.approx(float(losses.sum()) / 399, rel=1e-5)
    assert int(fitted.run.samples) == 399
    assert int(fitted.run.state["seen"]) == 399


def test_callbacks_are_called_with_everything(model, tmp_path):
    paths, chunks, outputs = [], [], []
    fitted = train(
        model,
        folder=tmp_path,
        samples=100,
        checkpoint=paths.append,
        chunk=lambda samples, loss: chunks.append((samples, loss)),
        outputs=lambda first, samples, out: outputs.append((first, len(samples.targets), out.shape)),
    )
    assert fitted == (fitted.run, 99, False, fitted.run.carry)
    assert [int(path.name[:15]) for path in paths] == [42, 81, 99]
    assert checkpoints(tmp_path / "checkpoints") == paths
    assert [samples for samples, _ in chunks] == [42, 51, 81, 99]
    assert outputs == [(1, 42, (42,)), (43, 9, (9,)), (52, 30, (30,)), (82, 18, (18,))]


def test_without_a_folder_nothing_is_written(model, whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fitted = train(model)
    assert leaves(fitted.run) == leaves(whole[1].run)
    assert list(tmp_path.iterdir()) == []


class Stop(Exception):
    pass


@pytest.mark.parametrize("moment", [51, 102, 351, 399])
def test_an_interrupted_call_resumes_exactly(model, whole, tmp_path, moment):
    def interrupt(line):
        if line["samples"] == moment:
            raise Stop

    with pytest.raises(Stop):
        train(model, folder=tmp_path, metrics=interrupt)
    fitted = train(model, folder=tmp_path)
    assert everything(tmp_path) == everything(whole[0])
    assert leaves(fitted.run) == leaves(whole[1].run)
    assert fitted.ended


def test_stopping_and_resuming_many_times(model, whole, tmp_path):
    for samples in range(20, 420, 20):
        fitted = train(model, folder=tmp_path, samples=samples)
        assert fitted.samples == min(samples // 3 * 3, 399)
    assert everything(tmp_path) == everything(whole[0])


def test_a_checkpoint_that_is_being_written_when_a_call_fails_is_finished(model, tmp_path, monkeypatch):
    fsync = os.fsync

    def slow(descriptor):
        time.sleep(0.2)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)

    def interrupt(line):
        raise Stop

    with pytest.raises(Stop):
        train(model, folder=tmp_path, metrics=interrupt)
    assert [int(path.name[:15]) for path in checkpoints(tmp_path / "checkpoints")] == [42]


def test_an_error_in_a_background_callback_is_raised(model, tmp_path):
    def fail(path):
        raise Stop

    with pytest.raises(Stop):
        train(model, folder=tmp_path, checkpoint=fail)


def test_checkpoints_can_be_written_at_time_intervals(model, tmp_path):
    paths: list = []
    options = {"checkpoint_every": None, "checkpoint_seconds": 1e-9}
    train(model, folder=tmp_path, checkpoint=paths.append, samples=150, **options)
    assert [int(path.name[:15]) for path in paths] == [51, 102, 150]


def windowed_bytes():
    """Return a learner of bytes in windows, and its initial run."""
    cell = norewind.cells.rnn(inputs=256, hidden=3, outputs=256, symbols=True)
    estimator = norewind.bptt(*norewind.window(cell.transition, norewind.losses.cross_entropy))
    learner = norewind.online(estimator, optax.sgd(0.1))
    run = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    return learner, run


def test_a_stream_that_is_opened_at_a_position(tmp_path):
    """Bytes in windows of two. Those that do not fill a window are saved in the checkpoint."""
    learner, run = windowed_bytes()
    text = tmp_path / "text"

    def stream(position):
        return ByteStream(Source(text), position=position)

    def go(folder, content, flush=None):
        text.write_bytes(content)
        return norewind.fit(
            stream, learner, run, window=4, folder=tmp_path / folder, intervals=Intervals(metrics_every=50, flush=flush)
        )

    letters = b"abcd" * 100
    go("whole", letters)
    for length in (150, 150, 151, 152, 400):
        go("pieces", letters[:length])
    assert everything(tmp_path / "pieces") == everything(tmp_path / "whole")
    go("patient", letters, flush=0.1)
    assert everything(tmp_path / "patient") == everything(tmp_path / "whole")
    with pytest.raises(ValueError, match="Pass a function that opens"):
        norewind.fit(stream(None), learner, run, window=4, folder=tmp_path / "whole")


def test_an_endless_stream_can_be_stopped(tmp_path):
    cell = norewind.cells.rnn(inputs=3, hidden=3, outputs=3, symbols=True)
    learner = norewind.online(norewind.bptt(cell.transition, norewind.losses.cross_entropy), optax.sgd(0.1))
    run = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    stream = TaskStream(norewind.tasks.anbn(), 0)
    fitted = norewind.fit(stream, learner, run, samples=2_500)
    assert (fitted.samples, fitted.ended) == (2_500, False)
    # Nothing was read from the stream beyond the samples learned from.
    assert stream.position()["characters"] == 2_500
    asked = iter([False, False, True])
    assert (
        norewind.fit(
            stream,
            learner,
            fitted.run,
            intervals=Intervals(metrics_every=10_000),
            hooks=Hooks(should_stop=lambda: next(asked, True)),
        ).samples
        == 8_000
    )


@pytest.mark.parametrize("name", ["window", "metrics_every", "checkpoint_every", "keep"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_impossible_numbers_are_rejected(model, name, value):
    with pytest.raises(ValueError, match=f"fit: {name} must be"):
        train(model, **{name: value})


def test_items_that_are_not_pairs_are_rejected(model):
    with pytest.raises(ValueError, match="item 4 of the stream is not a pair"):
        train(model, [*pairs(3), 7.0, *pairs(5)])
    with pytest.raises(ValueError, match="item 4 of the stream is not a pair"):
        train(model, [*pairs(3), (1, 2, 3), *pairs(5)])
    with pytest.raises(ValueError, match="item 4 .* has the shapes .* All pairs must have the same structure"):
        train(model, [*pairs(3), ({"signal": 1.0}, 2.0), *pairs(5)])
    with pytest.raises(ValueError, match=r"item 4 .* has the shapes .* \(2,\)"):
        train(model, [*pairs(3), ({"signal": np.zeros(2), "bias": np.zeros(2)}, 2.0), *pairs(5)])


def test_a_number_that_is_not_finite_stops_and_leaves_the_checkpoint(model, tmp_path):
    bad = [*pairs(200)]
    bad[130] = bad[130][0], np.float32(np.nan)
    with pytest.raises(NonFiniteError) as caught:
        train(model, bad, folder=tmp_path)
    assert int(caught.value.run.samples) == 129
    assert int(checkpoints(tmp_path / "checkpoints")[-1].name[:15]) == 120


class Baseline(Score):
    """A score with fixed baselines."""

    def __init__(self, baselines):
        super().__init__()
        self.baselines = iter(baselines)

    def end_interval(self):
        return {"baseline": next(self.baselines)}


def test_suspicion_suspends_checkpoints(model, tmp_path):
    """Below the baseline for five lines, above it for two, below again: no checkpoint from in between."""
    paths: list = []
    baselines = [1e9] * 5 + [-1.0] * 2 + [1e9]
    train(model, folder=tmp_path, score=Baseline(baselines), checkpoint=paths.append)
    # Lines come after 252 (good), 300 and 351 (bad), and with the end.
    assert [int(path.name[:15]) for path in paths] == [42, 81, 120, 162, 201, 240, 282, 399]


def test_a_divergence_keeps_the_good_checkpoints(model, tmp_path):
    stream, baselines = [*pairs(400), *pairs(400)], [1e9] * 5 + [-1.0] * 9
    with pytest.raises(Diverged, match="for 5 lines"):
        train(model, stream, folder=tmp_path, score=Baseline(baselines))
    assert [int(path.name[:15]) for path in checkpoints(tmp_path / "checkpoints")] == [201, 240, 282]
    # Divergence does not stop the run: checkpoints are written as usual.
    baselines = [1e9] * 5 + [-1.0] * 30
    fitted = train(model, stream, folder=tmp_path / "off", score=Baseline(baselines), stop_if_diverged=False)
    assert fitted.samples == 798


@pytest.mark.parametrize("samples", [330, None], ids=["stopped", "ended"])
def test_a_suspicious_end_does_not_replace_the_last_good_checkpoint(model, tmp_path, samples):
    """Lines are bad from 300 on, so that the checkpoint of 282 is the last good one."""
    baselines = [1e9] * 5 + [-1.0] * 4
    train(model, folder=tmp_path, score=Baseline(baselines), samples=samples, keep=1)
    assert [int(path.name[:15]) for path in checkpoints(tmp_path / "checkpoints")] == [282, samples or 399]
    assert int(last_good_checkpoint(tmp_path).name[:15]) == 282


def test_suspicion_survives_an_interruption(model, tmp_path):
    stream = [*pairs(400), *pairs(400)]
    train(model, stream, folder=tmp_path, score=Baseline([1e9] * 5 + [-1.0] * 2), samples=330)
    # One bad line before, four now.
    with pytest.raises(Diverged, match="at sample 501 .* for 5 lines"):
        train(model, stream, folder=tmp_path, score=Baseline([-1.0] * 9))


def test_a_suspicious_run_continues_without_divergence_detection(model, tmp_path):
    """It was interrupted while suspicious. If divergence no longer stops it, it must write checkpoints again."""
    stream, baselines = [*pairs(400), *pairs(400)], [1e9] * 5 + [-1.0] * 40
    train(model, stream, folder=tmp_path, score=Baseline(baselines), samples=330)
    paths: list = []
    train(model, stream, folder=tmp_path, score=Baseline(baselines), stop_if_diverged=False, checkpoint=paths.append)
    assert len(paths) > 5


def test_another_model_is_rejected(whole, tmp_path):
    learner = norewind.online(
        norewind.uoro(*norewind.window(transition, norewind.losses.squared_error)), optax.sgd(1e-2)
    )
    params = {"w": jnp.zeros((4, 4)), "u": jnp.zeros(4), "out": jnp.zeros(4)}
    run = learner.init(params, {"h": jnp.zeros(4), "seen": jnp.array(0), "key": jax.random.key(1)}, jax.random.key(2))
    with pytest.raises(CheckpointError, match="made with another model, method or optimizer"):
        norewind.fit(pairs(), learner, run, window=WINDOW, folder=whole[0])


def test_a_folder_is_locked_by_one_thread_and_released(model, tmp_path):
    rejected: list = []

    def ask():
        try:
            train(model, folder=tmp_path)
        except FolderInUse as error:
            rejected.append(str(error))

    with RunFolder(tmp_path):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert len(rejected) == 1
    ask()
    ask()
    assert len(rejected) == 1


def test_checkpoints_save_json(whole):
    extra = json.loads(json.dumps(everything(whole[0])["position"]))
    assert extra == {"stream": {"items": 399}, "partial_window": None}
    assert Path(whole[0], "metrics.jsonl").exists()


def test_samples_waiting_for_their_window_are_saved_even_if_nothing_was_learned_since(tmp_path):
    """A stream that continues does not send these samples again, so the latest checkpoint must hold them."""
    learner, run = windowed_bytes()
    text = tmp_path / "text"

    def go(folder, content):
        text.write_bytes(content)

        def stream(position):
            return ByteStream(Source(text, continues=True), position=position)

        intervals = Intervals(metrics_every=8, checkpoint_every=8)
        norewind.fit(stream, learner, run, window=4, intervals=intervals, folder=tmp_path / folder)

    letters = bytes(range(65, 65 + 40))
    go("whole", letters)
    for length in range(9, 13):
        # A checkpoint at 8 samples, and up to three more samples in the partial window.
        go(f"cut{length}", letters[:length])
        go(f"cut{length}", letters[length:])
        assert everything(tmp_path / f"cut{length}") == everything(tmp_path / "whole")


@pytest.mark.parametrize(("numbers", "samples"), [(10, 4_000), (50_000, 4_000), (10**6, 200), (10**9, 100)])
def test_large_models_get_short_chunks(model, numbers, samples):
    """An interruption must not wait for thousands of slow samples."""
    learner, _ = model
    assert learner.chunk_size({"a": np.broadcast_to(0.0, numbers)}) == samples
