"""The interface of learners for the rows of many keys."""

from abc import abstractmethod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from norewind.fleets.slots import KeyRecords
from norewind.learners.learner import BaseLearner
from norewind.streams.stream import Keyed, Samples


class KeyedOutputs(NamedTuple):
    """The outputs for raw rows of many keys, with one entry per row: `Forecasts`, and the rows.

    Attributes:
        made: the forecasts made at each row.
        due: the earlier forecasts of each row; with a horizon of 0, the same.
        samples: the rows, standardised by the past of their keys.
    """

    made: np.ndarray
    due: np.ndarray
    samples: Samples


class KeyForecasts(NamedTuple):
    """Forecasts of the next rows of one key, the nearest row first.

    Attributes:
        outputs: the outputs of the key's model, for standardised targets.
        mean: the mean of every target, as known when each row was forecast; NaN if no row had arrived at that time.
        deviation: the standard deviation of every target, likewise.
        newest: the newest value of every target.
        rows: the number of rows of the key so far.
    """

    outputs: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    newest: np.ndarray
    rows: int


class KeyedLearner(BaseLearner):
    """Abstract base class of learners with a run for every key: `fit` trains them, and `serve` and `forecast` use them.

    The run that `scan` takes and returns holds only what the keys share. The runs of the keys are kept in the learner
    itself and, once `keep_in` was called, in the run folder. There, each is a *record*.
    """

    @abstractmethod
    def scan(
        self, run: Any, xs: Keyed, targets: Any = None, *, count: int | None = None, outputs: bool = False
    ) -> tuple[Any, Any, Any]:
        """Learn from samples of any keys, in order; see `Learner.scan`.

        Args:
            run: the run to continue; it must not be used afterwards.
            xs: inputs with their keys.
            targets: their targets; None for raw rows, which contain them.
            count: use only the first `count` samples.
            outputs: whether the predictions are needed too.

        Returns:
            `(run, losses, outputs)`. Outputs are `Forecasts`; for raw rows, `KeyedOutputs`.
        """

    @abstractmethod
    def rehearse(self, run: Any) -> None:
        """Compile all programs needed for learning from raw rows, using a temporary key.

        Args:
            run: a run; it stays unchanged.
        """

    @abstractmethod
    def records(self, folder: Path) -> KeyRecords:
        """Open the records of all keys for reading, also while another thread learns.

        Args:
            folder: the run folder.
        """

    @abstractmethod
    def answer(self, records: np.ndarray, rows: np.ndarray) -> KeyedOutputs:
        """Return the outputs that `scan` would give for raw rows, without learning. The keys must not share a model.

        Args:
            records: the record of a key for each row.
            rows: the raw rows, each taken as the next one of its key.
        """

    @abstractmethod
    def upcoming(self, record: np.ndarray) -> KeyForecasts:
        """Return the forecasts of the next `horizon` rows of a key.

        Args:
            record: the record of the key, trained on raw rows.
        """
