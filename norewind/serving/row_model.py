"""Predictions of rows while the run learns: from a copy of the run or, with keys, from the record of the row's key."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from norewind.core.trees import concatenate_trees, copy_arrays, floats_norm
from norewind.fleets.fleet import Fleet
from norewind.fleets.store import MAX_SAMPLES
from norewind.forecasting.explain import check_explainable, explain_training
from norewind.forecasting.forecasts import check_rows, forecast_next_rows, key_forecasts
from norewind.learners.learner import Forecasts, Learner
from norewind.scoring.class_score import ClassScore
from norewind.scoring.number_score import KeyedScore, NumberScore
from norewind.scoring.row_score import RowScore
from norewind.serving.forecast_requests import MAX_ROWS, ForecastRequest
from norewind.streams.stream import Samples
from norewind.streams.table.columns import CATEGORIES, OTHER_CATEGORY, category_of, nested_value
from norewind.streams.table.moment import Moment
from norewind.streams.table.row_stream import RowStream
from norewind.training.settings import Settings, SettingsError
from norewind.training.training_loop import Training
from norewind.training.windows import sample_count


class ServedState(NamedTuple):
    """Everything an answer depends on. It is replaced by a new state after learning.

    Attributes:
        rows: the number of rows so far.
        run: a copy of the run; None with keys.
        moment: what the next row of the stream depends on; None with keys.
        usual: the usual values and errors, with which rows are compared; None with keys, and for classes.
        until: with keys, the number of samples of the checkpoint to answer from; `MAX_SAMPLES` for the latest records.
    """

    rows: int
    run: Any = None
    moment: Moment | None = None
    usual: np.ndarray | None = None
    until: int = MAX_SAMPLES


def rows_so_far(training: Training) -> int:
    """Return the number of rows that were learned from or wait for their window."""
    windowed = training.windowed
    # Not from the tally, which is updated only after predictions are reported.
    return windowed.predicted - windowed.predicted_early + sample_count(windowed.partial_window)


class RowModel(ABC):
    """The answers of a run on rows.

    `publish` and `keep` are called in the learning thread, all other methods in the event loop.

    Args:
        training: the training of the run.
        settings: the settings of the run.
    """

    def __init__(self, training: Training, settings: Settings):
        assert isinstance(training.windowed.stream, RowStream)
        self.settings = settings
        self.training = training
        self.stream = training.windowed.stream
        self.score = training.score
        self.state = self.kept = self.latest()

    @abstractmethod
    def latest(self) -> ServedState:
        """Return the current state."""

    @abstractmethod
    def forward(self, state: ServedState, samples: Samples) -> Any:
        """Return the outputs of the model for samples, each as if it were the next one, without learning.

        Args:
            state: the state to answer from.
            samples: the samples of the stream; they need not be consecutive.
        """

    @abstractmethod
    def warm_up(self, rows: int) -> None:
        """Compile the functions for answers.

        Args:
            rows: the number of rows to answer at a time.
        """

    def publish(self) -> None:
        """Answer from the current state from now on."""
        self.state = self.latest()

    def keep(self, samples: int) -> None:
        """Remember the state of a checkpoint that was just written.

        Args:
            samples: the number of samples in the checkpoint.
        """
        self.kept = self.state

    def restore_kept(self) -> None:
        """Answer from the state that was remembered last."""
        self.state = self.kept

    def close(self) -> None:  # noqa: B027 (only keys have a file)
        """Close the files that answers need."""

    def answers(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the answer to each of the rows, as if it were the next one.

        Args:
            rows: rows as the stream reads them (see `RowStream.read_back`).

        Returns:
            Entries like the lines of predictions.jsonl.
        """
        state = self.state
        samples = self.stream.peek(rows, state.moment)
        outputs = self.forward(state, samples)
        entries = list(self.score.prediction_entries(state.rows + 1, samples, outputs))
        for place, entry in enumerate(entries):
            if "anomaly" in entry:
                entry.pop("unusual", None)
                entry.update(self._anomaly(place, samples, outputs, state))
            self._name_class(entry, rows[place])
            # They were numbered as consecutive rows.
            entry["sample"] -= place
            if "for" in entry:
                ahead = entry["for"]
                several = isinstance(ahead, dict)
                entry["for"] = {step: row - place for step, row in ahead.items()} if several else ahead - place
        return entries

    @abstractmethod
    def forecast(self, wanted: ForecastRequest) -> list[dict[str, Any]]:
        """Forecast the next rows. Called in the learning thread, between two chunks.

        Args:
            wanted: which rows to forecast.

        Returns:
            One entry per row, as `norewind forecast` prints them.

        Raises:
            SettingsError: the run cannot forecast this.
            StreamError: what is said to be known in advance does not fit the run.
        """

    def explain(self, lines: Sequence[dict[str, Any]], step: int | None) -> dict[str, Any]:
        """Explain the latest forecast. Called in the learning thread, between two chunks.

        Args:
            lines: the lines of metrics so far.
            step: how many rows ahead the forecast is; None for the nearest step.

        Raises:
            SettingsError: the run cannot be explained.
        """
        check_explainable(self.settings, step)
        return explain_training(self.training, lines, step)

    def _anomaly(self, place: int, samples: Samples, outputs: Forecasts, state: ServedState) -> dict[str, Any]:
        """Score one of the rows as if it were the next one."""
        assert isinstance(self.score, RowScore)
        one = slice(place, place + 1)
        row = Samples(samples.xs[one], samples.targets[one], scales=samples.scales[one], values=samples.values[one])
        forecast = Forecasts(*(part[one] for part in outputs))
        return next(self.score.anomaly_entries(row, forecast, state.usual))

    def _name_class(self, entry: dict[str, Any], row: dict[str, Any]) -> None:
        """Name a class that has not appeared before, as the stream would if it learned from this row."""
        known = self.stream.classes if isinstance(self.score, ClassScore) else None
        if known is not None and entry.get("target") == OTHER_CATEGORY and len(known) < CATEGORIES:
            entry["target"] = category_of(nested_value(row, self.stream.targets[0]))


class SeriesModel(RowModel):
    """The answers of a run on one series of rows.

    Args:
        training: the training of the run.
        settings: the settings of the run.
    """

    def __init__(self, training: Training, settings: Settings):
        super().__init__(training, settings)
        # Compile the functions for learning and metrics, so that the first row does not wait for it.
        widths = self.stream.width, len(self.stream.targets) * len(self.stream.steps)
        floats_norm(training.learner.carry(training.run))
        training.outputs_of(Samples(*(np.zeros((training.window, width), np.float32) for width in widths)))

    def latest(self) -> ServedState:
        # A copy, since the thread that learns changes the run in place.
        return ServedState(
            rows_so_far(self.training),
            copy_arrays(self.training.run_so_far()),
            self.stream.moment(),
            self.training.usual_so_far(),
        )

    def forward(self, state: ServedState, samples: Samples) -> Any:
        learner = self.training.learner
        assert isinstance(learner, Learner)
        return concatenate_trees([learner.forward(state.run, x[None])[1] for x in samples.xs])

    def forecast(self, wanted: ForecastRequest) -> list[dict[str, Any]]:
        if wanted.key is not None:
            raise SettingsError("this run has no keys: leave out key=.")
        check_rows(self.settings, wanted.rows)
        if (wanted.rows or 0) > MAX_ROWS:
            raise SettingsError(f"steps must be from 1 to {MAX_ROWS:,}.")
        return forecast_next_rows(self.settings, self.training, wanted.rows, wanted.known_future).entries

    def warm_up(self, rows: int) -> None:
        zeros = np.zeros((rows, self.stream.width), np.float32)
        outputs = self.forward(self.state, Samples(zeros, zeros))
        if isinstance(self.score, NumberScore):
            self.score.means_and_deviations(outputs.made)


class KeyedModel(RowModel):
    """The answers of a run with a model for every key. A key without a record is answered like a new one.

    Args:
        training: the training of the run, in its folder.
        settings: the settings of the run.
    """

    def __init__(self, training: Training, settings: Settings):
        assert training.folder
        assert isinstance(training.learner, Fleet)
        self.learner = training.learner
        self.records = self.learner.records(training.folder.path)
        super().__init__(training, settings)
        self.learner.warm_up(training.run)
        self.keep(self.state.rows)

    def latest(self) -> ServedState:
        self.records.publish()
        return ServedState(rows_so_far(self.training))

    def keep(self, samples: int) -> None:
        self.kept = ServedState(samples, until=samples)

    def forward(self, state: ServedState, samples: Samples) -> Any:
        assert samples.keys is not None
        return self.learner.forward(self.records.read(samples.keys, state.until), samples.xs)

    def forecast(self, wanted: ForecastRequest) -> list[dict[str, Any]]:
        rows, key, known_future = wanted
        if key is None:
            raise SettingsError("this run has a model for every key: name one (key=).")
        if known_future is not None:
            raise SettingsError("known_future: a run with keys knows no columns in advance.")
        check_rows(self.settings, rows)
        assert isinstance(self.score, KeyedScore)
        # A key is the JSON text of its value; in JSON lines it may also be a number, true or false.
        for name in (json.dumps(key, ensure_ascii=False).encode(), key.encode()):
            record = self.records.read([name])[0]
            if record["seen"]:
                rows = rows or self.settings.horizon
                return list(key_forecasts(self.learner, self.score, name, record, rows))
        raise SettingsError(f"there is no key {key!r} yet.")

    def close(self) -> None:
        self.records.close()

    def warm_up(self, rows: int) -> None:
        self.learner.forward(np.repeat(self.records.fresh, rows), np.zeros((rows, self.stream.layout.columns)))
