"""The interface of all learners: predict a sample, then learn from it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from jax.tree_util import register_pytree_node_class

from norewind.core.checks import ModelError
from norewind.core.trees import Tree
from norewind.learners.keyed.keyed_program import KeyedProgram
from norewind.storage.checkpoint import Writer

if TYPE_CHECKING:
    from norewind.learners.explanation import Explanation, ForecastParts


class LearnerFolder(Protocol):
    """What a learner that keeps data outside its run needs of the run folder (`norewind.training.folder.RunFolder`).

    Attributes:
        path: the folder.
        writer: writes its checkpoints.
    """

    path: Path
    writer: Writer

    @property
    def oldest(self) -> int:
        """The number of samples of the oldest checkpoint."""
        ...

    def at_end(self, do: Callable[[], None]) -> None:
        """Register a function to call when the folder is left.

        Args:
            do: the function.
        """

    def before_checkpoints(self, do: Callable[[int], None]) -> None:
        """Register a function to call with the number of samples before each checkpoint is written.

        Args:
            do: the function.
        """


@register_pytree_node_class
class Forecasts:
    """The outputs of a `RowLearner`, with one entry per row. It can be unpacked: `made, due = forecasts`.

    Args:
        made: the forecasts made at each row, for all steps.
        due: the earlier forecasts of each row. With a horizon of 0, the same array as `made`; empty for a member of
            a mixture, which keeps them itself.
        weights: of a mixture, the mean weight of each member in the forecasts made at each row (rows, members); they
            add up to 1. Otherwise None.
    """

    __slots__ = ("due", "made", "weights")

    def __init__(self, made: Any, due: Any, weights: Any = None):
        self.made, self.due, self.weights = made, due, weights

    def __iter__(self) -> Iterator[Any]:
        return iter((self.made, self.due))

    def __getitem__(self, place: int) -> Any:
        return (self.made, self.due)[place]

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        return (self.made, self.due, self.weights), None

    @classmethod
    def tree_unflatten(cls, _: None, parts: Sequence[Any]) -> "Forecasts":
        return cls(*parts)


def empty_forecasts(horizon: int, shape: tuple[int, ...]) -> Forecasts:
    """Allocate forecasts.

    Args:
        horizon: with a horizon of 0, forecasts are due when they are made.
        shape: the shape of each of the two arrays.
    """
    made = np.zeros(shape, np.float32)
    return Forecasts(made, np.zeros(shape, np.float32) if horizon else made)


class BaseLearner(ABC):
    """Everything that `fit` needs to train a `Learner`, or a `norewind.fleets.Fleet` on the rows of many keys.

    What was learned is in a *run*, a pytree of arrays. A learner may change the arrays of a run in place: **after
    `scan`, use only the run that was returned**. (`norewind.core.trees.copy_arrays` makes a copy.)

    Attributes:
        steps: for rows, how many rows ahead it forecasts, in increasing order; (0,) if targets belong to the row
            itself. Empty for anything but rows.
        window: the number of samples in one step; 0 if any number works.
        member_names: the names of the forecasts that it mixes, if it is a mixture.
    """

    steps: tuple[int, ...] = ()
    window: int = 1
    member_names: tuple[str, ...] = ()

    @property
    def horizon(self) -> int:
        """The largest of the steps. The targets of a row are the values that were to be forecast that much earlier."""
        return self.steps[-1] if self.steps else 0

    @abstractmethod
    def scan(
        self, run: Tree, xs: Tree, targets: Tree, *, count: int | None = None, outputs: bool = False
    ) -> tuple[Tree, Any, Tree]:
        """Predict and learn from each step of a chunk, in order.

        Args:
            run: the run to continue; it must not be used afterwards.
            xs: inputs, one entry per step along the leading axis.
            targets: their targets, also one entry per step. NaN means unknown; nothing is learned from it.
            count: use only the first `count` steps; the results of the others are zeros.
            outputs: whether the predictions are needed too. Otherwise they may be None, if they would cost time.

        Returns:
            `(run, losses, outputs)`, with one loss per step. Outputs are made before anything is learned from the
            targets. Those of learners of rows are `Forecasts`.
        """

    def carry(self, run: Tree) -> Tree:
        """Return the part of a run that summarises the past in a gradient estimate; most learners have none.

        Its norm is reported in the metrics.

        Args:
            run: the run.
        """
        return ()

    def report(self, run: Tree) -> dict[str, float]:
        """Return numbers that the gradient estimate reports about itself (`Estimator.report`); most learners have none.

        They are written to the metrics.

        Args:
            run: the run.
        """
        return {}

    def explain(self, run: Tree) -> "Explanation | None":
        """Explain the latest forecasts: the weights of a mixture's members, and the parts that add up to a forecast.

        Args:
            run: the run, which stays unchanged.

        Returns:
            The explanation; None if this learner has none to give, or has not seen a row yet.
        """
        return None

    def forecast_parts(self, run: Tree) -> "list[ForecastParts]":
        """Return the parts of the latest forecasts of a member of a mixture; empty if they cannot be split up.

        Args:
            run: the run, which stays unchanged.
        """
        return []

    def chunk_size(self, run: Tree) -> int:
        """Return a good chunk size: large enough to hide the cost of a call, small enough to stop promptly.

        Args:
            run: a run, of which only the size matters.
        """
        return 1_000

    def keep_in(self, folder: LearnerFolder, samples: int) -> None:  # noqa: B027 (most learners keep nothing)
        """Prepare to train in a run folder, where data outside the run, such as the keys of a fleet, may be stored.

        Args:
            folder: the run folder.
            samples: the number of samples at the checkpoint to continue from.
        """


class Learner(BaseLearner):
    """Abstract base class of the learners of one stream: predict, then learn, sample by sample.

    `online(estimator, optimizer)`, `Counts`, `LeastSquares` and the mixtures implement it. The forecasting models and
    `compare` rely on nothing else. To write your own, subclass it (which gives you the defaults below) and run
    `norewind.testing.check_learner` on it.

    A learner holds no state. Everything it has learned is in its run, so a run that is saved and restored
    continues bit for bit. A learner may change the arrays of a run in place: **after `scan` or `reset`, use only the
    run that was returned**.
    """

    @abstractmethod
    def forward(self, run: Tree, xs: Tree, *, count: int | None = None) -> tuple[Tree, Tree]:
        """Predict each sample of a chunk, in order, without learning.

        The run that is passed in stays unchanged. The one that is returned has seen the samples, and serves only to
        predict more: it cannot learn, and must not be used once the first run has learned.

        Args:
            run: the run to predict with.
            xs: inputs, one entry per sample along the leading axis, even if the learner takes windows.
            count: use only the first `count` samples; the results of the others are zeros.

        Returns:
            `(run, outputs)`, with the same kind of outputs as those of `scan`.
        """

    @abstractmethod
    def reset(self, run: Tree) -> Tree:
        """Begin a new sequence: forget the state, but keep everything learned.

        Args:
            run: the run to reset; it must not be used afterwards.

        Returns:
            The run at the start of a sequence.
        """

    def for_keys(self, run: Tree, *, share: bool = False) -> KeyedProgram:
        """Return a program that runs this learner for many keys, each with its own run.

        Args:
            run: the run that every key starts from.
            share: whether all keys share one model.

        Raises:
            ModelError: this learner cannot be run for many keys.
        """
        kind = type(self).__name__
        if share:
            raise ModelError(f"{kind} cannot be run for many keys that share one model. Use a network without windows.")
        raise ModelError(f"{kind} cannot be run for many keys. Use a network without windows, or least squares.")


class RowLearner(Learner):
    """Abstract base class of learners of rows, which forecast each of `steps`. Their outputs are `Forecasts`."""

    @abstractmethod
    def upcoming(self, run: Tree) -> np.ndarray:
        """Return the forecasts of the next `horizon` rows, the nearest row first.

        Args:
            run: the run, which stays unchanged.

        Returns:
            One forecast per row, made by the smallest step that reaches it.
        """

    def replan(self, run: Tree, x: np.ndarray) -> tuple[Tree, np.ndarray]:
        """Make the forecasts of the latest row again, as if something else had been known in advance at that time.

        Args:
            run: the run, which stays unchanged.
            x: the inputs of the latest row, of which only the outlook differs; see `norewind.learners.outlook`.

        Returns:
            A run whose `upcoming` forecasts are the new ones, and those made at the latest row, for all steps. It
            serves only to forecast.

        Raises:
            ModelError: this learner knows nothing in advance.
        """
        raise ModelError(f"{type(self).__name__} knows nothing in advance.")


class WrappingLearner(RowLearner):
    """Abstract base class of learners around another learner, to which they leave what they do not change.

    Attributes:
        learner: the other learner.
    """

    learner: Any

    def inner_run(self, run: Tree) -> Tree:
        """Return the run of the other learner.

        Args:
            run: the run of this learner.
        """
        return run.run

    def carry(self, run: Tree) -> Tree:
        return self.learner.carry(self.inner_run(run))

    def report(self, run: Tree) -> dict[str, float]:
        return self.learner.report(self.inner_run(run))

    def explain(self, run: Tree) -> "Explanation | None":
        return self.learner.explain(self.inner_run(run))

    def chunk_size(self, run: Tree) -> int:
        return self.learner.chunk_size(self.inner_run(run))
