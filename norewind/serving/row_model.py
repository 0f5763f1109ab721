"""Predictions of rows while the run learns: from a copy of the run or, with keys, from the record of the row's key."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from norewind.core.trees import concatenated, copied
from norewind.fleets.fleet import Fleet
from norewind.fleets.store import MAX_SAMPLES, Store
from norewind.scoring.class_score import ClassScore
from norewind.scoring.number_score import NumberScore
from norewind.streams.stream import Samples
from norewind.streams.table.columns import CATEGORIES, OTHER_CATEGORY, at, category_of
from norewind.streams.table.row_stream import RowStream
from norewind.streams.table.scaling import SeriesStatistics
from norewind.training.training_loop import Training, carry_norm
from norewind.training.windows import count_of


class State(NamedTuple):
    """Everything an answer depends on. It is replaced by a new state after learning.

    Attributes:
        rows: the number of rows so far.
        run: a copy of the run; None for a fleet.
        moment: the statistics of the stream; None for a fleet.
        until: for a fleet, the number of samples of the checkpoint to answer from; `MAX_SAMPLES` for the current state.
    """

    rows: int
    run: Any = None
    moment: SeriesStatistics | None = None
    until: int = MAX_SAMPLES


def rows_so_far(training: Training) -> int:
    """Return the number of rows that were learned from or wait for their window."""
    windowed = training.windowed
    # Not from the tally, which is updated only after predictions are reported.
    return windowed.predicted - windowed.predicted_early + count_of(windowed.partial_window)


class RowModel:
    """The answers of a run on rows.

    `publish` and `keep` are called in the learning thread, all other methods in the event loop.

    Args:
        training: the training of the run.
    """

    def __init__(self, training: Training):
        assert isinstance(training.windowed.stream, RowStream)
        self.training, self.stream, self.score = training, training.windowed.stream, training.score
        self.state = self.kept = self.newest()
        self.rehearse()

    def rehearse(self) -> None:
        """Compile the functions for learning and metrics, so that the first row does not wait for it."""
        training, widths = self.training, (self.stream.width, len(self.stream.targets) * len(self.stream.steps))
        carry_norm(training.learner.carry(training.run))
        training.outputs_of(Samples(*(np.zeros((training.window, width), np.float32) for width in widths)))

    def warm_up(self, rows: int) -> None:
        """Compile the functions for answers.

        Args:
            rows: the number of rows to answer at a time.
        """
        zeros = np.zeros((rows, self.stream.width), np.float32)
        outputs = self.outputs(self.state, Samples(zeros, zeros))
        if isinstance(self.score, NumberScore):
            self.score.means_and_deviations(outputs[0] if self.stream.horizon else outputs)

    def newest(self) -> State:
        """Return the current state."""
        # A copy, since the thread that learns changes the run in place.
        return State(rows_so_far(self.training), copied(self.training.run_so_far()), self.stream.moment())

    def outputs(self, state: State, samples: Samples) -> Any:
        """Return the outputs of the model for samples, each as if it were the next one.

        Args:
            state: the state to answer from.
            samples: standardised samples; they need not be consecutive.
        """
        learner = self.training.learner
        made = [learner.forward(state.run, samples.xs[place : place + 1])[1] for place in range(len(samples.xs))]
        return concatenated(made)

    def publish(self) -> None:
        """Answer from the current state from now on."""
        self.state = self.newest()

    def keep(self, samples: int) -> None:
        """Remember the state of a checkpoint that was just written.

        Args:
            samples: the number of samples in the checkpoint.
        """
        self.kept = self.state

    def go_back(self) -> None:
        """Answer from the state that was remembered last."""
        self.state = self.kept

    def close(self) -> None:
        """Release files."""

    def answers(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the answer to each of the rows, as if it were the next one.

        Args:
            rows: rows as the stream reads them (see `RowStream.written`).

        Returns:
            Entries like the lines of predictions.jsonl.
        """
        state = self.state
        samples = self.stream.peek(rows, state.moment)
        entries = list(self.score.prediction_entries(state.rows + 1, samples, self.outputs(state, samples)))
        for place, entry in enumerate(entries):
            self._name_class(entry, rows[place])
            # They were numbered as consecutive rows.
            entry["sample"] -= place
            if "for" in entry:
                ahead = entry["for"]
                several = isinstance(ahead, dict)
                entry["for"] = {step: row - place for step, row in ahead.items()} if several else ahead - place
        return entries

    def _name_class(self, entry: dict[str, Any], row: dict[str, Any]) -> None:
        """Name a class that has not appeared before, as the stream would if it learned from this row."""
        known = self.stream.classes if isinstance(self.score, ClassScore) else None
        if known is not None and entry.get("target") == OTHER_CATEGORY and len(known) < CATEGORIES:
            entry["target"] = category_of(at(row, self.stream.targets[0]))


class FleetModel(RowModel):
    """The answers of a run with a model for every key.

    The records of keys change in place while the fleet learns. Those about to change are copied first
    (`Slots.seen`), so that rows are answered from the state that was published last. Keys that are not resident
    are read from disk, and a key without a record is answered like a new one.

    Args:
        training: the training of the run.
    """

    def __init__(self, training: Training):
        assert isinstance(training.learner, Fleet)
        assert training.folder
        self.fleet, self.slots = training.learner, training.learner.slots
        self.store = Store(training.folder.path, self.slots.layout, write=False)
        self.slots.watched = True
        super().__init__(training)
        self.keep(self.state.rows)

    def rehearse(self) -> None:
        self.fleet.rehearse(self.training.run)

    def warm_up(self, rows: int) -> None:
        self.fleet.answer(np.repeat(self.slots.fresh, rows), np.zeros((rows, self.stream.layout.columns)))

    def newest(self) -> State:
        self.slots.show()
        return State(rows_so_far(self.training))

    def keep(self, samples: int) -> None:
        self.kept = State(samples, until=samples)

    def close(self) -> None:
        self.store.close()

    def outputs(self, state: State, samples: Samples) -> Any:
        assert samples.keys is not None
        return self.fleet.answer(np.concatenate([self._record(key, state.until) for key in samples.keys]), samples.xs)

    def _record(self, key: bytes, until: int) -> np.ndarray:
        record = self.slots.seen(key) if until == MAX_SAMPLES else None
        if record is not None:
            return record
        return self.slots.record(key, self.store.read(key, until))
