"""Learners of rows for one row at a time: networks in one compiled kernel, and the rest in NumPy.

Least squares and mixing are some hundred operations on small arrays: NumPy needs about as long for them as a compiled
program needs to be called, and nothing has to be compiled first.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from norewind.learner import Learner
from norewind.learners.ahead import Ahead, one_answer, one_step
from norewind.learners.classes import ClassLearner
from norewind.learners.series import Series
from norewind.learners.several import Several
from norewind.packing import Program, layout_of
from norewind.run import NonFiniteError
from norewind.trees import Tree, all_finite


class OneByOne(Protocol):
    """A learner that takes single rows. Its runs are opaque: `pack` and `unpacked` lead from a plain run and back."""

    def pack(self, run: Tree) -> Any: ...

    def unpacked(self, run: Any) -> Tree: ...

    def carry(self, run: Any) -> Tree: ...

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
    if isinstance(learner, Series | ClassLearner):
        return _Mixture(learner, run)
    return _Alone(learner, run)


class _Members:
    """Learners side by side on the same rows: `learn` and `answer` give their runs, losses and outputs."""

    def __init__(self, learners: Sequence[Any], runs: Sequence[Any]):
        self.learners, self._horizon = list(learners), getattr(learners[0], "horizon", 0)
        self._compiled = [isinstance(_inner(learner), Learner) for learner in learners]
        self._networks = _Networks(self._of(learners, True), self._of(runs, True)) if any(self._compiled) else None

    def pack(self, runs: Sequence[Any]) -> "_Packed":
        rows = _rows_of(runs[0]) if self._horizon else 0
        plain = [jax.tree.map(np.asarray, run) for run in self._of(runs, False)]
        return _Packed(plain, self._networks.pack(self._of(runs, True)) if self._networks else (), rows)

    def unpacked(self, run: "_Packed") -> tuple:
        networks = iter(self._networks.unpacked(run.vectors) if self._networks else ())
        plain = iter(jax.tree.map(np.asarray, run.plain))
        return tuple(next(networks if compiled else plain) for compiled in self._compiled)

    def carry(self, run: "_Packed") -> tuple:
        runs = iter(self._networks.view(run.vectors) if self._networks else ())
        pairs = zip(self.learners, self._compiled, strict=True)
        return tuple(learner.carry(next(runs)) if compiled else () for learner, compiled in pairs)

    def learn(self, run: "_Packed", x: np.ndarray, target: np.ndarray) -> tuple["_Packed", list, list]:
        """The first `horizon` rows are answered only: their targets are nobody's."""
        return self._moved(run, x, target if run.rows >= self._horizon else None)

    def answer(self, run: "_Packed", x: np.ndarray) -> tuple["_Packed", list, list]:
        return self._moved(run, x, None)

    def _moved(self, run: "_Packed", x: np.ndarray, target: np.ndarray | None) -> tuple["_Packed", list, list]:
        plain = [_one(*pair, x, target) for pair in zip(self._of(self.learners, False), run.plain, strict=True)]
        vectors, losses, made = self._networks.moved(run.vectors, x, target) if self._networks else ((), (), ())
        networks, others = iter(zip(losses, made, strict=True)), iter(plain)
        seen = [next(networks) if compiled else next(others)[1:] for compiled in self._compiled]
        new = _Packed([own for own, _, _ in plain], vectors, run.rows + 1)
        return new, [loss for loss, _ in seen], [output for _, output in seen]

    def _of(self, things: Sequence[Any], compiled: bool) -> list:
        return [thing for thing, is_compiled in zip(things, self._compiled, strict=True) if is_compiled == compiled]


class _Packed(NamedTuple):
    """The runs in NumPy, the vectors of those that are compiled, and the rows that they have seen."""

    plain: list
    vectors: tuple
    rows: int


class _Networks:
    """Learners whose step is one compiled program for all of them, on packed runs."""

    def __init__(self, learners: list[Any], runs: list[Any]):
        self._layout, self._stops = layout_of(runs), [_inner(learner).stops for learner in learners]
        self._in_numpy = [isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(runs)]
        self._programs: dict[bool, Program] = {}

        def moved(vectors, x, target=None):
            runs = self._layout.unpack(vectors)
            done = [_one(learner, run, x, target) for learner, run in zip(learners, runs, strict=True)]
            looked_at = [_looked_at(*one[:2]) for one, stops in zip(done, self._stops, strict=True) if stops]
            new, losses, made = (list(part) for part in zip(*done, strict=True))
            return new, (all_finite(looked_at), losses, made)

        self._moved = moved

    def pack(self, runs: list) -> tuple:
        return self._layout.pack_now(runs)

    def unpacked(self, vectors: tuple) -> list:
        """What was a NumPy array is one again."""
        leaves, structure = jax.tree.flatten(self._layout.unpack_now(vectors))
        leaves = [np.array(leaf) if was else leaf for leaf, was in zip(leaves, self._in_numpy, strict=True)]
        return jax.tree.unflatten(structure, leaves)

    def view(self, vectors: tuple) -> list:
        return self._layout.view(vectors)

    def moved(self, vectors: tuple, x: np.ndarray, target: np.ndarray | None) -> tuple[tuple, list, list]:
        """One row: the new vectors, the losses and what is forecast."""
        learns = target is not None
        arguments = (vectors, x, target) if learns else (vectors, x)
        if learns not in self._programs:
            self._programs[learns] = Program(self._moved, 0, arguments)
        new, (finite, losses, made) = self._programs[learns](*arguments)
        if learns and not finite:
            raise NonFiniteError("this row gave numbers that are not finite; the run before it is kept.", 0, None)
        return new, losses, made


def _one(learner: Any, run: Any, x: Any, target: Any) -> tuple[Any, Any, Any]:
    """One row, learned from if it has a target: the run, the loss and what is forecast, of `Ahead` also what was."""
    if not isinstance(learner, Ahead):
        if target is not None:
            return one_step(learner, run, x, target)
        new, output = one_answer(learner, run, x)
        return new, np.float32(0), output
    if target is None:
        new, outputs = learner.answer(run, x)
        return new, np.float32(0), outputs
    new, outputs = learner.one(run, x, target)
    # Least squares are members of mixtures, which do not ask for it.
    loss = learner.loss(outputs[1], target) if isinstance(learner.learner, Learner) else np.float32(0)
    return new, loss, outputs


class _Alone:
    def __init__(self, learner: Any, run: Tree):
        self._members = _Members([learner], [run])

    def pack(self, run: Tree) -> _Packed:
        return self._members.pack([run])

    def unpacked(self, run: _Packed) -> Tree:
        return self._members.unpacked(run)[0]

    def carry(self, run: _Packed) -> Tree:
        return self._members.carry(run)[0]

    def learn(self, run: _Packed, x: np.ndarray, target: np.ndarray) -> tuple[_Packed, Any, Any]:
        new, (loss,), (made,) = self._members.learn(run, x, target)
        return new, loss, made

    def answer(self, run: _Packed, x: np.ndarray) -> tuple[_Packed, Any]:
        new, _, (made,) = self._members.answer(run, x)
        return new, made

    def outputs(self, run: _Packed, x: np.ndarray) -> Any:
        return self.answer(run, x)[1]


class _Mixture:
    """A `Series` or a `ClassLearner`: its members, and what it makes of their outputs."""

    def __init__(self, learner: Any, run: Any):
        self._learner, self._members = learner, _Members(learner.members, run.members)

    def pack(self, run: Any) -> Any:
        mixed = jax.tree.map(np.asarray, run._replace(members=()))
        return mixed._replace(members=self._members.pack(run.members))

    def unpacked(self, run: Any) -> Any:
        mixed = jax.tree.map(np.asarray, run._replace(members=()))
        return mixed._replace(members=self._members.unpacked(run.members))

    def carry(self, run: Any) -> Tree:
        return ()

    def learn(self, run: Any, x: np.ndarray, target: np.ndarray) -> tuple[Any, Any, Any]:
        members, _, made = self._members.learn(run.members, x, target)
        new, loss, outputs = self._learner.one(run, self._newest(made), x, target)
        return new._replace(members=members), loss, outputs

    def answer(self, run: Any, x: np.ndarray) -> tuple[Any, Any]:
        members, _, made = self._members.answer(run.members, x)
        new, outputs = self._learner.answer(run, self._newest(made), x)
        return new._replace(members=members), outputs

    def outputs(self, run: Any, x: np.ndarray) -> Any:
        return self.answer(run, x)[1]

    def _newest(self, made: list) -> list:
        return [output[0] for output in made] if self._learner.horizon else made


class _Several:
    """One for each horizon."""

    def __init__(self, learner: Several, run: tuple):
        self.learner = learner
        self.parts = [one_by_one(member, part) for member, part in zip(learner.members, run, strict=True)]

    def pack(self, run: tuple) -> tuple:
        return tuple(part.pack(own) for part, own in zip(self.parts, run, strict=True))

    def unpacked(self, run: tuple) -> tuple:
        return tuple(part.unpacked(own) for part, own in zip(self.parts, run, strict=True))

    def carry(self, run: tuple) -> tuple:
        return tuple(part.carry(own) for part, own in zip(self.parts, run, strict=True))

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


def _inner(learner: Any) -> Any:
    return learner.learner if isinstance(learner, Ahead) else learner


def _looked_at(run: Any, loss: Any) -> Tree:
    """What must be finite. A state may hold an infinity on purpose."""
    inner = getattr(run, "run", run)
    return loss, inner.params, inner.carry


def _rows_of(run: Any) -> int:
    """The rows that a learner ahead has seen."""
    return int(run.samples)
