"""Keys with models of their own: batches of keys go through one program, several samples of a key in a row."""

from typing import Any

import jax
import numpy as np

from norewind.fleets.programs import LADDER, LANES, Programs, Visit, padded, rung, visits
from norewind.fleets.records import without_keys
from norewind.fleets.scaling import Segments
from norewind.fleets.slots import Slots
from norewind.trees import Tree


class Private:
    """Learns every key's samples with the key's own run."""

    def __init__(self, learner: Any, start: Tree, window: int):
        self.programs = Programs(learner, start)
        self._structure, self._shapes = jax.tree.structure(start), [leaf.shape for leaf in without_keys(start)]

    def own(self, run: Tree) -> Tree:
        """The part of a run that every key has for itself: all of it, leaf by leaf."""
        return jax.tree.leaves(run)

    def init(self) -> Tree:
        """What all keys share."""
        return ()

    def learn(self, shared: Tree, slots: Slots, parts: Segments, rows: tuple, idle: np.ndarray, order: np.ndarray):
        """Learn from rows sorted by key, after those that only answer (`idle`): `(shared, outputs, losses)`."""
        xs, _, newest = rows
        count = len(jax.tree.leaves(xs)[0])
        longest = LADDER[rung(len(parts.places))]
        found: list[Any] = [None, None]

        def note(visit: Visit, part: slice, *results: Any) -> None:
            keys = visit.rows[part]
            at = keys[:, None] + np.arange(visit.length)
            for place, result in enumerate(results):
                leaves, structure = jax.tree.flatten(result)
                if found[place] is None:
                    empty = [np.zeros((count, *leaf.shape[2:]), leaf.dtype) for leaf in leaves]
                    found[place] = jax.tree.unflatten(structure, empty)
                for into, leaf in zip(jax.tree.leaves(found[place]), leaves, strict=True):
                    into[at] = np.asarray(leaf)[: len(keys), : visit.length]

        for visit in visits(parts.starts, idle, longest):
            for part in _batches(visit):
                note(visit, part, self._answer(slots, parts, visit, part, newest))
        for visit in visits(parts.starts + idle, parts.counts - idle, longest):
            for part in _batches(visit):
                note(visit, part, *self._learn(slots, parts, visit, part, rows))
        losses = np.zeros(count) if found[1] is None else found[1]
        return shared, found[0], losses

    def answer(self, leaves: list[np.ndarray], xs: Tree) -> np.ndarray:
        """The outputs of runs for one more row each, which is not learned from. The runs stay as they are."""
        size = rung(count := len(jax.tree.leaves(xs)[0]))
        rows = jax.tree.map(lambda leaf: padded(leaf[:, None], size, LADDER[size]), xs)
        runs = jax.tree.unflatten(self._structure, [padded(leaf, size) for leaf in leaves])
        _, outputs = self.programs.answer(runs, rows, 1, -(-count // LANES))
        return np.asarray(outputs)[:count, 0]

    def _runs(self, slots: Slots, places: np.ndarray) -> Tree:
        """The runs of keys as one tree, stacked."""
        parts = zip(slots.runs(places), self._shapes, strict=True)
        return jax.tree.unflatten(self._structure, [block.reshape(len(places), *shape) for block, shape in parts])

    def _answer(self, slots: Slots, parts: Segments, visit: Visit, part: slice, newest: Tree) -> Any:
        places, size = parts.places[visit.keys[part]], rung(len(visit.keys[part]))
        filled = -(-len(places) // LANES)
        runs = self._runs(slots, _repeated(places, size))
        after, outputs = self.programs.answer(runs, _rows(newest, visit, part, size), visit.length, filled)
        slots.put(places, after)
        return outputs

    def _learn(self, slots: Slots, parts: Segments, visit: Visit, part: slice, rows: tuple) -> tuple[Any, Any]:
        places, size = parts.places[visit.keys[part]], rung(len(visit.keys[part]))
        inputs = [None if leaf is None else _rows(leaf, visit, part, size) for leaf in rows]
        filled = -(-len(places) // LANES)
        before = self._runs(slots, _repeated(places, size))
        after, losses, outputs, finite = self.programs.learn(before, *inputs, visit.length, filled)
        bad = np.flatnonzero(~np.asarray(finite)[: len(places)])
        if len(bad):
            # Again, dropping samples that give numbers that are not finite; the other keys are not touched by it.
            again, lost, out, _ = self.programs.careful(before, *inputs, visit.length, filled)
            after, losses, outputs = (
                jax.tree.map(lambda new, old: _with(np.array(old), np.asarray(new), bad), new, old)
                for new, old in ((again, after), (lost, losses), (out, outputs))
            )
        slots.put(places, after)
        return outputs, losses


def _with(old: np.ndarray, new: np.ndarray, places: np.ndarray) -> np.ndarray:
    old[places] = new[places]
    return old


def _batches(visit: Visit) -> list[slice]:
    """Batches of the largest size in the ladder, and one for the rest."""
    most = max(LADDER)
    return [slice(start, start + most) for start in range(0, len(visit.keys), most)]


def _repeated(places: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([places, np.repeat(places[:1], size - len(places))])


def _rows(tree: Tree, visit: Visit, part: slice, size: int) -> Tree:
    """The rows of a batch, of shape (keys, rows, ...)."""
    at = visit.rows[part][:, None] + np.arange(visit.length)
    return jax.tree.map(lambda leaf: padded(leaf[at], size, LADDER[size]), tree)
