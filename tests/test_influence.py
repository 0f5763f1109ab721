"""Influence balancing: what is said to be exact is exact, and the experiment shows the paper's effect."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import norewind
from norewind.paper.balancing import Balancing, influence_plan, influence_records, run_influence, train_influence
from norewind.runs.record import write_record
from norewind.tasks import influence_balancing


def state_at_rest(task, theta):
    """The fixed point s = A s + θ v, solved in floating numbers."""
    a = (np.eye(task.n) + np.eye(task.n, k=1)) / 2
    return jnp.asarray(np.linalg.solve(np.eye(task.n) - a, theta * np.array(task.signs)))


def truncated_gradient(task, window, theta):
    """What T-truncated BPTT computes by automatic differentiation."""
    estimator = norewind.bptt(*norewind.window(task.transition, task.loss))
    params, ones = task.init(theta), jnp.ones(window)
    _, _, estimate = estimator.step(params, state_at_rest(task, theta), (), ones, ones)
    return float(estimate.grad)


@pytest.mark.parametrize("window", [1, 2, 10, 109, 110])
def test_the_block_influence_is_what_bptt_follows(x64, window):
    task = influence_balancing(23, 13)
    for theta in (0.5, -0.4):
        error = task.influence_limit * theta - 1
        expected = error * float(task.block_influence(window))
        # At T = 110 the sum of a hundred terms of size 10 nearly cancels.
        assert truncated_gradient(task, window, theta) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_the_wrong_sign_ends_at_109_for_the_papers_task():
    task = influence_balancing(23, 13)
    assert task.last_wrong_window() == 109
    assert task.block_influence(109) > 0 > task.block_influence(110)


@pytest.mark.parametrize(("n", "minus"), [(1, 1), (3, 2), (4, 3), (5, 3), (7, 4), (6, 1), (2, 0)])
def test_the_last_wrong_window_is_the_last_of_all(n, minus):
    task = influence_balancing(n, minus)
    wrong = [T for T in range(1, 120) if task.block_influence(T) * task.influence_limit <= 0]
    assert wrong == list(range(1, task.last_wrong_window() + 1))


def test_the_limit_solves_the_task(x64):
    task = influence_balancing(23, 13)
    assert task.limit == pytest.approx(-1 / 6)
    state = state_at_rest(task, task.limit)
    state, output = task.transition(task.init(task.limit), state, jnp.zeros(()))
    assert float(output) == pytest.approx(1)
    assert float(task.loss(output, jnp.ones(()))) == pytest.approx(0, abs=1e-20)


def test_learning_starts_where_the_paper_does():
    assert float(influence_balancing(23, 13).init()) == 0.5


def test_a_task_without_influence_is_refused():
    with pytest.raises(ValueError, match="no influence in the long run"):
        influence_balancing(4, 2)
    with pytest.raises(ValueError, match="0 <= minus <= n"):
        influence_balancing(3, 4)


def test_uoro_converges_where_a_short_truncation_runs_away():
    """The paper's task in small: 4 units, 3 minus, where windows up to 5 are wrong."""
    small = Balancing(method="uoro", rate=0.01, samples=20_000, n=4, minus=3)
    uoro = list(train_influence([replace(small, seed=seed) for seed in range(3)]))
    short, long = (next(train_influence([replace(small, method=f"bptt:{window}")])) for window in (3, 20))
    target = influence_balancing(4, 3).limit
    for record in uoro:
        assert record["theta"] == pytest.approx(target, abs=1e-3)
        assert record["loss"] < 1e-20  # which takes double precision
        assert record["problem"] is None
    assert long["theta"] == pytest.approx(target, abs=1e-3)
    assert abs(short["theta"] - target) > 2 * abs(0.5 - target)
    assert short["losses"][-1] > short["losses"][len(short["losses"]) // 2]


def test_a_record_holds_what_a_plain_loop_gives():
    """Losses and θ after each sample of truncated BPTT, written out in NumPy with the gradient from the influences."""
    run = Balancing(method="bptt:2", rate=0.05, samples=8, n=4, minus=3)
    record = next(train_influence([run]))
    v, state, theta = np.array([1, -1, -1, -1.0]), np.zeros(4), 0.5
    losses, thetas = [], []
    for window in range(4):
        grad, influence, loss = 0.0, np.zeros(4), 0.0
        for _ in range(2):
            state = (state + np.append(state[1:], 0)) / 2 + theta * v
            influence = (influence + np.append(influence[1:], 0)) / 2 + v
            grad += (state[0] - 1) * influence[0]
            loss += (state[0] - 1) ** 2 / 2
        theta -= 0.05 / (1 + np.sqrt(2 * window)) * grad
        losses.append(loss / 2)
        thetas.append(theta)
    assert record["time"] == [2, 4, 6, 8]
    assert record["losses"] == pytest.approx(losses, rel=1e-5)
    assert record["thetas"] == pytest.approx(thetas, rel=1e-5)
    assert (record["loss"], record["theta"]) == (record["losses"][-1], record["thetas"][-1])


def test_a_run_that_is_not_finite_says_so():
    run = Balancing(method="bptt:1", rate=1e200, samples=4_100, n=4, minus=3)
    record = next(train_influence([run]))
    assert record["problem"].startswith("not finite after")
    assert len(record["time"]) == len(record["losses"])
    json.dumps(record, allow_nan=False)


def test_finished_runs_are_kept(tmp_path):
    plan = [replace(run, samples=40) for run in influence_plan(seeds=2, rates=(1e-3,), windows=(1, 10))]
    assert len({run.name for run in plan}) == 4
    lines = []
    run_influence(plan[:3], tmp_path, lines.append)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    run_influence(plan, tmp_path, lines.append)
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    assert len(before) == 3
    assert len(after) == 4
    assert before.items() <= after.items()
    assert "3 runs were finished before, 1 to do" in lines[-2]
    record = influence_records(plan, tmp_path)[plan[0].name]
    assert len(record["time"]) == len(record["losses"]) == len(record["thetas"])
    assert record["time"][-1] == 40
    # A record of other settings does not count, whatever its name.
    write_record(tmp_path / "runs" / f"{plan[0].name}.json", {**record, "influence": {**record["influence"], "n": 5}})
    assert list(influence_records(plan, tmp_path)) == [run.name for run in plan[1:]]


def test_seeds_differ_in_noise_alone():
    run = Balancing(method="uoro", rate=1e-3, samples=60)
    one, two = train_influence([run, replace(run, seed=1)])
    assert one["losses"][0] == two["losses"][0]
    assert one["thetas"][-1] != two["thetas"][-1]
    assert not jax.config.jax_enable_x64


def test_the_full_plan_is_the_papers():
    plan = influence_plan()
    assert len(plan) == 3 * 10 + 3 * 4
    assert {run.rate for run in plan} == {1e-3, 3e-4, 1e-4}
    assert {(run.samples, run.n, run.minus, run.theta) for run in plan} == {(200_000, 23, 13, 0.5)}
