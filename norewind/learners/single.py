"""Learners of rows for one row at a time: the whole step is one compiled program on a packed run."""

from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from norewind.learners.ahead import Ahead, one_answer, one_step
from norewind.learners.classes import ClassLearner, ClassRun
from norewind.learners.series import Series
from norewind.learners.several import Several
from norewind.packing import Packing
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
        return _Classes(learner, run)
    return _Compiled(learner, run)


class _Compiled:
    def __init__(self, learner: Any, run: Tree):
        self._packing = packing = Packing(run)
        self._horizon = getattr(learner, "horizon", 0)
        step, answer = _functions(learner)

        def learned(vectors, x, target):
            run, loss, outputs = step(packing.unpack(vectors), x, target)
            vectors = packing.pack(run, vectors)
            return vectors, (loss, outputs, all_finite(vectors))

        def answered(vectors, x):
            run, outputs = answer(packing.unpack(vectors), x)
            return packing.pack(run, vectors), outputs

        self._learned, self._answered = jax.jit(learned), jax.jit(answered)
        self._outputs = jax.jit(lambda vectors, x: answer(packing.unpack(vectors), x)[1])

    def pack(self, run: Tree) -> "_Packed":
        return _Packed(self._packing.packed(run), _rows_of(run) if self._horizon else 0)

    def unpacked(self, run: "_Packed") -> Tree:
        return self._packing.unpacked(run.vectors)

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
        return self._outputs(run.vectors, x)


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


class _Mixed(NamedTuple):
    """The packed runs of the members, and the rest of the run of a `ClassLearner`, which stays in NumPy."""

    members: Any
    rest: ClassRun
    rows: int


class _Classes:
    """Members in one compiled program; the mixture, which is a few numbers in 64 bits, beside it."""

    def __init__(self, learner: ClassLearner, run: ClassRun):
        self.learner, self._packing = learner, Packing(run.members)
        functions = [_functions(member) for member in learner.members]
        logits = (lambda made: made[0]) if learner.horizon else (lambda made: made)

        def learned(vectors, x, target):
            runs = self._packing.unpack(vectors)
            done = [step(run, x, target) for (step, _), run in zip(functions, runs, strict=True)]
            return self._packing.pack(tuple(run for run, *_ in done), vectors), [logits(made) for *_, made in done]

        def answered(vectors, x):
            runs = self._packing.unpack(vectors)
            done = [answer(run, x) for (_, answer), run in zip(functions, runs, strict=True)]
            return self._packing.pack(tuple(run for run, _ in done), vectors), [logits(made) for _, made in done]

        self._learned, self._answered = jax.jit(learned), jax.jit(answered)
        self._outputs = jax.jit(lambda vectors, x: answered(vectors, x)[1])

    def pack(self, run: ClassRun) -> _Mixed:
        rows = _rows_of(run) if self.learner.horizon else 0
        return _Mixed(self._packing.packed(run.members), run._replace(members=()), rows)

    def unpacked(self, run: _Mixed) -> ClassRun:
        return run.rest._replace(members=self._packing.unpacked(run.members))

    def learn(self, run: _Mixed, x: np.ndarray, target: np.ndarray) -> tuple[_Mixed, float, Any]:
        begins = run.rows < self.learner.horizon
        members, logits = self._answered(run.members, x) if begins else self._learned(run.members, x, target)
        rest, loss, outputs = self.learner.mixed_row(run.rest, logits, float(target[0]))
        return _Mixed(members, rest, run.rows + 1), loss, outputs

    def answer(self, run: _Mixed, x: np.ndarray) -> tuple[_Mixed, Any]:
        members, logits = self._answered(run.members, x)
        rest, _, outputs = self.learner.mixed_row(run.rest, logits, np.nan)
        return _Mixed(members, rest, run.rows + 1), outputs

    def outputs(self, run: _Mixed, x: np.ndarray) -> Any:
        return self.learner.mixed_row(run.rest, self._outputs(run.members, x), np.nan)[2]


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


def _rows_of(run: Any) -> int:
    """The rows that a learner ahead has seen, which its members count."""
    return int(run.samples if hasattr(run, "samples") else run.members[0].samples)
