"""Mixtures, and their members: several learners that run on the same rows."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from norewind.core.trees import Tree
from norewind.learners.horizon import check_same_length, check_steps
from norewind.learners.learner import Forecasts, Learner, RowLearner


class Member(NamedTuple):
    """A learner inside a mixture.

    Attributes:
        learner: a learner of the same steps and targets as the mixture.
        run: the run it starts from.
        names: the names of the forecasts that its outputs hold side by side. Each is an expert of the mixture.
    """

    learner: Learner
    run: Tree
    names: tuple[str, ...]


def unique_names(own: Sequence[str], members: Sequence[Member]) -> tuple[str, ...]:
    """Return the names of all experts of a mixture, in order. A name that occurs again gets a number.

    Args:
        own: the names of its own experts.
        members: its members.
    """
    names: list[str] = []
    for name in (*own, *(name for member in members for name in member.names)):
        count = sum(before == name or before.startswith(f"{name} (") for before in names)
        names.append(f"{name} ({count + 1})" if name in names else name)
    return tuple(names)


def scan_all(learners: Sequence[Learner], runs: Sequence, xs: Tree, targets: Tree, count: int) -> tuple[tuple, list]:
    """Let each learner learn from the same chunk.

    Args:
        learners: learners of the same stream.
        runs: their runs, in the same order; they must not be used afterwards.
        xs: inputs, one entry per step.
        targets: their targets.
        count: the number of steps to use.

    Returns:
        Their new runs, and the outputs of each.
    """
    new, outputs = [], []
    for learner, run in zip(learners, runs, strict=True):
        run, _, made = learner.scan(run, xs, targets, count=count, outputs=True)
        new.append(run)
        outputs.append(made)
    return tuple(new), outputs


def forward_all(learners: Sequence[Learner], runs: Sequence, xs: Tree, count: int | None) -> tuple[tuple, list]:
    """Let each learner predict the same chunk without learning.

    Args:
        learners: learners of the same stream.
        runs: their runs, in the same order, which stay unchanged.
        xs: inputs, one entry per sample.
        count: the number of samples to use; None for all of them.

    Returns:
        Their new runs, and the outputs of each.
    """
    new, outputs = [], []
    for learner, run in zip(learners, runs, strict=True):
        run, made = learner.forward(run, xs, count=count)
        new.append(run)
        outputs.append(made)
    return tuple(new), outputs


def reset_all(learners: Sequence[Learner], runs: Sequence) -> tuple:
    """Begin a new sequence for each learner.

    Args:
        learners: learners of the same stream.
        runs: their runs, in the same order; they must not be used afterwards.
    """
    return tuple(learner.reset(run) for learner, run in zip(learners, runs, strict=True))


class FirstInputs(Learner):
    """A learner that sees only the first inputs of each row.

    Args:
        learner: the learner.
        inputs: how many inputs it sees.
    """

    def __init__(self, learner: Learner, inputs: int):
        self.learner, self.inputs, self.steps = learner, inputs, learner.steps

    def scan(
        self, run: Tree, xs: np.ndarray, targets: np.ndarray, *, count: int | None = None, outputs: bool = False
    ) -> tuple[Tree, np.ndarray, Forecasts]:
        return self.learner.scan(run, xs[:, : self.inputs], targets, count=count, outputs=outputs)

    def forward(self, run: Tree, xs: np.ndarray, *, count: int | None = None) -> tuple[Tree, Forecasts]:
        return self.learner.forward(run, xs[:, : self.inputs], count=count)

    def reset(self, run: Tree) -> Tree:
        return self.learner.reset(run)


class MixtureRun(NamedTuple):
    """The runs of the members, and the state of the mixture."""

    members: tuple
    mixture: Tree


class RowMixture(RowLearner):
    """Abstract base class of learners of rows that mix their members' forecasts with their own.

    Subclasses set `member_names`, with `unique_names`.

    Args:
        members: other learners of the same steps.
        steps: the steps to forecast, in rows ahead, in increasing order.
    """

    def __init__(self, members: Sequence[Member], steps: Sequence[int]):
        self.members = [member.learner for member in members]
        self.forecasts = [len(member.names) for member in members]
        self.steps = check_steps(type(self).__name__, steps)
        self._runs = tuple(member.run for member in members)

    @abstractmethod
    def start(self) -> Tree:
        """Return the state of the mixture before the first row."""

    @abstractmethod
    def copy_of(self, mixture: Tree) -> Tree:
        """Return a state of the mixture with copies of everything that changes without learning."""

    @abstractmethod
    def forget_rows(self, mixture: Tree) -> None:
        """Begin a new sequence, in place, but keep everything learned."""

    @abstractmethod
    def mix(
        self, mixture: Tree, others: list[Forecasts], xs: np.ndarray, targets: np.ndarray | None, count: int
    ) -> tuple[np.ndarray, Forecasts]:
        """Learn from a chunk of rows and forecast from them.

        Args:
            mixture: the state of the mixture, changed in place.
            others: the forecasts of the members.
            xs: inputs.
            targets: their targets; None to learn nothing.
            count: the number of rows to use.

        Returns:
            The losses, and the forecasts of the mixture.
        """

    def init(self) -> MixtureRun:
        """Start a run with equal weights."""
        return MixtureRun(self._runs, self.start())

    def scan(
        self, run: MixtureRun, xs: np.ndarray, targets: np.ndarray, *, count: int | None = None, outputs: bool = False
    ) -> tuple[MixtureRun, np.ndarray, Forecasts]:
        """Learn from a chunk of rows; see `Learner.scan`. Outputs are always returned: they cost nothing extra."""
        check_same_length(xs, targets)
        count = len(xs) if count is None else count
        runs, others = scan_all(self.members, run.members, self._inputs_of(xs), targets, count)
        losses, forecasts = self.mix(run.mixture, others, xs, targets, count)
        return MixtureRun(runs, run.mixture), losses, forecasts

    def forward(self, run: MixtureRun, xs: np.ndarray, *, count: int | None = None) -> tuple[MixtureRun, Forecasts]:
        count = len(xs) if count is None else count
        runs, others = forward_all(self.members, run.members, self._inputs_of(xs), count)
        mixture = self.copy_of(run.mixture)
        _, forecasts = self.mix(mixture, others, xs, None, count)
        return MixtureRun(runs, mixture), forecasts

    def _inputs_of(self, xs: np.ndarray) -> np.ndarray:
        """Return the inputs that members see."""
        return xs

    def reset(self, run: MixtureRun) -> MixtureRun:
        self.forget_rows(run.mixture)
        return MixtureRun(reset_all(self.members, run.members), run.mixture)


def join_forecasts(outputs: Sequence[Forecasts], rows: int, width: int) -> np.ndarray:
    """Join the forecasts that all members made at the same rows.

    Args:
        outputs: the forecasts of each member.
        rows: the number of rows.
        width: the number of values of one forecast.

    Returns:
        The forecasts (rows, forecasts, width).
    """
    if not outputs:
        return np.empty((rows, 0, width), np.float32)
    made = [np.asarray(part.made, np.float32).reshape(rows, -1, width) for part in outputs]
    return made[0] if len(made) == 1 else np.concatenate(made, axis=1)
