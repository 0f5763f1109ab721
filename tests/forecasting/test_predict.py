"""Predictions and samples of trained runs: `norewind predict` and `norewind sample`."""

import json

import numpy as np
import pytest
from run_folders import ROWS, SMALL, TEXT, Pipe, assert_rejected, everything, norewind

from norewind.forecasting import predict
from norewind.training import folder
from norewind.training.build import cell_of
from norewind.training.folder import saved_run
from norewind.training.log import read_log
from norewind.training.open_stream import StreamShape

pytestmark = pytest.mark.usefixtures("shared_programs")


def predicted(capsys, *arguments):
    capsys.readouterr()
    assert norewind("predict", *arguments) == 0
    return [json.loads(entry) for entry in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(("kind", "source", "options"), [("bytes", "text", TEXT), ("rows", "table.csv", ROWS)])
def test_learning_predictions_are_those_of_training(whole, tmp_path, capsys, kind, source, options):
    run = tmp_path / "run"
    assert norewind("train", whole / source, "--out", run, *options, "--samples", 600) == 0
    expected = read_log(whole / kind / "predictions.jsonl")[600:]
    guesses = predicted(capsys, run, "--learn")
    assert [guess.pop("sample") for guess in guesses] == list(range(1, len(expected) + 1))
    if kind == "rows":
        assert [guess.pop("for") for guess in guesses] == list(range(2, len(expected) + 2))
    numbers = ("sample", "for")
    assert guesses == [{name: guess[name] for name in guess if name not in numbers} for guess in expected]
    # Nothing was written back.
    assert everything(run)["samples"] == 600
    # Only whole windows, and no more than were requested.
    assert (
        predicted(capsys, run, "--learn", "--samples", 100)[-1]["surprise"]
        == guesses[98 if kind == "bytes" else 99]["surprise"]
    )
    fixed = predicted(capsys, run, "--samples", 700)
    assert len(fixed) == 700
    assert fixed[-1]["surprise"] != guesses[699]["surprise"]


def plain(run, xs, fresh=False):
    """Return the outputs of the cell of a run for a sequence of inputs."""
    settings, saved = saved_run(run)
    symbols = xs.ndim == 1
    shape = StreamShape(256, 256, True) if symbols else StreamShape(2, 2, False, targets=2, steps=(1,))
    trained = predict.training_at_end(settings, saved).run
    inner = trained if symbols else trained.run
    state = inner.initial_state if fresh else inner.state if symbols else inner.latest_state
    transition = cell_of(settings, shape).transition
    outputs = []
    for x in xs:
        state, output = transition(inner.params, state, x)
        outputs.append(np.asarray(output, np.float64))
    return np.array(outputs)


@pytest.mark.parametrize("fresh", [False, True])
def test_predictions_on_text_are_those_of_the_cell(whole, tmp_path, capsys, fresh):
    (tmp_path / "other").write_bytes(b"abcabcaabbcc")
    guesses = predicted(capsys, whole / "bytes", tmp_path / "other", *["--fresh"] * fresh)
    symbols = np.frombuffer(b"abcabcaabbcc", np.uint8).astype(np.int32)
    logits = plain(whole / "bytes", symbols[:-1], fresh)
    surprise = np.log2(np.exp(logits).sum(axis=1)) - logits[range(11), symbols[1:]] / np.log(2)
    assert [guess["surprise"] for guess in guesses] == pytest.approx(surprise, abs=1e-5)
    assert [guess["symbol"] for guess in guesses] == symbols[1:].tolist()
    assert [guess["prediction"] for guess in guesses] == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize("fresh", [False, True])
def test_predictions_on_rows_are_those_of_the_cell(whole, tmp_path, capsys, table, fresh):
    lines = table.splitlines(True)
    (tmp_path / "new.txt").write_bytes(b"".join([lines[0], *lines[50:62]]))
    guesses = predicted(capsys, whole / "rows", tmp_path / "new.txt", *["--fresh"] * fresh)
    _, saved = saved_run(whole / "rows")
    statistics = saved.entries["position"]["stream"]["statistics"]
    counts, means, variances = np.array([column[:3] for column in statistics]).T
    rows = np.array([[float(value) for value in entry.split(b",")] for entry in lines[50:62]])
    xs = []
    for row in rows:
        before = row - means
        counts, weight = counts + 1, 1 / (counts + 1)
        # No value is far enough from the mean to be an outlier.
        assert (abs(before) < 5 * np.sqrt(variances)).all()
        means, variances = means + weight * before, (1 - weight) * (variances + weight * before**2)
        deviations = np.sqrt(variances)
        xs.append((means, deviations, (row - means) / deviations))
    outputs = plain(whole / "rows", np.array([x for _, _, x in xs], np.float32), fresh)
    forecasts = [means + deviations * output for (means, deviations, _), output in zip(xs, outputs, strict=True)]
    for number, (guess, forecast) in enumerate(zip(guesses, forecasts, strict=True), 1):
        assert (guess["sample"], guess["for"]) == (number, number + 1)
        assert list(guess["forecast"].values()) == pytest.approx(forecast, rel=1e-4)
    # The first row of this file has no earlier row to be forecast from.
    assert set(guesses[0]) == {"sample", "line", "for", "forecast"}
    for before, guess, (_, deviations, _), forecast, target in zip(
        guesses, guesses[1:], xs, forecasts, rows[1:], strict=False
    ):
        assert guess["prediction"] == before["forecast"]
        assert list(guess["target"].values()) == pytest.approx(target, rel=1e-4)
        error = (target - forecast) / deviations
        assert guess["surprise"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-3)


def test_predictions_take_what_is_left_of_a_window_first(whole, tmp_path, capsys, text):
    """The run has read 1000 bytes and learned from 999 samples; one more byte waits for its window."""
    (tmp_path / "text").write_bytes(text[:1_002])
    run = tmp_path / "run"
    assert norewind("train", tmp_path / "text", "--out", run, *TEXT) == 0
    assert everything(run)["position"]["partial_window"] is not None
    (tmp_path / "text").write_bytes(text[:1_200])
    guesses = predicted(capsys, run)
    assert [guess["symbol"] for guess in guesses] == list(text[1_000:1_200])
    assert predicted(capsys, run, "--samples", 1) == guesses[:1]
    # This also holds at the end of the stream.
    (tmp_path / "text").write_bytes(text[:1_002])
    assert predicted(capsys, run) == guesses[:2]


def test_predictions_continue_while_the_run_learns(whole, tmp_path, capsys, monkeypatch):
    """A checkpoint may be dropped between being found and being read."""
    run = tmp_path / "run"
    assert norewind("train", whole / "text", "--out", run, *TEXT, "--samples", 600) == 0
    found = folder.checkpoints
    gone = [run / "checkpoints" / f"{1:015d}-{0:016x}.safetensors"]
    monkeypatch.setattr(folder, "checkpoints", lambda folder: found(folder) + [gone.pop()] * bool(gone))
    assert len(predicted(capsys, run, "--samples", 5)) == 5


def test_predictions_from_a_pipe(whole, capsys, table, text):
    with Pipe(table) as source:
        assert len(predicted(capsys, whole / "rows", source, "--flush", 0.1)) == 1_500
    with Pipe(text[:100], text[100:]) as source:
        assert len(predicted(capsys, whole / "bytes", source)) == len(text) - 1


def test_learning_predictions_from_a_slow_pipe_are_those_from_a_file(tmp_path, capsys, text):
    """Counts change in place, so predicting the samples of a partial window must not learn from them."""
    (tmp_path / "text").write_bytes(text)
    run, auto = tmp_path / "run", ("--method", "auto", "--budget", 6)
    assert norewind("train", tmp_path / "text", "--out", run, *auto, "--samples", 480) == 0
    expected = predicted(capsys, run, tmp_path / "text", "--learn", "--samples", 480)
    pieces = [text[i : i + 37] for i in range(0, 600, 37)]
    with Pipe(*pieces, pause=0.03) as source:
        guesses = predicted(capsys, run, source, "--learn", "--flush", 0.01)[: len(expected)]
    assert [guess["surprise"] for guess in guesses] == pytest.approx(
        [guess["surprise"] for guess in expected], abs=1e-5
    )


def test_other_columns_are_rejected(whole, tmp_path, capsys):
    (tmp_path / "other.csv").write_text("moon,wind\n1,2\n")
    code = norewind("predict", whole / "rows", tmp_path / "other.csv")
    assert_rejected(capsys, code, "other.csv has no column 'sun'. It has 'moon', 'wind'")


@pytest.mark.parametrize("options", [("--samples", "inf"), ("--samples", "-3"), ("--flush", "-1")])
def test_impossible_numbers_are_rejected(whole, capsys, options):
    assert_rejected(capsys, norewind("predict", whole / "bytes", *options), f"{options[0][2:]} is {float(options[1])}")


def written(capsysbinary, *arguments):
    capsysbinary.readouterr()
    assert norewind("sample", *arguments) == 0
    return capsysbinary.readouterr().out


def test_sampling_writes_bytes(whole, capsysbinary):
    text = written(capsysbinary, whole / "bytes", "--length", 200)
    assert len(text) == 201
    assert text == written(capsysbinary, whole / "bytes", "--length", 200)
    assert text != written(capsysbinary, whole / "bytes", "--length", 200, "--seed", 1)
    assert written(capsysbinary, whole / "bytes", "--length", 3, "--prompt", "ab\udcff").startswith(b"ab\xff")


@pytest.mark.parametrize("options", [("text",), ("text", "--format", "text"), ("anbn",)])
def test_sampling_needs_a_run_that_has_seen_symbols(whole, tmp_path, capsys, options):
    source = "anbn" if options == ("anbn",) else whole / "text"
    settings = (*options[1:], *SMALL, "--samples", 0, "--out", tmp_path / "run")
    assert norewind("train", source, *settings) == 0
    code = norewind("sample", tmp_path / "run", "--length", 3)
    assert_rejected(capsys, code, "has learned from nothing yet", "norewind resume")


def test_sampling_at_temperature_zero_takes_the_likeliest_symbol(tmp_path, capsysbinary, whole, text):
    """The model must read the two bytes of the partial window before it generates text."""
    (tmp_path / "text").write_bytes(text[:1_002])
    assert norewind("train", tmp_path / "text", "--out", tmp_path / "run", *TEXT) == 0
    unread = np.frombuffer(text[999:1_002], np.uint8).astype(np.int32)
    likeliest = plain(tmp_path / "run", unread)[-1].argmax()
    text = written(capsysbinary, tmp_path / "run", "--length", 1, "--temperature", 1e-6)
    assert text == bytes([likeliest]) + b"\n"


def test_sampling_writes_characters_and_tasks(tmp_path, capsysbinary):
    (tmp_path / "text").write_text("aäa\u6f22ä" * 100)
    assert (
        norewind("train", tmp_path / "text", "--format", "text", "--alphabet-size", 6, *SMALL, "--out", tmp_path / "a")
        == 0
    )
    text = written(capsysbinary, tmp_path / "a", "--length", 50, "--prompt", "äa").decode()
    assert text.startswith("äa")
    assert len(text) == 53
    assert set(text) <= {*"aä\u6f22\ufffd\n"}
    assert norewind("sample", tmp_path / "a", "--prompt", "axa") == 1
    assert b"the character 'x' at index 1, which is not in the alphabet so far" in capsysbinary.readouterr().err
    assert norewind("train", "anbn", "--samples", 300, *SMALL, "--out", tmp_path / "b") == 0
    assert set(written(capsysbinary, tmp_path / "b", "--length", 50)) <= {*b"ab\n"}
    # A built-in task also resumes and predicts.
    assert norewind("resume", tmp_path / "b", "--samples", 600, "--quiet") == 0
    assert norewind("predict", tmp_path / "b", "--samples", 3) == 0


@pytest.mark.parametrize("options", [("--length", 0), ("--temperature", 0), ("--temperature", "nan"), ("--seed", -1)])
def test_impossible_samples_are_rejected(whole, capsys, options):
    assert_rejected(capsys, norewind("sample", whole / "bytes", *options), options[0])


def test_rows_cannot_be_sampled_as_text(whole, capsys):
    assert_rejected(capsys, norewind("sample", whole / "rows"), "only a run on bytes or text can generate text")


def test_three_rows_have_three_forecasts(tmp_path):
    """Before there are enough rows to scale by, the last value is the forecast."""
    (tmp_path / "short.csv").write_text("power,mode\n1.5,0\n2.5,1\n4,0\n")
    run = tmp_path / "run"
    options = ("--method", "bptt:1", "--hidden", 2, "--horizon", "1", "--predictions", "file")
    assert norewind("train", tmp_path / "short.csv", "--out", run, *options) == 0
    lines = read_log(run / "predictions.jsonl")
    assert [(line["for"], line["forecast"]["power"]) for line in lines] == [(2, 1.5), (3, 2.5), (4, 4.0)]
