"""The base of all scores: their interface, probabilities from logits, and the steps ahead that are forecast."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax
import msgspec
import numpy as np
from msgspec.structs import asdict

from norewind.core.losses import BIT
from norewind.fleets.fleet import KeyedOutputs
from norewind.learners.learner import Forecasts
from norewind.scoring.drift import find_drift
from norewind.scoring.metrics import ANY_FORECASTS
from norewind.streams.kafka.messages import message_place
from norewind.streams.stream import Samples

# The outputs of learners of rows, and those of any learner: learners of symbols return logits.
RowOutputs = Forecasts | KeyedOutputs
Outputs = RowOutputs | np.ndarray
# The number of latest rows of a table that are kept and drawn.
RECENT_ROWS = 200


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """Convert logits to log-probabilities of symbols or classes, along the last axis."""
    logits = np.asarray(logits, np.float64)
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def bits_of(logits: np.ndarray) -> np.ndarray:
    """Convert logits to −log₂ of the probability of every symbol."""
    return (0.0 - log_probabilities(logits)) / BIT  # never -0.0


class ScoreState(msgspec.Struct, forbid_unknown_fields=True):
    """The part of a score that checkpoints save, as JSON and arrays. The base class has nothing to save.

    Attributes:
        sums: the names of arrays that hold counts, or sums of non-negative numbers.
        latest: the names of arrays that hold the latest rows, at most `RECENT_ROWS`.
    """

    sums: ClassVar[tuple[str, ...]] = ()
    latest: ClassVar[tuple[str, ...]] = ()

    def fits(self, new: Any) -> bool:
        """Return whether this state, read from a checkpoint, can be that of a score of a stream.

        The types of its fields have been checked; this checks the sizes and values of its arrays.

        Args:
            new: the state of a new score of the stream, of the same class.
        """
        return all(
            self._array_fits(name, getattr(self, name), part)
            for name, part in asdict(new).items()
            if isinstance(part, np.ndarray)
        )

    def _array_fits(self, name: str, saved: np.ndarray, new: np.ndarray) -> bool:
        if name in self.latest:
            return saved.dtype == new.dtype and saved.shape[1:] == new.shape[1:] and len(saved) <= RECENT_ROWS
        in_range = name not in self.sums or bool(np.all(np.isfinite(saved) & (saved >= 0)))
        return saved.dtype == new.dtype and saved.shape == new.shape and in_range


class Score:
    """The interface of scores. This class knows only the loss; subclasses know the meaning of the samples.

    Attributes:
        needs_outputs: whether `add` has to be given the outputs of the learner.
        unit: the unit of losses after they are multiplied by `scale`.
        scale: the factor from the learner's losses to `unit`.
        simple_forecasts: descriptions of the simple forecasts to compare with, by their entries in a line of metrics.
        state: the part of the score that checkpoints save.
    """

    needs_outputs = False
    unit = "loss"
    scale = 1.0
    simple_forecasts = ANY_FORECASTS

    def __init__(self):
        self.state = ScoreState()

    def add(self, samples: Samples, outputs: Outputs | None = None) -> int:
        """Add samples to the current interval.

        Args:
            samples: consecutive samples.
            outputs: the outputs of the learner, made before it learned from each of them.

        Returns:
            The number of samples with a known target.
        """
        return len(jax.tree.leaves(samples.xs)[0])

    def usual_after(self, samples: Samples | None, outputs: Outputs | None) -> np.ndarray | None:
        """Return the usual values and errors after more samples; None for anything but the rows of one series.

        Args:
            samples: consecutive samples that come next; None for none.
            outputs: the outputs of the learner, made before it learned from each of them.
        """
        return None

    def note_usual(self, samples: Samples, outputs: Outputs) -> None:
        """Add the next samples to the usual values and errors. Each is added once, in order.

        Args:
            samples: consecutive samples.
            outputs: the outputs of the learner, made before it learned from each of them.
        """

    def end_interval(self) -> dict[str, Any]:
        """Return the `baseline` and other entries of the line of metrics that ends here. Starts a new interval."""
        return {}

    def prediction_entries(self, first: int, samples: Samples, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """Express predictions in the stream's own symbols or units.

        Args:
            first: the number of the first sample.
            samples: consecutive samples.
            outputs: the outputs of the learner, made before it learned from each of them.

        Returns:
            Entries of predictions.jsonl: usually one per sample, with the prediction, the target, and its surprise.
        """
        raise ValueError("predictions need a score that can express them, such as SymbolScore or RowScore.")

    def closing_text(self, lines: Sequence[dict[str, Any]], folder: Path) -> str:
        """Summarise a run as text, for the end of training.

        Args:
            lines: the lines of metrics.
            folder: the run folder.
        """
        return ""


class StepScore(Score):
    """Scores forecasts of rows. A horizon of 0 means that the targets belong to the same row.

    Args:
        steps: how many rows ahead each forecast is, in increasing order.
    """

    needs_outputs = True

    def __init__(self, steps: Sequence[int]):
        super().__init__()
        self.steps, self.horizon = tuple(steps), steps[-1]
        # How many rows ago the latest value arrived that a simple forecast may use, by step.
        self.delays = np.maximum(1, self.steps)

    def add(self, samples: Samples, outputs: Outputs | None = None) -> int:
        return int(np.sum(~np.isnan(samples.targets).all(axis=-1)))

    def find_drift(self, samples: Samples, errors: np.ndarray, columns: Sequence[str]) -> None:
        """Look for drift, and note the alarms and the time of the latest row in the state.

        Args:
            samples: consecutive rows.
            errors: the size of the errors of the nearest forecasts (rows, columns); NaN means unknown.
            columns: their names.
        """
        state: Any = self.state
        for i, column, since in find_drift(state.drift, errors, state.rows, self.steps[0], state.block):
            time = "" if samples.times is None else samples.times[i]
            state.alarms = [*state.alarms, (state.rows + i + 1, time, columns[column], since + 1)]
        if samples.times is not None and len(samples.times):
            state.time = samples.times[-1]

    def by_step(self, values: Sequence[Any]) -> Any:
        """Arrange values by the number of rows ahead; a single value is returned as it is.

        Args:
            values: one value per step.
        """
        return values[0] if len(self.steps) == 1 else dict(zip(map(str, self.steps), values, strict=True))

    def first_entries(self, number: int, samples: Samples, i: int) -> dict[str, Any]:
        """Return the first entries of a prediction: which row it was made at, and for which rows.

        Args:
            number: the number of the row.
            samples: consecutive rows.
            i: the index of the row among them.
        """
        entry = {"sample": number} | place_of(samples, i)
        return entry | {"for": self.by_step([number + step for step in self.steps])} if self.horizon else entry


def place_of(samples: Samples, i: int) -> dict[str, Any]:
    """Return the line, or the partition and offset, of a row, and the columns copied from it.

    Args:
        samples: consecutive rows.
        i: the index of the row among them.
    """
    place: dict[str, Any] = {}
    if samples.lines is not None:
        line = int(samples.lines[i])
        place = {"line": line} if line > 0 else dict(zip(("partition", "offset"), message_place(line), strict=True))
    if samples.copied is not None:
        # Python writes and reads numbers that are not finite, but they are not valid JSON.
        place["copied"] = json.loads(samples.copied[i], parse_constant=lambda _: None)
    return place
