"""Learners of rows for one row at a time: the whole step is one compiled program on a packed run."""

from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from norewind.learners.ahead import Ahead, one_answer, one_step
from norewind.learners.classes import ClassLearner
from norewind.learners.series import Series
from norewind.learners.several import Several
from norewind.packing import layout_of
from norewind.run import NonFiniteError
from norewind.trees import Tree, all_finite


class OneByOne(Protocol):
    """A learner that takes single rows. Its runs are opaque: `pack` and `unpacked` lead from a plain run and back."""

    def pack(self, run: Tree) -> Any: ...

    def unpacked(self, run: Any) -> Tree: ...

    def learn(self, run: Any, x: np.ndarray, target: np.ndarray) -> tuple[Any, float, Any]:
        """Learn from one row: the run, the loss and the outputs."""
        ...

    def answer(self, run: Any, x: np.ndarray) -> tuple[Any, Any]:
        """Move on by one row and learn nothing; so begin runs that forecast `horizon` rows ahead."""
        ...

    def outputs(self, run: Any, x: np.ndarray) -> Any:
        """What the learner answers to a row. The run does not move."""
        ...


def one_by_one(learner: Any, run: Tree) -> OneByOne:
    """A learner of rows, without windows, for single rows; `run` is an example. As `scan`, but for rounding."""
    if isinstance(learner, Several):
        return _Several(learner, run)
    if isinstance(learner, ClassLearner):
        return _Chunks(learner)
    return _Compiled(learner, run)


class _Compiled:
    def __init__(self, learner: Any, run: Tree):
        self._layout = layout = layout_of(run)
        self._in_numpy = [isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(run)]
        self._horizon = getattr(learner, "horizon", 0)
        step, answer = _functions(learner)

        def learned(vectors, x, target):
            run, loss, outputs = step(layout.unpack(vectors), x, target)
            vectors = layout.pack(run)
            return vectors, (loss, outputs, all_finite(vectors))

        def answered(vectors, x):
            run, outputs = answer(layout.unpack(vectors), x)
            return layout.pack(run), outputs

        self._learned, self._answered = jax.jit(learned), jax.jit(answered)

    def pack(self, run: Tree) -> "_Packed":
        return _Packed(self._layout.pack_now(run), _rows_of(run) if self._horizon else 0)

    def unpacked(self, run: "_Packed") -> Tree:
        """What was a NumPy array is one again."""
        leaves, structure = jax.tree.flatten(self._layout.unpack_now(run.vectors))
        leaves = [np.array(leaf) if was else leaf for leaf, was in zip(leaves, self._in_numpy, strict=True)]
        return jax.tree.unflatten(structure, leaves)

    def learn(self, run: "_Packed", x: np.ndarray, target: np.ndarray) -> tuple["_Packed", Any, Any]:
        if run.rows < self._horizon:
            run, outputs = self.answer(run, x)
            return run, 0.0, outputs
        new, (loss, outputs, finite) = self._learned(run.vectors, x, target)
        if not finite:
            raise NonFiniteError("this row gave numbers that are not finite; the run before it is kept.", 0, None)
        return _Packed(new, run.rows + 1), loss, outputs

    def answer(self, run: "_Packed", x: np.ndarray) -> tuple["_Packed", Any]:
        new, outputs = self._answered(run.vectors, x)
        return _Packed(new, run.rows + 1), outputs

    def outputs(self, run: "_Packed", x: np.ndarray) -> Any:
        return self.answer(run, x)[1]  # not a program of its own, which would take as long to compile again


class _Packed(NamedTuple):
    """A packed run, and the rows that it has seen."""

    vectors: tuple
    rows: int


def _functions(learner: Any) -> tuple[Any, Any]:
    if isinstance(learner, Ahead | Series):
        return learner.one, learner.answer
    return (
        lambda run, x, target: one_step(learner, run, x, target),
        lambda run, x: one_answer(learner, run, x),
    )


class _Chunks:
    """A learner as it is, given chunks of one row."""

    def __init__(self, learner: Any):
        self._learner = learner

    def pack(self, run: Tree) -> Tree:
        return run

    def unpacked(self, run: Tree) -> Tree:
        return run

    def learn(self, run: Tree, x: np.ndarray, target: np.ndarray) -> tuple[Tree, Any, Any]:
        new, (losses, made) = self._learner.scan(run, x[None], target[None], outputs=True)
        return new, losses[0], _first(made)

    def answer(self, run: Tree, x: np.ndarray) -> tuple[Tree, Any]:
        new, made = self._learner.forward(run, x[None])
        return new, _first(made)

    def outputs(self, run: Tree, x: np.ndarray) -> Any:
        return self.answer(run, x)[1]


class _Several:
    """One for each horizon."""

    def __init__(self, learner: Several, run: tuple):
        self.learner = learner
        self.parts = [one_by_one(member, part) for member, part in zip(learner.members, run, strict=True)]

    def pack(self, run: tuple) -> tuple:
        return tuple(part.pack(own) for part, own in zip(self.parts, run, strict=True))

    def unpacked(self, run: tuple) -> tuple:
        return tuple(part.unpacked(own) for part, own in zip(self.parts, run, strict=True))

    def learn(self, run: tuple, x: np.ndarray, target: np.ndarray) -> tuple[tuple, float, Any]:
        targets = np.split(target, len(self.parts))
        done = [part.learn(own, x, came) for part, own, came in zip(self.parts, run, targets, strict=True)]
        new, losses, made = zip(*done, strict=True)
        return new, sum(map(float, losses)), self.learner.joined(list(made))

    def answer(self, run: tuple, x: np.ndarray) -> tuple[tuple, Any]:
        new, made = zip(*(part.answer(own, x) for part, own in zip(self.parts, run, strict=True)), strict=True)
        return new, self.learner.joined(list(made))

    def outputs(self, run: tuple, x: np.ndarray) -> Any:
        return self.learner.joined([part.outputs(own, x) for part, own in zip(self.parts, run, strict=True)])


def _first(made: Any) -> Any:
    return jax.tree.map(lambda rows: np.asarray(rows)[0], made)


def _rows_of(run: Any) -> int:
    """The rows that a learner ahead has seen, which its members count."""
    return int(run.samples if hasattr(run, "samples") else run.members[0].samples)
