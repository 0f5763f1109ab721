"""Sequences to copy, and the curriculum that makes them longer."""

import json

import numpy as np
import pytest

from examples.paper.batched_copying import PIECE, CopyingRun, table, train_copying
from examples.paper.copying import UNSCORED, Copying, Curriculum


def test_the_symbols_to_repeat_are_those_shown():
    stream = Copying(letters=4, length=2, pause=(3, 7), seed=1)
    xs, targets = stream.take(5_000)[:2]
    starts = np.flatnonzero(xs == 5)[:-1]
    pauses = set()
    for start in starts:
        cue = start + np.flatnonzero(xs[start:] == 6)[0]
        assert np.array_equal(xs[start + 1 : start + 3], targets[cue : cue + 2])
        assert np.all(targets[start:cue] == UNSCORED)
        assert targets[cue + 2] == UNSCORED
        assert np.all(xs[start + 3 : cue] == 4)
        pauses.add(cue - start - 3)
    assert pauses == set(range(3, 8))
    assert set(xs[xs < 4]) == set(range(4))


def test_the_stream_does_not_depend_on_how_it_is_taken():
    once = Copying(letters=2, length=3, pause=(0, 4), seed=2).take(500)
    stream = Copying(letters=2, length=3, pause=(0, 4), seed=2)
    parts = [stream.take(count) for count in (1, 99, 150, 250)]
    for whole, pieces in zip(once[:2], zip(*(part[:2] for part in parts), strict=True), strict=True):
        assert np.array_equal(whole, np.concatenate(pieces))


def test_sequences_grow_only_while_the_loss_is_low():
    stream = Copying(letters=2, length=1)
    curriculum = Curriculum(stream, below=0.15, smoothing=0.5)
    lengths = []
    for bits in (0.0, 0.0, 0.0, 0.0, 1.0, 0.0):
        curriculum.add(bits)
        lengths.append(stream.length)
    # The loss starts at one bit (guessing) and halves: 0.5, 0.25, 0.125 (grows), 0.06 (grows), 0.53, 0.27.
    assert lengths == [1, 1, 2, 3, 3, 3]


@pytest.mark.parametrize("wrong", [{"letters": 1}, {"length": 0}, {"pause": (3, 2)}])
def test_impossible_sequences_are_rejected(wrong):
    with pytest.raises(ValueError, match="Copying needs"):
        Copying(**{"letters": 2, "length": 1, **wrong})


def test_a_restored_stream_continues():
    stream, other = (Copying(letters=2, length=3, pause=(0, 4), seed=2) for _ in range(2))
    stream.take(101)
    stream.length = 5
    other.restore(json.loads(json.dumps(stream.position())))
    for whole, again in zip(stream.take(300)[:2], other.take(300)[:2], strict=True):
        assert np.array_equal(whole, again)


@pytest.mark.slow
def test_an_interrupted_run_of_kf_rtrl_ends_like_one_that_was_not(tmp_path):
    settings = CopyingRun(hidden=4, streams=2, samples=3 * PIECE)
    whole = train_copying(settings, tmp_path / "whole")
    train_copying(settings, tmp_path / "parts", stop=PIECE)
    again = train_copying(settings, tmp_path / "parts")
    assert whole["samples"] == [PIECE, 2 * PIECE, 3 * PIECE]
    assert {name: whole[name] for name in ("samples", "bits", "length")} == {
        name: again[name] for name in ("samples", "bits", "length")
    }
    assert not list((tmp_path / "parts").glob("*.zip"))
    assert f"| rnn, 4 × 2 | 0.001 | 0 | {3 * PIECE:,} |" in table([whole])
