"""Learners of rows for one row at a time: the whole step is one compiled kernel on a packed run."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from norewind.layout import Vectors, layout_of
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

    def pending(self, run: Any) -> dict[int, np.ndarray]:
        """The forecasts of future rows; see `Ahead.pending`."""
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


def one_by_one(learner: Any, run: Tree, inputs: int) -> OneByOne:
    """A learner of rows of `inputs` numbers, without windows, for single rows; `run` is an example.

    As `scan`, but for rounding.
    """
    return _Several(learner, run, inputs) if isinstance(learner, Several) else _Compiled(learner, run, inputs)


class _Packed(NamedTuple):
    """A run as vectors, those that only learning changes and those that every row moves; and the rows it has seen."""

    fixed: Vectors
    moving: Vectors
    rows: int


class _Compiled:
    """One compiled program learns from a row, another answers it, which writes only what moves."""

    def __init__(self, learner: Any, run: Tree, inputs: int):
        self._learner, self._horizon = learner, getattr(learner, "horizon", 0)
        leaves, self._structure = jax.tree.flatten(run)
        self._in_numpy = [isinstance(leaf, np.ndarray) for leaf in leaves]
        learned, answered = _functions(learner)
        self._moves = _moves(answered, run, jax.ShapeDtypeStruct((inputs,), np.float32))
        self._fixed, self._moving = map(layout_of, self._parts(run))
        self._calls: dict[int, PackedCall] = {}
        if self._horizon:
            place = jax.tree.unflatten(self._structure, range(len(leaves))).outputs
            self._example, self._outputs = run, sum(self._moves[:place])

        def learn(fixed, moving, x, target):
            new, *seen = learned(self._joined(self._fixed.unpack(fixed), self._moving.unpack(moving)), x, target)
            fixed, moving = self._parts(new)
            return (self._fixed.pack(fixed), self._moving.pack(moving)), seen

        def answer(fixed, moving, x):
            new, outputs = answered(self._joined(self._fixed.unpack(fixed), self._moving.unpack(moving)), x)
            return self._moving.pack(self._parts(new)[1]), outputs

        self._functions = learn, answer

    def _parts(self, run: Tree) -> tuple[list, list]:
        """The leaves that stay, and those that move."""
        leaves = list(zip(jax.tree.leaves(run), self._moves, strict=True))
        return [leaf for leaf, moves in leaves if not moves], [leaf for leaf, moves in leaves if moves]

    def _joined(self, fixed: list, moving: list) -> Tree:
        parts = iter(fixed), iter(moving)
        return jax.tree.unflatten(self._structure, [next(parts[moves]) for moves in self._moves])

    def pack(self, run: Tree) -> _Packed:
        fixed, moving = self._parts(run)
        rows = _rows_of(run) if self._horizon else 0
        return _Packed(self._fixed.pack_now(fixed), self._moving.pack_now(moving), rows)

    def unpacked(self, run: _Packed) -> Tree:
        """What was a NumPy array is one again."""
        whole = self._joined(self._fixed.unpack_now(run.fixed), self._moving.unpack_now(run.moving))
        leaves = zip(jax.tree.leaves(whole), self._in_numpy, strict=True)
        return jax.tree.unflatten(self._structure, [np.array(leaf) if was else leaf for leaf, was in leaves])

    def view(self, run: _Packed) -> Tree:
        fixed, moving = (tuple(map(np.asarray, part)) for part in (run.fixed, run.moving))
        return self._joined(self._fixed.view(fixed), self._moving.view(moving))

    def pending(self, run: _Packed) -> dict[int, np.ndarray]:
        # Of a run's many leaves, `pending` looks at this one.
        return self._learner.pending(self._example._replace(outputs=self._moving.view_leaf(run.moving, self._outputs)))

    def learn(self, run: _Packed, x: np.ndarray, target: np.ndarray) -> tuple[_Packed, Any, Any]:
        if run.rows < self._horizon:
            run, outputs = self.answer(run, x)
            return run, 0.0, outputs
        (fixed, moving), (loss, outputs, finite) = self._call(0, run.fixed, run.moving, x, target)
        if not finite:
            raise NonFiniteError("this row gave numbers that are not finite; the run before it is kept.", 0, None)
        return _Packed(fixed, moving, run.rows + 1), loss, outputs

    def answer(self, run: _Packed, x: np.ndarray) -> tuple[_Packed, Any]:
        moving, outputs = self._call(1, run.fixed, run.moving, x)
        return _Packed(run.fixed, moving, run.rows + 1), outputs

    def outputs(self, run: _Packed, x: np.ndarray) -> Any:
        return self._call(1, run.fixed, run.moving, x)[1]

    def _call(self, place: int, *arguments: Any) -> tuple[Any, Any]:
        if place not in self._calls:
            self._calls[place] = PackedCall(self._functions[place], arguments)
        return self._calls[place](*arguments)


def _moves(answered: Callable, run: Tree, x: Any) -> list[bool]:
    """Which leaves of a run an answer changes."""
    moves: list[bool] = []

    def look(run, x):
        new, _ = answered(run, x)
        moves.extend(after is not before for before, after in zip(*map(jax.tree.leaves, (run, new)), strict=True))

    jax.eval_shape(look, run, x)
    return moves


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

    def __init__(self, learner: Several, run: tuple, inputs: int):
        self.learner = learner
        self.parts = [one_by_one(member, part, inputs) for member, part in zip(learner.members, run, strict=True)]

    def pack(self, run: tuple) -> tuple:
        return tuple(part.pack(own) for part, own in zip(self.parts, run, strict=True))

    def unpacked(self, run: tuple) -> tuple:
        return tuple(part.unpacked(own) for part, own in zip(self.parts, run, strict=True))

    def view(self, run: tuple) -> tuple:
        return tuple(part.view(own) for part, own in zip(self.parts, run, strict=True))

    def pending(self, run: tuple) -> dict[int, np.ndarray]:
        found = (part.pending(own) for part, own in zip(self.parts, run, strict=True))
        return {horizon: outputs for pending in found for horizon, outputs in pending.items()}

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
