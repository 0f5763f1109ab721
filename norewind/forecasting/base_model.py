"""The base of the models for tables: a run in memory that learns from rows, one at a time or many."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from norewind.engines.cache import keep_compiled_from_now
from norewind.plotting import tables
from norewind.scoring.metrics import counted
from norewind.storage.files import write_atomically
from norewind.streams import Samples, StreamError, afresh
from norewind.streams.stream import BadRow, some
from norewind.streams.table.parsing import FIRST_ROWS
from norewind.streams.table.python_rows import JSON_TYPES, PythonRows, plain
from norewind.training import registry
from norewind.training.build import build, set_precision
from norewind.training.folder import METRICS, RunFolder, Saved
from norewind.training.hooks import Hooks, Intervals
from norewind.training.log import read_log
from norewind.training.notebook import live_plot
from norewind.training.opening import Opened, open_stream
from norewind.training.settings import SETTINGS, Settings, SettingsError
from norewind.training.train import columns_of, describe_steps
from norewind.training.training_loop import Training
from norewind.training.windows import WindowedStream

Row = dict[str, Any]
# The number of rows from which the columns can be determined when a prediction is requested.
MIN_ROWS_TO_PREDICT = 20
# The file in a run folder that holds the name of the model's class, and the original labels of a classifier.
MODEL_FILE = "model.json"


class ForecastingModel:
    """The base class of the models: a stream of rows, its learner and its run, with the settings of the command line.

    Which columns are used depends on the first rows. These are therefore held back until there
    are enough of them, or until a prediction is requested.

    Args:
        settings: the settings of the run.
        saved: the checkpoint to continue from; None for a new run.
        home: the folder that the run is loaded from; None if there is none.

    Attributes:
        settings: the settings of the run.
        training: the run in training; None while the first rows are held back.
    """

    labels: Any = None
    """The original labels of the classes, by name; None if the targets are numbers."""

    def __init__(self, settings: Settings, saved: Saved | None = None, home: Path | None = None):
        set_precision(settings)
        keep_compiled_from_now()
        self.settings = settings
        self.training: Training | None = None
        # The folder that the run was loaded from or saved to.
        self._home = home
        # The first rows, while they are held back.
        self._first_rows: list[Row] = []
        self._metric_lines: list[dict[str, Any]] = []
        if saved and home:
            lines = read_log(home / METRICS)
            self._metric_lines = [line for line in lines if line["samples"] <= saved.entries["samples"]]
        # The number of lines of metrics in the folder.
        self._written_lines = len(self._metric_lines)
        if saved:
            self._continue(saved)

    def _continue(self, saved: Saved) -> None:
        """Continue with single rows from a checkpoint."""
        opened = open_stream(self.settings, saved.entries["position"]["stream"], source=PythonRows())
        self.training = self._training(opened, saved, Hooks(metrics=self._metric_lines.append))

    def _training(
        self, opened: Opened, saved: Saved | None, hooks: Hooks, *, stop_if_diverged: bool = False
    ) -> Training:
        settings = replace(self.settings, source="", format="jsonl", inputs=(), targets=(), copy=())
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

    def _saved(self) -> Saved | None:
        return self.training.saved() if self.training else None

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickle and copy. A copy is a separate run: the folder belongs to the original."""
        return {**self.__dict__, "training": None, "_home": None, "saved": self._saved()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.pop("saved")
        self.__dict__.update(deepcopy(state))
        set_precision(self.settings)
        if saved:
            self._continue(saved)

    def learn_one(self, row: Any) -> None:
        """Learn from one more row.

        Args:
            row: a dict by column, a row of a data frame, or a vector.

        Raises:
            StreamError: the row is bad; it is discarded.
            SettingsError: the method learns from windows of several rows.
        """
        row, method = as_row(row), self.settings.method
        if method != registry.AUTO and (window := registry.parse_method(method).window) > 1:
            why = f"the method {method} learns from windows of {window} rows"
            raise SettingsError(f"learn_one: {why}. Use fit, or a method without windows.")
        if self.training is None:
            self._first_rows.append(row)
            if len(self._first_rows) >= (1 if self.settings.inputs and self.settings.targets else FIRST_ROWS):
                self._open()
        else:
            self.training.learn_row(row)
        self._note_row(row)

    def _open(self, *, min_rows: int = 1) -> Training | None:
        """Determine the columns from the first rows, and learn from these rows.

        Args:
            min_rows: do so only if there are at least this many rows.

        Returns:
            The run in training; None if there are not enough rows.

        Raises:
            StreamError: a row is bad.
            SettingsError: the settings do not fit the columns.
        """
        if self.training is None and len(self._first_rows) >= min_rows:
            rows = self._first_rows
            try:
                opened = open_stream(self.settings, None, source=PythonRows(rows))
                training = self._training(opened, None, Hooks(metrics=self._metric_lines.append))
            except (StreamError, SettingsError):
                del rows[-1]  # only the newest row is rejected
                raise
            self.training = training
            self._first_rows = []
            problem = None
            for row in rows:
                try:
                    training.learn_row(row)
                except StreamError as error:
                    problem = problem or error
            if problem:
                raise problem
        return self.training

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of metrics so far, up to date."""
        if self.training:
            self.training.add_up()
        return self._metric_lines

    @property
    def samples(self) -> int:
        """The number of rows that the model has learned from."""
        return (self.training.samples if self.training else 0) + len(self._first_rows)

    def _predict_at(self, row: Any) -> tuple[Any, Samples, Any] | None:
        """Predict at a row, as if it were the next one, without learning from it.

        Args:
            row: a dict by column, a row of a data frame, or a vector.

        Returns:
            The score, the row as a sample, and the outputs of the learner; None if there are too few rows so far.

        Raises:
            StreamError: the row is bad.
        """
        row, training = as_row(row), self._open(min_rows=MIN_ROWS_TO_PREDICT)
        if training is None:
            return None
        try:
            samples = training.windowed.stream.peek([row])
        except BadRow as problem:
            raise StreamError(f"the row is bad: {problem}.") from None
        return training.score, samples, training.learner.forward(training.run_so_far(), samples.xs)[1]

    def fit(self, data: Any, hooks: Hooks = Hooks()) -> Self:  # noqa: B008 (frozen)
        """Learn from many rows. A second call continues with more rows. If it fails, the model is unchanged.

        Args:
            data: a pandas or Polars data frame or series, an array, an iterable of rows, or the path of a file.
            hooks: callbacks of the training loop.

        Returns:
            The model itself.

        Raises:
            StreamError: the data or one of the rows cannot be read.
            SettingsError: the settings do not fit the data.
        """
        rows = None if isinstance(data, str | os.PathLike) else map(self._note_row, iterate_rows(data))
        if self._first_rows:
            self._open()
        before, saved, given = self.settings, self._saved(), None
        position = saved.entries["position"]["stream"] if saved else None
        if rows is None:
            settings = self._file_settings(os.fspath(data))
            position = position and afresh(position)
        else:
            settings, given = before, PythonRows(rows)
            if not given.peek():
                return self
        opened, lines = open_stream(settings, position, source=given), []
        with opened.stream, live_plot(hooks, opened.score.unit) as hooks:
            self.settings = settings
            try:
                training = self._training(
                    opened, saved, hooks.adding(metrics=lines.append), stop_if_diverged=settings.stop_if_diverged
                )
                training.until()
                if not hooks.should_stop() and (line := training.unfinished_line()):
                    hooks.metrics(line)
            except BaseException:
                self.settings = before
                raise
        self._metric_lines += lines
        self._continue(training.saved())
        return self

    def _file_settings(self, path: str) -> Settings:
        """The settings to read a file with."""
        settings = replace(self.settings, source=path, format="auto", final=True).with_format()
        if not settings.has_rows:
            raise SettingsError(f"{path}: pass rows, or a file whose name ends in .csv, .jsonl or .ndjson.")
        if self.training and settings.kind != self.settings.kind:
            kinds = f"the model has learned from {self.settings.kind}, but this file is {settings.kind}"
            raise SettingsError(f"{path}: {kinds}. Read it into a data frame, and pass that.")
        return settings

    def save(self, folder: str | Path) -> None:
        """Save the model as a run folder, which `norewind.load` and the command line can open.

        Args:
            folder: a new folder, or the one that this model was loaded from or saved to before.

        Raises:
            SettingsError: there is nothing to save yet, or the folder holds another run or a later state.
        """
        training = self._open()
        if training is None:
            raise SettingsError("there is nothing to save yet: fit the model, or let it learn some rows.")
        path = Path(folder)
        is_home = path.resolve() == self._home
        with RunFolder(path, keep=self.settings.keep, mode="resume" if is_home else "new") as run_folder:
            if (path / SETTINGS).exists() and not is_home:
                raise SettingsError(f"{path} already holds a run. Choose another folder.")
            if run_folder.entries.get("samples", 0) > self.samples:
                raise SettingsError(f"{path} holds a later state of this run. Load it, or choose another folder.")
            run_folder.begin(self.settings, columns_of(training.windowed.stream))
            log = run_folder.log(METRICS)
            log.write(self.lines[self._written_lines if is_home else 0 :])
            run_folder.save(self.samples, training.run, training.entries())
            run_folder.writer.wait()
            if line := training.unfinished_line():
                log.write([line])
        self._home, self._written_lines = path.resolve(), len(self.lines)
        about = {"model": type(self).__name__} | ({} if self.labels is None else {"labels": self.labels})
        write_atomically(path / MODEL_FILE, json.dumps(about, ensure_ascii=False).encode())

    def _note_row(self, row: Row) -> Row:
        """Note a row that is learned from. Returns it."""
        return row

    def __repr__(self) -> str:
        return tables.facts_as_text(*self._facts())

    def _repr_html_(self) -> str:
        return tables.facts_as_html(*self._facts())

    def _facts(self) -> tuple[str, dict[str, str]]:
        training = self.training
        title = f"{type(self).__name__} after {counted(self.samples, 'row')}"
        if training is None:
            return title, {"method": self.settings.method}
        stream, last = training.windowed.stream, training.unfinished_line()
        lines = [*self.lines, *([last] if last else [])]
        facts = {
            "inputs": some(stream.inputs, 6),
            "targets": f"{some(stream.targets, 6)}, {describe_steps(stream.steps)}",
            "method": self.settings.method,
        }
        if lines and (loss := lines[-1]["mean"]) is not None:
            facts["loss"] = f"{loss:.4g} {training.score.unit} (mean)"
        if curve := tables.sparkline(line["loss"] for line in lines):
            facts["curve"] = curve
        return title, facts


# Learners with their compiled functions, shared by all models with the same settings and columns.
_cached_build = lru_cache(maxsize=16)(build)


def iterate_rows(data: Any) -> Iterator[dict[str, Any]]:
    """Iterate over the rows of a pandas or Polars frame or series, an array, or any iterable of rows.

    Raises:
        StreamError: the data is not a collection of rows.
    """
    if hasattr(data, "to_frame"):  # a series; without a name, its column is called 1, as in an array
        data = data.to_frame(name=data.name or "1")
    if isinstance(data, Mapping):
        raise StreamError("fit takes many rows; learn_one takes one. Convert a dict of columns to a data frame first.")
    if hasattr(data, "iter_rows"):  # Polars
        return map(as_row, data.iter_rows(named=True))
    if hasattr(data, "itertuples"):  # pandas
        names = [str(name) for name in data.columns]
        return (as_row(dict(zip(names, values, strict=True))) for values in data.itertuples(index=False, name=None))
    if isinstance(data, bytes) or not isinstance(data, Iterable):
        kinds = "a data frame, an array or an iterable of dicts"
        raise StreamError(f"rows must be {kinds}, not a {type(data).__name__}. To read a file, pass its path.")
    return map(as_row, data)


def as_row(row: Any) -> dict[str, Any]:
    """Convert a row to a dict by column. The columns of an array are called 1, 2, ..., as in a file without a header.

    Raises:
        StreamError: it is neither a mapping nor a vector.
    """
    if type(row) is dict or isinstance(row, Mapping):
        return {
            name if type(name) is str else str(name): value if type(value) in JSON_TYPES else plain(value)
            for name, value in row.items()
        }
    if hasattr(row, "to_dict"):  # a row of pandas
        return as_row(row.to_dict())
    if isinstance(row, str | bytes) or not (hasattr(row, "__len__") or hasattr(row, "__float__")) or np.ndim(row) > 1:
        raise StreamError(f"a row must be a dict or a vector of numbers, not a {type(row).__name__}.")
    values = np.atleast_1d(np.asarray(row)).tolist()
    return {str(number): plain(value) for number, value in enumerate(values, 1)}
