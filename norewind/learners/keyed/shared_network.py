"""Keys that share one model: rows are learned one by one in order of arrival. Each key has its own state and carry."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from norewind.core.checks import ModelError
from norewind.core.run import Nonfinite, NonFiniteError, Run, Update
from norewind.core.trees import Tree, all_finite, concatenate_trees, without_weak_types
from norewind.engines.compilation import compiled_loop
from norewind.learners.chunks import scan_some
from norewind.learners.keyed.keyed_program import SlotArrays
from norewind.learners.keyed.separate_networks import with_prng_keys, without_prng_keys
from norewind.learners.online import OnlineLearner

# The number of rows in one call of a program.
ROWS_PER_CALL = 4096
# The number of keys in a call is padded to 16, 16² and so on.
KEYS_BASE = 16


class SharedNetwork:
    """Learns the samples of all keys with one model: a run with the state and carry of the current row's key.

    Args:
        learner: the network, from `online`.
        start: the run that every key starts from.

    Attributes:
        own: the initial arrays that every key has for itself, by name.
        shared: the initial run that all keys share, without state and carry.
    """

    def __init__(self, learner: OnlineLearner, start: Run):
        self.shared = start._replace(state=None, carry=None, latest_state=None, initial_state=None)
        # Each key has its own state and carry after the rows learned from, and its own latest state.
        like = start.state, start.carry, start.latest_state
        self.own = {str(i): np.asarray(leaf) for i, leaf in enumerate(without_prng_keys(like))}
        program = _program(learner.update, "ignore" if learner.stops else "skip", like)
        self._learned = compiled_loop(program, donate_argnums=0)

    def learn(
        self, shared: Run, arrays: SlotArrays, slots: np.ndarray, rows: tuple, learns: np.ndarray
    ) -> tuple[Run, np.ndarray, np.ndarray]:
        """Learn from rows; see `SeparateNetworks.learn`.

        Raises:
            NonFiniteError: the shared network got numbers that are not finite.
        """
        blocks, parts = [arrays[name] for name in self.own], []
        for start in range(0, len(slots), ROWS_PER_CALL):
            part = slice(start, min(start + ROWS_PER_CALL, len(slots)))
            keys, key = np.unique(slots[part], return_inverse=True)
            chunk = jax.tree.map(lambda leaf: leaf[part], (learns, rows))  # noqa: B023
            inputs = jax.tree.map(_padded, (key.astype(np.int32), *chunk))
            new, own, results, finite = self._learned(_taken(blocks, keys), shared, inputs, len(key))
            if not bool(finite):
                raise NonFiniteError(
                    f"after {int(shared.samples)} samples, the model that all keys share got numbers that are not "
                    "finite.",
                    int(shared.steps) + 1,
                    shared,
                    "Lower the learning rate, or check the rows after that.",
                )
            for into, block in zip(blocks, own, strict=True):
                into[keys] = np.asarray(block)[: len(keys)]
            shared = new
            parts.append(jax.tree.map(lambda leaf: np.asarray(leaf)[: len(key)], results))  # noqa: B023
        losses, outputs = concatenate_trees(parts)
        return shared, outputs, losses

    def forward(self, arrays: SlotArrays, xs: Tree) -> np.ndarray:
        """Raise an error: a shared network predicts only while it learns."""
        raise ModelError("forward: not for keys that share one model, which predicts only while it learns.")


def _padded(part: np.ndarray) -> np.ndarray:
    """Pad rows to the fixed number that a program takes."""
    full = np.zeros((ROWS_PER_CALL, *part.shape[1:]), part.dtype)
    full[: len(part)] = part
    return full


def _taken(blocks: list[np.ndarray], slots: np.ndarray) -> list[jax.Array]:
    """Copy the runs of keys for a program, padded to a fixed size with copies of the first key."""
    size = KEYS_BASE
    while size < len(slots):
        size *= KEYS_BASE
    slots = np.concatenate([slots, np.repeat(slots[:1], size - len(slots))])
    if jax.default_backend() != "cpu":
        return [jnp.asarray(block[slots]) for block in blocks]
    # XLA reads the arrays of all keys in place, with one copy; NumPy and a program would make two.
    return _take(blocks, slots)


@jax.jit
def _take(blocks: list[jax.Array], slots: jax.Array) -> list[jax.Array]:
    return [block.at[slots].get(mode="promise_in_bounds") for block in blocks]


def _program(update: Update, nonfinite: Nonfinite, like: Tree) -> Callable:
    """Build the loop over rows: read the key's own part, do one step of the learner, and write the part back."""

    def one(carried: tuple[Run, list[jax.Array]], row: tuple) -> Any:
        (shared, blocks), (at, learns, (x, target, latest)) = carried, row
        own = [jax.lax.dynamic_index_in_dim(block, at, keepdims=False) for block in blocks]
        state, carry, latest_state = with_prng_keys(jax.tree.unflatten(jax.tree.structure(like), own), like)
        run = shared._replace(state=state, carry=carry, latest_state=latest_state)

        def learn():
            new, estimate, _ = update.step(run, x, target, latest, nonfinite=nonfinite)
            return new, estimate.loss, estimate.output

        def answer():
            state, output = update.transition(run.params, run.latest_state, latest)
            run_after = run._replace(latest_state=without_weak_types(state))
            return run_after, jnp.zeros_like(jax.eval_shape(learn)[1]), output

        run, loss, output = learn() if latest is None else jax.lax.cond(learns, learn, answer)
        own = without_prng_keys(without_weak_types((run.state, run.carry, run.latest_state)))
        pairs = zip(blocks, own, strict=True)
        blocks = [jax.lax.dynamic_update_index_in_dim(block, part, at, 0) for block, part in pairs]
        return (run._replace(state=None, carry=None, latest_state=None), blocks), (loss, output)

    def rows(blocks, shared, inputs, count):
        (shared, blocks), results = scan_some(one, (shared, blocks), inputs, count)
        return shared, blocks, results, all_finite(shared.params)

    return rows
