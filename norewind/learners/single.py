"""Learners of rows for one row at a time: the whole step is one compiled kernel on a packed run."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from norewind.compilation import calling_thread
from norewind.layout import Leaf, Vectors, layout_of
from norewind.learner import Learner
from norewind.learners.ahead import Ahead, one_answer, one_step
from norewind.learners.classes import ClassLearner
from norewind.learners.series import Series
from norewind.learners.several import Several
from norewind.packing import PackedCall
from norewind.run import NonFiniteError
from norewind.trees import Tree, all_finite


class OneByOne(Protocol):
    """A learner that takes single rows. Its runs are opaque: `pack` and `unpacked` lead from a plain run and back."""

    def pack(self, run: Tree) -> Any: ...

    def unpacked(self, run: Any) -> Tree: ...

    def view(self, run: Any) -> Tree:
        """What can be read of a run. Not a copy."""
        ...

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
    return _Compiled(*_functions(learner), run, getattr(learner, "horizon", 0))


class _Compiled:
    """`learned(run, x, target) -> (run, loss, outputs, finite)` and `answered(run, x) -> (run, outputs)`, compiled."""

    def __init__(self, learned: Callable, answered: Callable, run: Tree, horizon: int):
        self._layout = layout = layout_of(run)
        self._in_numpy = [isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(run)]
        self._horizon, self._calls = horizon, {}
        self._changing: list[Leaf] = []

        def learn(vectors, x, target):
            new, *seen = learned(layout.unpack(vectors), x, target)
            return new, seen

        def answer(vectors, x):
            """Of the run, only what changes is written: the state."""
            run = layout.unpack(vectors)
            new, outputs = answered(run, x)
            leaves = zip(layout.leaves, jax.tree.leaves(run), jax.tree.leaves(new), strict=True)
            changed = [(leaf, after) for leaf, before, after in leaves if after is not before]
            self._changing = [leaf for leaf, _ in changed]
            return [after for _, after in changed], outputs

        self._functions = learn, answer

    def pack(self, run: Tree) -> "_Packed":
        return _Packed(self._layout.pack_now(run), _rows_of(run) if self._horizon else 0)

    def unpacked(self, run: "_Packed") -> Tree:
        """What was a NumPy array is one again."""
        leaves, structure = jax.tree.flatten(self._layout.unpack_now(run.vectors))
        leaves = [np.array(leaf) if was else leaf for leaf, was in zip(leaves, self._in_numpy, strict=True)]
        return jax.tree.unflatten(structure, leaves)

    def view(self, run: "_Packed") -> Tree:
        return self._layout.view(tuple(map(np.asarray, run.vectors)))

    def learn(self, run: "_Packed", x: np.ndarray, target: np.ndarray) -> tuple["_Packed", Any, Any]:
        if run.rows < self._horizon:
            run, outputs = self.answer(run, x)
            return run, 0.0, outputs
        new, (loss, outputs, finite) = self._call(0, run.vectors, x, target)
        if not finite:
            raise NonFiniteError("this row gave numbers that are not finite; the run before it is kept.", 0, None)
        return _Packed(new, run.rows + 1), loss, outputs

    def answer(self, run: "_Packed", x: np.ndarray) -> tuple["_Packed", Any]:
        changed, outputs = self._call(1, run.vectors, x)
        shared = {leaf.vector for leaf in self._changing if not leaf.alone}
        new = [np.array(vector) if place in shared else vector for place, vector in enumerate(run.vectors)]
        for leaf, part in zip(self._changing, self._calls[1].layout.leaves, strict=True):
            if leaf.alone:
                new[leaf.vector] = changed[part.vector]
            else:
                new[leaf.vector][leaf.start : leaf.stop] = np.asarray(changed[part.vector])[part.start : part.stop]
        return _Packed(tuple(jax.device_put(new, calling_thread())), run.rows + 1), outputs

    def outputs(self, run: "_Packed", x: np.ndarray) -> Any:
        return self._call(1, run.vectors, x)[1]

    def _call(self, place: int, *arguments: Any) -> tuple[Vectors, Any]:
        if place not in self._calls:
            self._calls[place] = PackedCall(self._functions[place], arguments)
        return self._calls[place](*arguments)


class _Packed(NamedTuple):
    """A packed run, and the rows that it has seen."""

    vectors: Vectors
    rows: int


def _functions(learner: Any) -> tuple[Callable, Callable]:
    inner = learner.learner if isinstance(learner, Ahead) else learner
    is_ahead = isinstance(learner, Ahead | ClassLearner | Series)

    def learned(run, x, target):
        new, loss, outputs = learner.one(run, x, target) if is_ahead else one_step(learner, run, x, target)
        finite = True
        if isinstance(inner, Learner) and inner.stops:
            after: Any = new.run if isinstance(learner, Ahead) else new
            finite = all_finite((loss, after.params, after.carry))
        return new, loss, outputs, finite

    return learned, learner.answer if is_ahead else lambda run, x: one_answer(learner, run, x)


class _Several:
    """One for each horizon."""

    def __init__(self, learner: Several, run: tuple):
        self.learner = learner
        self.parts = [one_by_one(member, part) for member, part in zip(learner.members, run, strict=True)]

    def pack(self, run: tuple) -> tuple:
        return tuple(part.pack(own) for part, own in zip(self.parts, run, strict=True))

    def unpacked(self, run: tuple) -> tuple:
        return tuple(part.unpacked(own) for part, own in zip(self.parts, run, strict=True))

    def view(self, run: tuple) -> tuple:
        return tuple(part.view(own) for part, own in zip(self.parts, run, strict=True))

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


def _rows_of(run: Any) -> int:
    """The rows that a learner ahead has seen, which its members count."""
    first = run[0] if type(run) is tuple else run
    return int(first.samples if hasattr(first, "samples") else first.members[0].samples)
