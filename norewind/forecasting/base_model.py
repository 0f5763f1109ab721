"""The base of the models for tables: a run in memory that learns from rows, one at a time or many."""

import json
import os
import warnings
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from norewind.engines.cache import keep_compiled
from norewind.forecasting.explain import check_explainable, explain_training
from norewind.forecasting.frames import FrameStyle, as_timed_row, read_if_packed, style_of
from norewind.forecasting.uninterruptible_lock import UninterruptibleLock, locked, uninterrupted
from norewind.learners.learner import Forecasts, Learner
from norewind.plotting import tables
from norewind.scoring.score import Score
from norewind.storage.checkpoint import checkpoints
from norewind.storage.files import write_atomically
from norewind.streams import RowStream, Samples, StreamError, restart_position
from norewind.streams.stream import BadRow
from norewind.streams.table.formats import DICT_FORMAT
from norewind.streams.table.parsing import FIRST_ROWS
from norewind.streams.table.python_rows import PythonRows, Row, iterate_rows, joined_with_targets
from norewind.training import registry
from norewind.training.build import build, in_precision
from norewind.training.folder import CHECKPOINTS, RunFolder, SavedRun
from norewind.training.hooks import Hooks, Intervals
from norewind.training.log import METRICS, read_log
from norewind.training.notebook import live_plot
from norewind.training.open_stream import OpenedStream, open_stream
from norewind.training.settings import BY_SUFFIX, Settings, SettingsError
from norewind.training.train_folder import columns_of, describe_steps
from norewind.training.training_loop import Training
from norewind.training.windows import WindowedStream
from norewind.wording import counted, first_few

# The number of rows from which the columns can be determined when a prediction is requested.
MIN_ROWS_TO_PREDICT = 20
# The file in a run folder that holds the name of the model's class, and the original labels of a classifier.
MODEL_FILE = "model.json"


class ForecastingModel:
    """The base class of the models: a stream of rows, its learner and its run, with the settings of the command line.

    Several threads may use a model; they wait for each other. Ctrl-C never leaves a model in the middle of a row or of
    `fit`.

    The first rows determine which columns are used. They are therefore held back until there
    are enough of them, or until a prediction is requested.

    Args:
        settings: the settings of the run.
        saved: the checkpoint to continue from; None for a new run.
        home: the folder that the run is loaded from; None if there is none.

    Attributes:
        settings: the settings of the run.
        labels: for a classifier, the original labels of the classes, by name.
        training: the run in training; None while the first rows are held back.
        style: the kind of data frame that the latest `fit` was given; None for anything else.
    """

    def __init__(self, settings: Settings, saved: SavedRun | None = None, home: Path | None = None):
        keep_compiled()
        self._lock = UninterruptibleLock()
        self.settings = settings
        self.labels: dict[str, Any] = {}
        self.training: Training | None = None
        self.style: FrameStyle | None = None
        # The folder that the run was loaded from or saved to.
        self._home = home
        # The first rows, while they are held back.
        self._first_rows: list[Row] = []
        self._metric_lines: list[dict[str, Any]] = []
        if saved and home:
            # Without lines after the checkpoint, such as that of the unfinished interval.
            self._metric_lines = read_log(home / METRICS, saved.entries.get("logs", {}).get(METRICS, 0))
        # The number of lines of metrics in the folder.
        self._written_lines = len(self._metric_lines)
        if saved:
            self._continue(saved)

    @in_precision
    def _continue(self, saved: SavedRun) -> None:
        """Continue with single rows from a checkpoint."""
        opened = open_stream(self.settings, saved.entries["position"]["stream"], source=PythonRows())
        self.training = self._training(opened, saved, Hooks(metrics=self._metric_lines.append))

    def _training(
        self, opened: OpenedStream, saved: SavedRun | None, hooks: Hooks, *, stop_if_diverged: bool = False
    ) -> Training:
        settings = replace(self.settings, source="", format=DICT_FORMAT, inputs=(), targets=(), copy=())
        learner, run, window = _cached_build(settings, opened.shape)
        intervals = Intervals(metrics_every=self.settings.metrics_every, checkpoint_every=None)
        windowed = WindowedStream(opened.stream, window, saved)
        return Training(
            windowed,
            learner,
            run,
            saved,
            score=opened.score,
            intervals=intervals,
            stop_if_diverged=stop_if_diverged,
            hooks=hooks,
        )

    @uninterrupted
    def _saved(self) -> SavedRun | None:
        return self.training.snapshot() if self.training else None

    @uninterrupted
    @in_precision
    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and copy. A copy is a separate run: the folder belongs to the original."""
        return {**self.__dict__, "training": None, "_home": None, "saved": self._saved()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.pop("saved")
        self.__dict__.update(deepcopy(state))
        if saved:
            self._continue(saved)

    @locked
    @in_precision
    def learn_one(self, row: Any) -> None:
        """Learn from one more row.

        Args:
            row: a dict by column, a row of a data frame, or a vector.

        Raises:
            StreamError: the row is bad; it is discarded.
            SettingsError: the method learns from windows of several rows.
        """
        row, method = as_timed_row(row, self.training, self.style), self.settings.method
        if method != registry.AUTO and (window := registry.parse_method(method).window) > 1:
            why = f"the method {method} learns from windows of {window} rows"
            raise SettingsError(f"learn_one: {why}. Use fit, or a method without windows.")
        if self.training is None:
            rows = [*self._first_rows, row]
            if len(rows) < (1 if self.settings.inputs and self.settings.targets else FIRST_ROWS):
                self._first_rows = rows
            else:
                self._open(rows)
            self._note_row(row)
        else:
            with self._lock:
                self.training.learn_row(row)
                self._note_row(row)

    def _open(self, rows: list[Row] | None = None, *, min_rows: int = 1) -> Training | None:
        """Determine the columns from the first rows, and learn from these rows.

        Args:
            rows: the first rows; by default those that were held back.
            min_rows: do so only if there are at least this many rows.

        Returns:
            The run in training; None if there are not enough rows.

        Raises:
            StreamError: a row is bad.
            SettingsError: the settings do not fit the columns.
        """
        rows = self._first_rows if rows is None else rows
        if self.training is None and len(rows) >= min_rows:
            lines: list[dict[str, Any]] = []
            try:
                opened = open_stream(self.settings, None, source=PythonRows(rows))
                training = self._training(opened, None, Hooks(metrics=lines.append))
            except (StreamError, SettingsError):
                self._first_rows = self._first_rows[: len(rows) - 1]  # only the latest row is rejected
                raise
            problem = None
            for row in rows:
                try:
                    training.learn_row(row)
                except StreamError as error:
                    problem = problem or error
            with self._lock:
                self.training, self._metric_lines, self._first_rows = training, lines, []
            if problem:
                raise problem
        return self.training

    @property
    @uninterrupted
    @in_precision
    def lines(self) -> list[dict[str, Any]]:
        """The lines of metrics so far, up to date."""
        if self.training:
            self.training.update_metrics()
        return self._metric_lines

    @property
    def samples(self) -> int:
        """The number of rows that the model has learned from."""
        return (self.training.samples if self.training else 0) + len(self._first_rows)

    @uninterrupted
    @in_precision
    def _predict_at(self, row: Any) -> tuple[Score, Samples, Forecasts] | None:
        """Predict at a row, as if it were the next one, without learning from it.

        Args:
            row: a dict by column, a row of a data frame, or a vector.

        Returns:
            The score, the row as a sample, and the outputs of the learner; None if there are too few rows so far.

        Raises:
            StreamError: the row is bad.
        """
        training = self._open(min_rows=MIN_ROWS_TO_PREDICT)
        row = as_timed_row(row, training, self.style)
        if training is None:
            return None
        try:
            samples = training.windowed.rows.peek([row])
        except BadRow as problem:
            raise StreamError(f"the row is bad: {problem}.") from None
        assert isinstance(training.learner, Learner)
        return training.score, samples, training.learner.forward(training.run_so_far(), samples.xs)[1]

    @locked
    @in_precision
    def fit(self, data: Any, y: Any = None, *, hooks: Hooks = Hooks()) -> Self:  # noqa: B008 (frozen)
        """Learn from many rows. A second call continues with more rows. If it fails, the model is unchanged.

        Args:
            data: a pandas or Polars data frame or series, an array, an iterable of rows, or the path of a file.
            y: the targets of the rows, if `data` does not hold them: a series, an array or a data frame, row by row.
            hooks: callbacks of the training loop.

        Returns:
            The model itself.

        Raises:
            StreamError: the data or one of the rows cannot be read.
            SettingsError: the settings do not fit the data.
        """
        data = read_if_packed(data)
        is_file = isinstance(data, str | os.PathLike)
        if is_file and y is not None:
            raise StreamError("fit: a file holds its own targets. Leave out y, or pass rows.")
        rows = None if is_file else map(self._note_row, self._rows_of(data, y))
        if self._first_rows:
            self._open()
        before, labels = self.settings, dict(self.labels)
        saved, given, learned = self._saved(), None, self.samples
        position = saved.entries["position"]["stream"] if saved else None
        if rows is None:
            settings = self._file_settings(os.fspath(data))
            position = position and restart_position(position)
        else:
            settings, given = before, PythonRows(rows)
            if not given.peek():
                return self
        opened, lines = open_stream(settings, position, source=given), []
        if isinstance(opened.stream, RowStream) and opened.stream.warning:
            warnings.warn(opened.stream.warning, stacklevel=4)  # of the caller of fit
        with opened.stream, live_plot(hooks, opened.score.unit) as hooks:
            try:
                self.settings = settings
                training = self._training(
                    opened, saved, hooks.adding(metrics=lines.append), stop_if_diverged=settings.stop_if_diverged
                )
                training.train_until()
                if not hooks.should_stop() and (line := training.unfinished_line()):
                    hooks.metrics(line)
                with self._lock:
                    self._metric_lines += lines
                    self._continue(training.snapshot())
                    labels = self.labels
                    self.style = None if is_file else style_of(data, self.samples, self.samples - learned)
            except BaseException:
                self.settings, self.labels = before, labels
                raise
        return self

    def _rows_of(self, data: Any, y: Any) -> Iterator[Row]:
        """Iterate over rows, each joined with its targets if they are given separately."""
        if y is None:
            return iterate_rows(data)
        targets = self.settings.targets
        if not targets:
            raise StreamError('fit: y needs the name of its column: name the target of the model, as in targets="y".')
        return joined_with_targets(iterate_rows(data), iterate_rows(y, index=False), targets)

    def _file_settings(self, path: str) -> Settings:
        """Return the settings to read a file with."""
        settings = replace(self.settings, source=path, format="auto", final=True).with_format()
        if not settings.has_rows:
            raise SettingsError(f"{path}: pass rows, or a file whose name ends in {' or '.join(BY_SUFFIX)}.")
        if self.training and settings.kind != self.settings.kind:
            kinds = f"the model has learned from {self.settings.kind}, but this file is {settings.kind}"
            raise SettingsError(f"{path}: {kinds}. Read it into a data frame and pass that instead.")
        return settings

    @uninterrupted
    @in_precision
    def save(self, folder: str | Path) -> None:
        """Save the model as a run folder, which `norewind.load` and the command line can open.

        Args:
            folder: a new folder, or the one that this model was loaded from or saved to before.

        Raises:
            SettingsError: there is nothing to save yet, or the folder holds another run or a later state.
        """
        training = self._open()
        if training is None:
            raise SettingsError("there is nothing to save yet: call fit or learn_one first.")
        path = Path(folder)
        is_home = path.resolve() == self._home
        if not is_home and checkpoints(path / CHECKPOINTS):
            remedy = "Choose another folder, remove this one, or continue its run: norewind.load"
            raise SettingsError(f"{path} already holds a run other than this model. {remedy}({str(path)!r}).")
        with RunFolder(path, keep=self.settings.keep, mode="resume" if is_home else "new") as run_folder:
            if run_folder.entries.get("samples", 0) > self.samples:
                raise SettingsError(f"{path} holds a later state of this run. Load it, or choose another folder.")
            run_folder.begin(self.settings, columns_of(training.windowed.rows))
            # Before the checkpoint, which then completes the model: without one, the folder holds none.
            about = {"model": type(self).__name__} | ({"labels": self.labels} if self.labels else {})
            write_atomically(path / MODEL_FILE, json.dumps(about).encode())
            log = run_folder.log(METRICS)
            log.write(self.lines[self._written_lines if is_home else 0 :])
            run_folder.save(self.samples, training.run, training.entries())
            run_folder.writer.wait()
            if line := training.unfinished_line():
                log.write([line])
        self._home, self._written_lines = path.resolve(), len(self.lines)

    @uninterrupted
    @in_precision
    def explain(self, step: int | None = None) -> dict[str, Any]:
        """Explain the model: its main members, the parts of its latest forecast, and what has changed.

        Args:
            step: the step of the forecast to explain, in rows ahead; by default the nearest.

        Returns:
            The explanation, as `norewind explain --format json` prints it; see `norewind.forecasting.explain`.

        Raises:
            SettingsError: the model has not learned from any row yet, or does not forecast this step.
        """
        check_explainable(self.settings, step)
        if (training := self._open()) is None:
            raise SettingsError("there is nothing to explain yet: call fit or learn_one first.")
        last = training.unfinished_line()
        return explain_training(training, [*self.lines, *([last] if last else [])], step)

    def _note_row(self, row: Row) -> Row:
        """Note a row that is learned from. Returns it."""
        return row

    def __repr__(self) -> str:
        title, facts = self._facts()
        return "\n".join([title, *(f"  {name}: {value}" for name, value in facts.items())])

    def _repr_html_(self) -> str:
        title, facts = self._facts()
        return tables.markdown_as_html(tables.markdown([title, ""], facts.items()))

    @uninterrupted
    @in_precision
    def _facts(self) -> tuple[str, dict[str, str]]:
        training = self.training
        title = f"{type(self).__name__} after {counted(self.samples, 'row')}"
        if training is None:
            return title, {"method": self.settings.method}
        stream, last = training.windowed.rows, training.unfinished_line()
        lines = [*self.lines, *([last] if last else [])]
        facts = {
            "inputs": first_few(stream.inputs, 6),
            "targets": f"{first_few(stream.targets, 6)}, {describe_steps(stream.steps)}",
            "method": self.settings.method,
        }
        if lines and (loss := lines[-1]["mean"]) is not None:
            facts["loss"] = f"{loss:.4g} {training.score.unit} (mean)"
        if curve := tables.sparkline(line["loss"] for line in lines):
            facts["curve"] = curve
        return title, facts


# Learners with their compiled functions, shared by all models with the same settings and columns.
_cached_build = lru_cache(maxsize=16)(build)
