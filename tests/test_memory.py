"""Long memory: the sequences to copy, the curriculum, and the plan of the runs."""

import numpy as np
import pytest

from norewind.paper import memory
from norewind.runs.record import records_of
from norewind.runs.settings import SettingsError
from norewind.tasks.copying import UNSCORED, Copying, Curriculum


def test_what_has_to_be_said_again_is_what_was_said():
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
    # From one bit, that of chance, it halves: 0.5, 0.25, 0.125 (grows), 0.06 (grows), 0.53, 0.27.
    assert lengths == [1, 1, 2, 3, 3, 3]


@pytest.mark.parametrize("wrong", [{"letters": 1}, {"length": 0}, {"pause": (3, 2)}])
def test_impossible_sequences_are_refused(wrong):
    with pytest.raises(ValueError, match="Copying needs"):
        Copying(**{"letters": 2, "length": 1, **wrong})


@pytest.fixture(scope="module")
def record():
    run = memory.Remembering(task="grow", method="bptt:4", cell="rnn", hidden=16, samples=30_000, rate=3e-3)
    return memory.train(run)


def test_a_run_learns_to_repeat_one_letter_and_then_more(record):
    assert record["problem"] is None
    assert record["lengths"][0] == 1
    assert record["lengths"][-1] > 1
    assert record["time"][-1] == 30_000
    assert len(record["bits"]) == len(record["lengths"]) == len(record["time"])


def test_the_best_rate_is_repeated_with_other_seeds_and_reported(record, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "KINDS", (("grow", "bptt:4", "rnn", 16),))
    for run in memory.tries(30_000):
        reached = {1e-3: 9, 3e-3: 7}[run.rate]
        write(tmp_path, run, record, reached)
    (again,) = memory.repeats(records_of(memory.tries(30_000), tmp_path, "memory"), 30_000, seeds=2)
    assert (again.rate, again.seed) == (1e-3, 1)
    write(tmp_path, again, record, 11)
    text = memory.reproduce_memory(tmp_path, samples=30_000, seeds=2, report_only=True)
    assert "| 0.001 | 10 | 9 to 11 |" in text
    text = memory.reproduce_memory(tmp_path, samples=30_000, seeds=1, report_only=True)
    assert "| 0.001 | 9 | 9 to 9 |" in text
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_runs_are_made_by_the_workers_of_all_sweeps(tmp_path, monkeypatch):
    run = memory.Remembering(task="pause", method="bptt:4", cell="rnn", hidden=4, samples=1_000, rate=1e-3)
    (found,) = memory.run_memory([run], tmp_path, jobs=1).values()
    assert found["bits"] == memory.train(run)["bits"]
    assert records_of([run], tmp_path, "memory") == {run.name: found}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="the package ray is not installed"):
        memory.reproduce_memory(tmp_path, samples=1_000, ray="auto")


def write(out, run, record, reached):
    settings = {**record["memory"], **memory.asdict(run)}
    memory.write_record(
        out / "runs" / f"{run.name}.json", {**record, "memory": settings, "lengths": [*record["lengths"][:-1], reached]}
    )
