"""Trace conditioning and the T-maze: what they promise, and that an actor-critic learns in the maze."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from norewind import cells, losses, online, td
from norewind.core import obgd
from norewind.estimators import snap1
from norewind.tasks import TMaze, TraceConditioning, act, discounted_returns, init_actor


def test_every_reward_follows_its_cue_by_the_interval():
    task = TraceConditioning(interval=(7, 13), pause=(20, 30), distractors=2)
    xs, rewards = next(task.chunks(seed=1, size=20_000))
    arrivals = np.flatnonzero(rewards) + 1
    starts = np.flatnonzero(np.diff(xs[:, 0], prepend=0) == 1)
    ends = np.flatnonzero(np.diff(xs[:, 0], append=0) == -1)
    count = min(len(starts), len(arrivals), len(ends)) - 1
    assert count > 400
    assert set((arrivals[:count] - starts[:count]).tolist()) == set(range(7, 14))
    assert set((starts[1:count] - arrivals[: count - 1]).tolist()) == set(range(20, 31))
    assert np.all(ends[:count] - starts[:count] == 3)
    assert np.mean(xs[:, 1:]) == pytest.approx(0.05, abs=5 * (0.05 / 40_000) ** 0.5)


def test_the_stream_does_not_depend_on_the_chunks():
    task = TraceConditioning()
    whole = next(task.chunks(seed=3, size=30_000))
    parts = task.chunks(seed=3, size=7_000)
    pieces = [next(parts) for _ in range(4)]
    for i in range(2):
        np.testing.assert_array_equal(np.concatenate([piece[i] for piece in pieces]), whole[i][:28_000])
    assert not np.array_equal(next(task.chunks(seed=4, size=100))[0], whole[0][:100])


def test_returns_are_the_sums_of_their_definition():
    rewards = np.random.default_rng(0).normal(size=20)
    wanted = [sum(0.9**k * r for k, r in enumerate(rewards[t:])) for t in range(20)]
    np.testing.assert_allclose(discounted_returns(rewards, 0.9), wanted, rtol=1e-12)


def test_a_range_out_of_order_is_rejected():
    with pytest.raises(ValueError, match=r"interval \(3, 5\) must be in order and longer than the cue"):
        TraceConditioning(interval=(3, 5))
    with pytest.raises(ValueError, match="size >= 1"):
        next(TraceConditioning().chunks(seed=0, size=0))


def walk(maze, state, actions):
    """The steps of an episode, one by one."""
    steps = []
    for action in actions:
        steps.append(maze.step(state, action, jax.random.key(9)))
        state = steps[-1].state
    return steps


@pytest.mark.parametrize("goal", [False, True])
def test_the_maze_rewards_the_turn_that_the_sign_announced(goal):
    maze = TMaze(length=3)
    key = next(jax.random.key(i) for i in range(20) if bool(maze.start(jax.random.key(i))[0].goal) == goal)
    state, x = maze.start(key)
    assert x.tolist() == [not goal, goal, 0, 0]
    steps = walk(maze, state, [2, 1, 0, 0, 1, 0, 0, 0, 3 if goal else 2])
    rewards = [-0.1, -0.1, 0, 0, 0, 0, 0, -0.1, 4]
    np.testing.assert_allclose([step.reward for step in steps], rewards, rtol=1e-6)
    assert [step.x.tolist().index(1.0) for step in steps[2:-1]] == [2, 2, 2, 2, 3, 3]
    assert [bool(step.ended) for step in steps] == [False] * 8 + [True]
    wrong = walk(maze, state, [0, 0, 0, 2 if goal else 3])[-1]
    assert (round(float(wrong.reward), 3), bool(wrong.ended)) == (-0.1, True)
    assert int(wrong.state.place) == int(wrong.state.age) == 0


def test_an_episode_ends_after_the_most_actions():
    maze = TMaze(length=3, max_actions=4)
    steps = walk(maze, maze.start(jax.random.key(0))[0], [1, 1, 1, 1])
    assert [bool(step.ended) for step in steps] == [False, False, False, True]


def actor(length, hidden):
    maze = TMaze(length=length)
    cell = cells.lru(maze.inputs, hidden, 1 + maze.actions, symbols=False, times=(1.0, 20.0))
    learner = online(td(snap1(cell.transition, losses.actor_critic(0.01)), decay=0.9), obgd(kappa=3.0))
    run = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    return learner, maze, init_actor(maze, run, jax.random.key(2))


def test_acting_in_parts_is_acting_at_once():
    learner, maze, acting = actor(2, 4)
    whole = act(learner, maze, acting, 60, discount=0.98)
    half = act(learner, maze, acting, 30, discount=0.98)
    rest = act(learner, maze, half[0], 30, discount=0.98)
    np.testing.assert_allclose(np.concatenate([half[1], rest[1]]), whole[1], rtol=1e-5)
    for a, b in zip(jax.tree.leaves(rest[0].run.params), jax.tree.leaves(whole[0].run.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_after_an_episode_state_and_trace_start_again():
    learner, maze, acting = actor(1, 4)
    for _ in range(40):
        acting, _, ended = act(learner, maze, acting, 1, discount=0.98)
        if ended[0]:
            break
    assert ended[0]
    zero = jax.tree.map(jnp.zeros_like, acting.run.state)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, acting.run.state, zero))
    assert not any(jnp.any(leaf) for leaf in jax.tree.leaves(acting.run.carry))


@pytest.mark.slow
def test_an_actor_with_memory_beats_every_actor_without():
    learner, maze, acting = actor(3, 16)
    acting, _, _ = act(learner, maze, acting, 60_000, discount=0.98)
    _, rewards, ended = act(learner, maze, acting, 6_000, discount=0.98)
    successes, episodes = int(jnp.sum(rewards == 4)), int(jnp.sum(ended))
    # an actor without memory succeeds in half of them: five standard deviations above
    assert successes / episodes > 0.5 + 5 * (0.25 / episodes) ** 0.5
