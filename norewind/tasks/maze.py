"""The T-maze, a task for actors with memory, and the loop in which a learner acts in it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp

from norewind.core.run import Run
from norewind.core.td import Outcome
from norewind.core.trees import Tree
from norewind.engines.compilation import compiled_loop
from norewind.learners.online import OnlineLearner

# The actions: go on, go back, turn left, turn right.
ACTIONS = 4


class MazeState(NamedTuple):
    """Where the actor is.

    Attributes:
        place: the number of steps from the start.
        goal: whether the reward is on the right.
        age: the number of actions in this episode.
    """

    place: jax.Array
    goal: jax.Array
    age: jax.Array


class StepResult(NamedTuple):
    """The answer of an environment to an action.

    Attributes:
        state: its new state; that of a new episode if the last one ended.
        x: the observation in the new state.
        reward: the reward of the action.
        ended: whether the action ended the episode.
    """

    state: Tree
    x: jax.Array
    reward: jax.Array
    ended: jax.Array


@dataclass(frozen=True)
class TMaze:
    """A corridor that ends in a T-junction. A sign, seen only at its beginning, tells on which side the reward is.

    The observation has four entries: left sign, right sign, corridor, junction. The four actions are to go on,
    to go back, and to turn left or right, which only makes a difference at the junction. There, a turn ends the
    episode with a reward of 4 if it is the right one and −0.1 otherwise. Every action that does not move costs 0.1. An
    actor without memory succeeds in half of the episodes.

    Reference: Bakker, Reinforcement Learning with Long Short-Term Memory (2001).

    Args:
        length: the number of steps from the start to the junction.
        max_actions: the number of actions after which an episode ends anyway.

    >>> import jax
    >>> maze = TMaze(length=2)
    >>> state, x = maze.start(jax.random.key(0))
    >>> for action in (0, 0, 2):
    ...     step = maze.step(state, action, jax.random.key(1))
    ...     state = step.state
    >>> bool(step.ended), int(state.place)
    (True, 0)
    """

    length: int = 5
    max_actions: int = 100

    inputs = 4
    actions = ACTIONS

    def start(self, key: jax.Array) -> tuple[MazeState, jax.Array]:
        """Begin an episode.

        Args:
            key: decides where the reward is.

        Returns:
            The state and the first observation.
        """
        zero = jnp.zeros((), jnp.int32)
        state = MazeState(zero, jax.random.bernoulli(key), zero)
        return state, self._observe(state)

    def step(self, state: MazeState, action: jax.Array, key: jax.Array) -> StepResult:
        """Act.

        Args:
            state: the state of the maze.
            action: the number of the action.
            key: decides where the reward is in the next episode.
        """
        action = jnp.asarray(action)
        at_junction, turned = state.place == self.length, action >= 2
        moved = jnp.where(action == 0, 1, jnp.where(action == 1, -1, 0))
        place = jnp.clip(state.place + moved, 0, self.length)
        correct = (action == 3) == state.goal
        still = jnp.where(place == state.place, -0.1, 0.0)
        decided = at_junction & turned
        reward = jnp.where(decided & correct, 4.0, still)
        age = state.age + 1
        ended = decided | (age >= self.max_actions)
        fresh, _ = self.start(key)
        state = jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, MazeState(place, state.goal, age))
        return StepResult(state, self._observe(state), reward, ended)

    def _observe(self, state: MazeState) -> jax.Array:
        at_start, at_junction = state.place == 0, state.place == self.length
        return jnp.stack([at_start & ~state.goal, at_start & state.goal, ~at_start & ~at_junction, at_junction]).astype(
            float
        )


class ActorState(NamedTuple):
    """A learner in an environment.

    Attributes:
        run: the run of the learner.
        place: the state of the environment.
        x: the latest observation.
        key: the PRNG key of the next actions.
    """

    run: Run
    place: Tree
    x: jax.Array
    key: jax.Array


def init_actor(environment: TMaze, run: Run, key: jax.Array) -> ActorState:
    """Put a learner at the beginning of an episode.

    Args:
        environment: the environment.
        run: a fresh run of an actor-critic (see `act`).
        key: a PRNG key, for the actions and the environment.
    """
    key, own = jax.random.split(key)
    return ActorState(run, *environment.start(own), key)


def act(
    learner: OnlineLearner, environment: TMaze, acting: ActorState, steps: int, *, discount: float
) -> tuple[ActorState, jax.Array, jax.Array]:
    """Let an actor-critic act and learn, in one compiled loop.

    Args:
        learner: `online` of a `norewind.td` with `norewind.losses.actor_critic`. The output of its model
            is the value and one logit per action, from which the actions are drawn.
        environment: the environment, with the functions of `TMaze`.
        acting: where to continue, from `init_actor` or an earlier call.
        steps: the number of actions.
        discount: γ within an episode.

    Returns:
        `(acting, rewards, ended)`: where to continue, and the reward of each action and whether it ended an episode.

    >>> import jax, norewind
    >>> maze = TMaze(length=3)
    >>> cell = norewind.cells.gru(maze.inputs, 8, 1 + maze.actions, symbols=False)
    >>> inner = norewind.uoro(cell.transition, norewind.losses.actor_critic(entropy=0.01))
    >>> learner = norewind.online(norewind.td(inner, decay=0.9), norewind.core.obgd(kappa=3.0))
    >>> run = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    >>> acting = init_actor(maze, run, jax.random.key(2))
    >>> acting, rewards, ended = act(learner, maze, acting, 20, discount=0.98)
    >>> rewards.shape, int(acting.run.samples)
    ((20,), 20)
    """
    acting, (rewards, ended) = _acting_loop(learner, environment, steps, discount)(acting)
    return acting, rewards, ended


@lru_cache(maxsize=16)
def _acting_loop(learner: OnlineLearner, environment: TMaze, steps: int, discount: float) -> Callable:
    update = learner.update

    def body(acting, _):
        key, choice, chance = jax.random.split(acting.key, 3)
        _, output = update.transition(acting.run.params, acting.run.state, acting.x)
        action = jax.random.categorical(choice, output[1:])
        step = environment.step(acting.place, action, chance)
        target = Outcome(step.reward, discount * (1.0 - step.ended), step.x, action)
        run = update.reset(update.step(acting.run, acting.x, target)[0], step.ended)
        return ActorState(run, step.state, step.x, key), (step.reward, step.ended)

    return compiled_loop(lambda acting: jax.lax.scan(body, acting, length=steps))
