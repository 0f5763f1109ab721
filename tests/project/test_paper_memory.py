"""The study of long memory: its runs, and the plan that repeats the best of them."""

from pathlib import Path

import pytest

from examples.paper import memory
from norewind.sweeps.record import write_record
from norewind.sweeps.sweep import finished_records, sweep
from norewind.training.settings import SettingsError


@pytest.fixture(scope="module")
def record():
    run = memory.MemoryRun(task="grow", method="bptt:4", cell="rnn", hidden=16, samples=30_000, rate=3e-3)
    return {**memory.train_memory(run, Path()), "norewind": "0", "jax": "0"}


def test_a_run_learns_to_repeat_one_letter_and_then_more(record):
    assert record["problem"] is None
    assert record["lengths"][0] == 1
    assert record["lengths"][-1] > 1
    assert record["time"][-1] == 30_000
    assert len(record["bits"]) == len(record["lengths"]) == len(record["time"])


def test_the_best_rate_is_repeated_with_other_seeds_and_reported(record, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "KINDS", (("grow", "bptt:4", "rnn", 16),))
    for run in memory.first_plan(30_000).values():
        reached = {1e-3: 9, 3e-3: 7}[run.rate]
        write(tmp_path, run, record, reached)
    plan = memory.second_plan(finished_records(memory.first_plan(30_000), tmp_path, "memory"), 30_000, seeds=2)
    first, again = plan.values()
    assert (first.rate, first.seed, again.rate, again.seed) == (1e-3, 0, 1e-3, 1)
    write(tmp_path, again, record, 11)
    text = memory.reproduce_memory(tmp_path, samples=30_000, seeds=2, report_only=True)
    assert "| 0.001 | 10 | 9 to 11 |" in text
    text = memory.reproduce_memory(tmp_path, samples=30_000, seeds=1, report_only=True)
    assert "| 0.001 | 9 | 9 to 9 |" in text
    assert (tmp_path / "figure.png").stat().st_size > 10_000


@pytest.mark.slow
def test_runs_are_made_by_the_workers_of_all_sweeps(tmp_path):
    """The quick test of such workers is in test_paper_balancing.py."""
    run = memory.MemoryRun(task="pause", method="bptt:4", cell="rnn", hidden=4, samples=1_000, rate=1e-3)
    (found,) = sweep({run.name: run}, tmp_path, jobs=1, train=memory.train_memory, entry="memory").values()
    assert found["bits"] == memory.train_memory(run, tmp_path)["bits"]


def test_other_machines_need_a_package(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="the package ray is not installed"):
        memory.reproduce_memory(tmp_path, samples=1_000, ray="auto")


def write(out, run, record, reached):
    settings = {**record["memory"], **memory.asdict(run)}
    write_record(out, run.name, {**record, "memory": settings, "lengths": [*record["lengths"][:-1], reached]})
