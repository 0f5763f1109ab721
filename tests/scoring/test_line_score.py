"""Lines of a log, scored by how surprising they are."""

import numpy as np
import pytest
from msgspec.structs import asdict
from run_folders import SMALL, everything, norewind

from norewind.learners.symbol_mixture import SymbolMixture
from norewind.scoring.text_score import LineScore
from norewind.streams import ByteStream, Samples
from norewind.training.log import read_log

pytestmark = pytest.mark.usefixtures("shared_programs")


def samples_of(text, odd=()):
    """Return symbols, and outputs that expect each of them except at some places."""
    symbols = np.frombuffer(text, np.uint8).astype(np.int32)
    outputs = np.zeros((len(symbols) - 1, 256))
    outputs[np.arange(len(symbols) - 1), symbols[1:]] = 10
    for place in odd:
        outputs[place - 1] = 0
    return Samples(symbols[:-1], symbols[1:]), outputs


def scored(text, odd=(), cuts=(), top=3):
    score = LineScore(256, int, ByteStream.decode, top)
    samples, outputs = samples_of(text, odd)
    entries, start = [], 0
    for cut in (*cuts, len(outputs)):
        part = Samples(samples.xs[start:cut], samples.targets[start:cut])
        score.add(part)
        entries += score.prediction_entries(start + 1, part, outputs[start:cut])
        start = cut
    return score, entries


LINES = b"GET / 200\n" * 60
TEXT = LINES + b"kernel: bad disk\n" + LINES


def test_an_unusual_line_has_a_high_score_and_its_worst_part_is_marked(tmp_path):
    start = len(LINES)
    score, entries = scored(TEXT, odd=range(start + 8, start + 11))
    assert [entry["line"] for entry in entries] == list(range(1, 122))
    assert entries[0]["text"] == "GET / 200"
    assert entries[49]["score"] == 0
    assert entries[60]["text"] == "kernel: bad disk"
    assert entries[60]["worst"] == "kernel: «bad» disk"
    assert entries[60]["bits"] == pytest.approx(3 * 8 / 17, abs=0.05)
    assert entries[60]["score"] > 0.99
    assert max(entry["score"] for entry in entries[61:]) < 0.6
    assert score.state.top[0] == entries[60]
    assert len(score.state.top) == 3
    assert "line 61" in score.closing_text([], tmp_path).splitlines()[1]


def test_a_line_is_compared_with_the_newest_lines(monkeypatch):
    monkeypatch.setattr("norewind.scoring.text_score.COMPARED_LINES", 25)
    score, entries = scored(TEXT, odd=[5, 500])
    assert score.state.usual == [entry["bits"] for entry in entries[-25:]]


def test_cuts_change_nothing_and_endless_lines_have_an_end():
    text = TEXT + b"x" * 25_000
    whole, cut = (scored(text, odd=[5, 700], cuts=cuts) for cuts in ((), (1, 7, 309, 310, 5_000)))
    assert whole[1] == cut[1]
    np.testing.assert_equal(asdict(whole[0].state), asdict(cut[0].state))
    assert [entry["line"] for entry in whole[1][-3:]] == [121, 122, 122]
    assert len(whole[0].state.symbols) == 5_000


def scores_of_lines(bits_of_words):
    """The scores of lines of words of four letters, whose bits are given (lines, words)."""
    lines, words = bits_of_words.shape
    text = np.frombuffer(b"abcd " * words, np.uint8).astype(np.int32)
    text = np.tile(np.append(text[:-1], ord("\n")), (lines, 1)).ravel()
    losses = np.zeros((lines, words, 5))
    losses[:, :, :4] = bits_of_words[:, :, None] / 4
    samples = Samples(text[:-1], text[1:])
    entries = LineScore(256, int, ByteStream.decode).prediction_entries(1, samples, -np.log(2) * losses.ravel()[1:])
    return np.array([entry["score"] for entry in entries])


@pytest.mark.parametrize("kind", ["exponential", "gamma", "pareto"])
def test_a_score_comes_up_at_most_as_often_as_it_says(kind):
    noise = np.random.default_rng(0)
    draw = {"exponential": noise.standard_exponential, "gamma": lambda size: noise.gamma(3, size=size)}
    scores = scores_of_lines(draw.get(kind, lambda size: noise.pareto(1.5, size))((4_000, 6)))
    assert ((scores >= 0) & (scores <= 1)).all()
    for share in (0.1, 0.01):
        # At most the stated share, up to the noise of a count, and not needlessly few.
        assert share / 2 < (scores >= 1 - share).mean() < share + 3 * np.sqrt(share / len(scores))


def test_names_never_seen_do_not_crowd_out_messages_never_seen():
    noise = np.random.default_rng(1)
    bits = noise.standard_exponential((3_000, 10))
    names = noise.choice(np.arange(500, 3_000), 60, replace=False)
    bits[names, 3] = 80  # a long name in a usual message
    messages = [1_200, 1_900, 2_500]
    bits[messages, 2:6] = 18  # four unusual words, with fewer bits together
    assert set(np.argsort(-scores_of_lines(bits))[:3]) == set(messages)


def test_line_scores_need_only_the_probabilities_of_the_targets():
    symbols = np.random.default_rng(0).integers(0, 4, 241) % np.tile([2, 4, 3], 100)[:241]
    xs, targets = (part.reshape(-1, 4).astype(np.int32) for part in (symbols[:-1], symbols[1:]))
    found = []
    for only_targets in (False, True):
        learner = SymbolMixture([], 4, window=4, megabytes=0.1, only_targets=only_targets)
        _, losses, outputs = learner.scan(learner.init(), xs, targets, outputs=True)
        found.append((losses, outputs))
    (losses, all_symbols), (same, own) = found
    np.testing.assert_array_equal(losses, same)
    expected = np.take_along_axis(all_symbols, targets[..., None], axis=2)[..., 0]
    np.testing.assert_allclose(own, expected, atol=1e-5)
    # Both get the same scores.
    samples = Samples(symbols[:-1], symbols[1:])
    lines = []
    for outputs in (all_symbols.reshape(-1, 4), own.reshape(-1)):
        score = LineScore(4, int, lambda part: bytes(b"ABC\n"[symbol] for symbol in part))
        lines.append([entry["bits"] for entry in score.prediction_entries(1, samples, outputs)])
    np.testing.assert_allclose(*lines, atol=1e-3)
    assert len(lines[0]) > 10


def test_a_run_writes_lines_and_shows_the_top(tmp_path, capsys):
    (tmp_path / "app.log").write_bytes(TEXT)
    options = ("--per", "line", "--top", 2, "--predictions", "file", *SMALL[:-1])
    assert norewind("train", tmp_path / "app.log", "--out", tmp_path / "run", *options) == 0
    output = capsys.readouterr().err
    assert "2 most surprising lines" in output
    entries = read_log(tmp_path / "run" / "predictions.jsonl")
    assert [entry["text"] for entry in entries] == TEXT.decode().splitlines()
    # Resuming in the middle of a line changes nothing.
    assert norewind("train", tmp_path / "app.log", "--out", tmp_path / "cut", *options, "--samples", 615) == 0
    assert norewind("resume", tmp_path / "cut", "--samples", len(TEXT)) == 0
    assert everything(tmp_path / "cut")["predictions"] == everything(tmp_path / "run")["predictions"]
    capsys.readouterr()
    assert norewind("predict", tmp_path / "run", tmp_path / "app.log") == 0
    assert len(capsys.readouterr().out.splitlines()) == 121
