"""What a learner is: whatever predicts a sample and then learns from it."""

from abc import ABC, abstractmethod
from typing import Any

from norewind.checks import ModelError
from norewind.trees import Tree


class Learner(ABC):
    """Whatever predicts and then learns, sample by sample: the one interface of all learners.

    `online(estimator, optimizer)`, `counts`, `LeastSquares`, the mixtures and fleets
    implement it, and `fit`, the service, the forecasting models and `compare` use nothing
    else. To write one, subclass it (which gives you the defaults below) and run
    `norewind.testing.check_learner` on it.

    A learner has no state of its own. All that it has learned is in a *run*, a pytree of
    arrays, so that a run that is saved and restored goes on bit for bit. A learner may
    change the arrays of a run in place: **after `scan` or `reset`, only the run that comes
    out may be used**. (`norewind.trees.copied` makes a copy.)

    Attributes:
        horizon: how many rows ahead it forecasts at most. A row's targets are those that were to be forecast up to
            `horizon` rows before. 0 if targets belong to the row itself.
        window: the samples in one step; 0 if any number will do.
    """

    horizon: int = 0
    window: int = 1

    @abstractmethod
    def scan(
        self, run: Any, xs: Any, targets: Any, *, count: int | None = None, outputs: bool = False
    ) -> tuple[Any, Any]:
        """Predict and learn from each step of a chunk, in order.

        Args:
            run: where to go on from; used up.
            xs: inputs, one entry per step along the leading axis.
            targets: what comes with them, likewise. NaN is unknown, and nothing is learned from it.
            count: use only the first `count` steps; the results of the others are zeros.
            outputs: whether to return what was predicted, too.

        Returns:
            `(run, losses)`, with one loss per step, or with `outputs` `(run, (losses, outputs))`. Outputs were made
            before anything was learned from the targets. With a horizon they are a pair: the forecasts made at these
            rows, and those that had been made of them.
        """

    @abstractmethod
    def forward(self, run: Any, xs: Any, *, count: int | None = None) -> tuple[Any, Any]:
        """Predict each sample of a chunk, in order, without learning.

        The run that goes in stays as it is. The one that comes out has seen the samples, but
        shares what was learned: once one of the two learns, the other is used up.

        Returns:
            `(run, outputs)`, with outputs as those of `scan`. There is one input per sample, even if the learner
            takes windows.
        """

    def pending(self, run: Any) -> Any:
        """What is forecast of the next `horizon` rows, the nearest first; each by the nearest step that reaches it."""
        return None

    @abstractmethod
    def reset(self, run: Any) -> Any:
        """Begin a new sequence: the state is forgotten, and what was learned stays."""

    def carry(self, run: Any) -> Tree:
        """What stands in place of the past in a gradient estimate; its norm is among the metrics. Mostly nothing."""
        return ()

    def chunk(self, run: Any) -> int:
        """How many samples to give it at a time: enough to hide the cost of a call, few enough to stop soon."""
        return 1_000

    def for_keys(self, run: Any, window: int | None = None) -> Any:
        """How it is run for many keys, each with a run of its own: a `norewind.fleets.fleet.Engine`.

        Args:
            run: where every key starts from.
            window: for one model that all keys share, the samples that are looked at together.

        Raises:
            ModelError: it cannot be run for many keys.
        """
        kind = type(self).__name__
        takes = "online(...) or Ahead" if window else "online(...), Ahead without windows, or LeastSquares"
        raise ModelError(f"fleet{' with share' if window else ''}: it takes {takes}, not a {kind}.")

    def keep_in(self, folder: Any, samples: int) -> None:  # noqa: B027 (most learners keep nothing)
        """Keep what does not fit into a run, such as a million keys, in a run folder, as of this many samples."""

    def settle(self, samples: int) -> None:  # noqa: B027
        """Write what is kept in the folder, just before the checkpoint after this many samples."""
