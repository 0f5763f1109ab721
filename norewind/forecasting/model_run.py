"""A run held in memory: it learns from rows, one at a time or many, predicts, and can be saved as a run folder."""

import os
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from norewind.engines.cache import keep_compiled_from_now
from norewind.forecasting.predict import Forecast, check_ahead, rows_to_come
from norewind.streams import Samples, StreamError, afresh
from norewind.streams.stream import BadRow
from norewind.streams.table.parsing import FIRST_ROWS
from norewind.streams.table.python_rows import PythonRows
from norewind.training import registry
from norewind.training.build import build, set_precision
from norewind.training.folder import COLUMNS, METRICS, RunFolder, Saved
from norewind.training.log import read_log
from norewind.training.notebook import live_plot
from norewind.training.opening import Opened, open_stream
from norewind.training.settings import SETTINGS, Settings, SettingsError
from norewind.training.train import columns_of
from norewind.training.training_loop import Hooks, Intervals, Training
from norewind.training.windows import Steps

Row = dict[str, Any]
# The number of rows from which the columns can be determined when a prediction is requested.
SOON = 20


class ModelRun:
    """A stream of rows, its learner and its run, with the settings of the command line.

    Which columns are used depends on the first rows. These are therefore held back until there
    are enough of them, or until a prediction is requested.

    Args:
        settings: the settings of the run.
        saved: the checkpoint to continue from; None for a new run.
        home: the folder that the run is loaded from; None if there is none.

    Attributes:
        first: the first rows, while they are held back.
        training: the run in training; None while the first rows are held back.
        home: the folder that the run was loaded from or saved to; None if there is none.
        logged: the number of lines of metrics in that folder.
    """

    def __init__(self, settings: Settings, saved: Saved | None = None, home: Path | None = None):
        set_precision(settings)
        keep_compiled_from_now()
        self.settings, self.home = settings, home
        self.first: list[Row] = []
        self.training: Training | None = None
        self._lines: list[dict[str, Any]] = []
        if saved and home:
            lines = read_log(home / METRICS)
            self._lines = [line for line in lines if line["samples"] <= saved.entries["samples"]]
        self.logged = len(self._lines)
        if saved:
            self._continue(saved)

    def _continue(self, saved: Saved) -> None:
        """Continue with single rows from a checkpoint."""
        self.given = PythonRows(lasts=True)
        opened = open_stream(self.settings, saved.entries["position"]["stream"], source=self.given)
        self.training = self._training(opened, saved, Hooks(metrics=self._lines.append))

    def _training(self, opened: Opened, saved: Saved | None, hooks: Hooks, *, watch: bool = False) -> Training:
        settings = replace(self.settings, source="", format="jsonl", inputs=(), targets=(), copy=())
        learner, run, window = _built(settings, opened.shape)
        intervals = Intervals(metrics_every=self.settings.metrics_every, checkpoint_every=None)
        steps = Steps(opened.stream, window, saved)
        return Training(steps, learner, run, saved, score=opened.score, intervals=intervals, watch=watch, hooks=hooks)

    def _saved(self) -> Saved | None:
        return self.training.saved() if self.training else None

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickle and copy. A copy is a separate run: the folder belongs to the original."""
        return {"settings": self.settings, "first": self.first, "saved": self._saved(), "lines": self.lines}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["settings"], state["saved"])
        self.first += deepcopy(state["first"])
        self._lines += deepcopy(state["lines"])

    def learn(self, row: Row) -> None:
        """Learn from one more row.

        Args:
            row: the row by column.

        Raises:
            SettingsError: if the method learns from windows of several rows.
            StreamError: if the row is bad; it is discarded.
        """
        method = self.settings.method
        if method != registry.AUTO and (window := registry.parse_method(method).window) > 1:
            why = f"the method {method} learns from windows of {window} rows"
            raise SettingsError(f"learn_one: {why}. Use fit, or a method without windows.")
        if self.training is None:
            self.first.append(row)
            if len(self.first) >= (1 if self.settings.inputs and self.settings.targets else FIRST_ROWS):
                self.open()
            return
        self.given.put(row)
        self._learn_next(self.training)

    def _learn_next(self, training: Training) -> None:
        try:
            sample = training.steps.stream.take(1)
        except StreamError:
            self.given.discard()  # a bad row must not block the next one
            raise
        if sample is not None and len(sample.xs):
            training.learn_one(sample)

    def open(self, *, only_if: int = 1) -> Training | None:
        """Determine the columns from the first rows, and learn from these rows.

        Args:
            only_if: do so only if there are at least this many rows.

        Returns:
            The run in training; None if there are not enough rows.

        Raises:
            StreamError: if a row is bad.
            SettingsError: if the settings do not fit the columns.
        """
        if self.training is None and len(self.first) >= only_if:
            given = PythonRows(self.first, lasts=True)
            try:
                opened = open_stream(self.settings, None, source=given)
                training = self._training(opened, None, Hooks(metrics=self._lines.append))
            except (StreamError, SettingsError):
                del self.first[-1]  # only the newest row is rejected
                raise
            self.given, self.training, self.first = given, training, []
            problem = None
            while given.peek():
                try:
                    self._learn_next(training)
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
        return self._lines

    @property
    def samples(self) -> int:
        """The number of rows received so far."""
        return (self.training.samples if self.training else 0) + len(self.first)

    def answer(self, row: Row) -> tuple[Any, Samples, Any] | None:
        """Predict at a row, as if it were the next one, without learning from it.

        Args:
            row: the row by column.

        Returns:
            The score, the row as a sample, and the outputs of the learner; None if there are too few rows so far.

        Raises:
            StreamError: if the row is bad.
        """
        training = self.open(only_if=SOON)
        if training is None:
            return None
        try:
            samples = training.steps.stream.peek([row])
        except BadRow as problem:
            raise StreamError(f"the row is bad: {problem}.") from None
        return training.score, samples, training.learner.forward(training.run_so_far(), samples.xs)[1]

    def forecast(self, steps: int) -> Forecast:
        """Forecast the next rows, with standard deviations.

        Args:
            steps: the number of rows.

        Raises:
            SettingsError: if the run cannot forecast this many rows.
            StreamError: if there are no rows yet.
        """
        check_ahead(self.settings, steps)
        training = self.open()
        if training is None:
            raise StreamError("there is nothing to forecast from yet: fit the model, or let it learn some rows.")
        return rows_to_come(self.settings, training, steps)

    def fit(self, data: Any, hooks: Hooks) -> None:
        """Learn from many rows, in the training loop of the command line. If it fails, nothing has changed.

        Args:
            data: the path of a file, or an iterator of rows.
            hooks: callbacks of the training loop.
        """
        if self.first:
            self.open()
        before, saved, given = self.settings, self._saved(), None
        position = saved.entries["position"]["stream"] if saved else None
        if isinstance(data, str | os.PathLike):
            settings = self._file_settings(os.fspath(data))
            position = position and afresh(position)
        else:
            settings, given = before, PythonRows(data)
            if not given.peek():
                return
        opened, lines = open_stream(settings, position, source=given), []
        with opened.stream, live_plot(hooks, opened.score.unit) as hooks:
            self.settings = settings
            try:
                training = self._training(opened, saved, hooks.adding(metrics=lines.append), watch=settings.watch)
                training.until()
                if not hooks.should_stop() and (line := training.unfinished_line()):
                    hooks.metrics(line)
            except BaseException:
                self.settings = before
                raise
        self._lines += lines
        self._continue(training.saved())

    def _file_settings(self, path: str) -> Settings:
        """The settings to read a file with."""
        settings = replace(self.settings, source=path, format="auto", final=True).settled()
        if settings.kind not in ("csv", "jsonl"):
            raise SettingsError(f"{path}: pass rows, or a file whose name ends in .csv, .jsonl or .ndjson.")
        if self.training and settings.kind != self.settings.kind:
            kinds = f"the model has learned from {self.settings.kind}, but this file is {settings.kind}"
            raise SettingsError(f"{path}: {kinds}. Read it into a data frame, and pass that.")
        return settings

    def save(self, path: Path) -> None:
        """Write the run as a folder that the command line can continue.

        Args:
            path: a new folder, or the one that the run was loaded from or saved to before.

        Raises:
            SettingsError: if there is nothing to save yet, or if the folder holds another run or a later state.
        """
        training = self.open()
        if training is None:
            raise SettingsError("there is nothing to save yet: fit the model, or let it learn some rows.")
        is_home = path.resolve() == self.home
        with RunFolder(path, keep=self.settings.keep, new=not is_home) as folder:
            if (path / SETTINGS).exists() and not is_home:
                raise SettingsError(f"{path} already holds a run. Choose another folder.")
            if folder.entries.get("samples", 0) > self.samples:
                raise SettingsError(f"{path} holds a later state of this run. Load it, or choose another folder.")
            folder.begin(self.settings)
            folder.note(COLUMNS, columns_of(training.steps.stream))
            log = folder.log(METRICS)
            log.write(self.lines[self.logged if is_home else 0 :])
            folder.save(self.samples, training.run, training.entries(), lambda path: None)
            folder.wait()
            if line := training.unfinished_line():
                log.write([line])
        self.home, self.logged = path.resolve(), len(self.lines)


# Learners with their compiled functions, shared by all models with the same settings and columns.
_built = lru_cache(maxsize=16)(build)
