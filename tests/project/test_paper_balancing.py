"""The paper's experiment with influence balancing: it shows the paper's effect, and its runs are recorded and swept."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from examples.paper.balancing import InfluenceRun, influence_plan, train_influence
from examples.paper.influence import InfluenceBalancing
from norewind.sweeps.record import read_records, write_record
from norewind.sweeps.sweep import finished_records, sweep

# Runs of influence balancing write nothing to their folder.
NOWHERE = Path()


def test_uoro_converges_where_a_short_truncation_runs_away():
    """A small version of the paper's task: 4 units, 3 minus, where windows up to 5 are wrong."""
    small = InfluenceRun(method="uoro", rate=0.01, samples=20_000, n=4, minus=3)
    uoro = [train_influence(replace(small, seed=seed), NOWHERE) for seed in range(3)]
    short, long = (train_influence(replace(small, method=f"bptt:{window}"), NOWHERE) for window in (3, 20))
    target = InfluenceBalancing(4, 3).limit
    for record in uoro:
        assert record["theta"] == pytest.approx(target, abs=1e-3)
        assert record["loss"] < 1e-20  # which requires double precision
        assert record["problem"] is None
    assert long["theta"] == pytest.approx(target, abs=1e-3)
    assert abs(short["theta"] - target) > 2 * abs(0.5 - target)
    assert short["losses"][-1] > short["losses"][len(short["losses"]) // 2]


@pytest.mark.parametrize(("clock", "offset"), [("before", 0), ("through", 2)])
def test_a_record_holds_what_a_plain_loop_gives(clock, offset):
    """Return losses and θ after each sample of truncated BPTT in NumPy, with the gradient from the influences."""
    run = InfluenceRun(method="bptt:2", rate=0.05, samples=8, n=4, minus=3, clock=clock)
    record = train_influence(run, NOWHERE)
    v, state, theta = np.array([1, -1, -1, -1.0]), np.zeros(4), 0.5
    losses, thetas = [], []
    for window in range(4):
        grad, influence, loss = 0.0, np.zeros(4), 0.0
        for _ in range(2):
            state = (state + np.append(state[1:], 0)) / 2 + theta * v
            influence = (influence + np.append(influence[1:], 0)) / 2 + v
            grad += (state[0] - 1) * influence[0]
            loss += (state[0] - 1) ** 2 / 2
        theta -= 0.05 / (1 + np.sqrt(2 * window + offset)) * grad
        losses.append(loss / 2)
        thetas.append(theta)
    assert record["time"] == [2, 4, 6, 8]
    assert record["losses"] == pytest.approx(losses, rel=1e-5)
    assert record["thetas"] == pytest.approx(thetas, rel=1e-5)
    assert (record["loss"], record["theta"]) == (record["losses"][-1], record["thetas"][-1])


def test_a_non_finite_run_is_reported():
    run = InfluenceRun(method="bptt:1", rate=1e200, samples=4_100, n=4, minus=3)
    record = train_influence(run, NOWHERE)
    assert record["problem"].startswith("not finite after")
    assert len(record["time"]) == len(record["losses"])
    json.dumps(record, allow_nan=False)


def test_runs_are_swept_and_finished_ones_kept(tmp_path):
    short = [replace(run, samples=40) for run in influence_plan(seeds=2, rates=(1e-3,), windows=(1, 10)).values()]
    plan = {run.name: run for run in short}
    assert len(plan) == 4
    first, *others = plan
    for name in others:
        write_record(tmp_path, name, train_influence(plan[name], tmp_path))
    before = read_records(tmp_path)
    found = sweep(plan, tmp_path, jobs=1, quiet=True, train=train_influence, entry="influence")
    assert list(found) == list(plan)
    assert read_records(tmp_path) == {**before, first: found[first]}
    again = train_influence(plan[first], tmp_path)
    assert all(found[first][entry] == again[entry] for entry in again if entry != "seconds")
    assert found[first]["time"][-1] == 40
    assert {"norewind", "commit", "jax", "python"} <= set(found[first])
    # A record with other settings does not count, even under the same name.
    write_record(tmp_path, first, {**again, "influence": {**again["influence"], "n": 5}})
    assert list(finished_records(plan, tmp_path, "influence")) == others


def test_seeds_differ_in_noise_alone():
    run = InfluenceRun(method="uoro", rate=1e-3, samples=60)
    one, two = (train_influence(replace(run, seed=seed), NOWHERE) for seed in range(2))
    assert one["losses"][0] == two["losses"][0]
    assert one["thetas"][-1] != two["thetas"][-1]
    assert not jax.config.jax_enable_x64


def test_the_full_plan_is_the_papers():
    plan = influence_plan().values()
    assert len(plan) == 3 * 10 + 3 * 4
    assert {run.rate for run in plan} == {1e-3, 3e-4, 1e-4}
    assert {(run.samples, run.n, run.minus, run.theta) for run in plan} == {(200_000, 23, 13, 0.5)}
