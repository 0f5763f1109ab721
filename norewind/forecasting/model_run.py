"""A run held in memory: it learns from rows, one at a time or many, predicts, and can be saved as a run folder."""

import os
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from norewind.core.trees import copied
from norewind.engines.cache import keep_compiled_from_now
from norewind.forecasting.predict import Forecast, check_ahead, rows_to_come
from norewind.forecasting.row_metrics import Metrics
from norewind.scoring.metrics import Tally, Watch, digits
from norewind.storage.checkpoint import arrays_of, restored
from norewind.streams import Samples, StreamError, afresh
from norewind.streams.stream import BadRow
from norewind.streams.table.parsing import FIRST_ROWS
from norewind.streams.table.python_rows import PythonRows
from norewind.training import registry
from norewind.training.build import build, set_precision
from norewind.training.fit import Hooks, Intervals, carry_norm, fit
from norewind.training.folder import COLUMNS, METRICS, RunFolder, Saved
from norewind.training.log import read_log
from norewind.training.opening import Opened, open_stream
from norewind.training.settings import SETTINGS, Settings, SettingsError
from norewind.training.train import columns_of

Row = dict[str, Any]
# The number of rows from which the columns can be determined when a prediction is requested.
SOON = 20
# The path in errors about a run that has no folder.
MEMORY = Path("memory")


class ModelRun:
    """A stream of rows, its learner and its run, with the settings of the command line.

    Which columns are used depends on the first rows. These are therefore held back until there
    are enough of them, or until a prediction is requested.

    Args:
        settings: the settings of the run.
        saved: the checkpoint to continue from; None for a new run.

    Attributes:
        entries: the content of a checkpoint in addition to the run.
        first: the first rows, while they are held back.
        opened: the stream and its score; None while the first rows are held back.
        run: the run of the learner; None likewise.
        home: the folder that the run was loaded from or saved to; None if there is none.
        logged: the number of lines of metrics in that folder.
    """

    def __init__(self, settings: Settings, saved: Saved | None = None):
        set_precision(settings)
        keep_compiled_from_now()
        self.settings = settings
        self.home = saved.path.parent.parent.resolve() if saved else None
        fresh = {
            "seconds": 0.0,
            "position": {"stream": None, "left": None},
            "answered": 0,
            "tally": msgspec.structs.asdict(Tally()),
            "score": {},
            "watch": msgspec.structs.asdict(Watch()),
        }
        self.entries: dict[str, Any] = {name: saved.entries[name] for name in fresh} if saved else fresh
        lines = read_log(self.home / METRICS) if self.home else []
        tally = Tally(**self.entries["tally"])
        lines = [line for line in lines if line["samples"] <= tally.samples]
        self.metrics, self.logged = Metrics(tally, lines, settings.metrics_every), len(lines)
        self.first: list[Row] = []
        self.opened: Any = None  # an `Opened`, once there are rows
        self.run: Any = None
        if saved:
            self._restore(saved.restore)

    def _restore(self, restored: Any) -> None:
        """Open the stream at its position. `restored` maps a new run to the one to continue."""
        self.given = PythonRows(lasts=True)
        opened = open_stream(self.settings, self.entries["position"]["stream"], source=self.given)
        self._build(opened)
        self.run = restored(self.built.run)
        opened.score.state = deepcopy(self.entries["score"])
        self.opened = opened

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickle and copy, without the parts that can be rebuilt."""
        self.settle()
        reopened = ("opened", "given", "built", "run")
        state = {name: value for name, value in self.__dict__.items() if name not in reopened}
        return state | {"arrays": None if self.opened is None else arrays_of(self.run)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        arrays = state.pop("arrays")
        # A copy is a separate run: the folder belongs to the original.
        self.__dict__.update(deepcopy(state), opened=None, run=None, home=None)
        set_precision(self.settings)
        if arrays is not None:
            self._restore(lambda like: restored(MEMORY, arrays, like))

    def _build(self, opened: Opened) -> None:
        settings = replace(self.settings, source="", format="jsonl", inputs=(), targets=(), copy=())
        self.built = _built(settings, opened.shape)

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
        if self.opened is None:
            self.first.append(row)
            if len(self.first) >= (1 if self.settings.inputs and self.settings.targets else FIRST_ROWS):
                self.open()
            return
        self.given.put(row)
        self._learn_next()

    def _learn_next(self) -> None:
        try:
            samples = self.opened.stream.take(1)
        except StreamError:
            self.given.discard()  # a bad row must not block the next one
            raise
        if samples is not None and len(samples.xs):
            learner = self.built.learner
            self.run, (losses, outputs) = learner.scan(self.run, samples.xs, samples.targets, outputs=True)
            self.metrics.note((samples, losses, outputs), self.opened.score, self._about_run)

    def open(self, *, only_if: int = 1) -> bool:
        """Determine the columns from the first rows, and learn from these rows.

        Args:
            only_if: do so only if there are at least this many rows.

        Returns:
            Whether the stream is open, now or already before.

        Raises:
            StreamError: if a row is bad.
            SettingsError: if the settings do not fit the columns.
        """
        if self.opened is None and len(self.first) >= only_if:
            given = PythonRows(self.first, lasts=True)
            try:
                opened = open_stream(self.settings, None, source=given)
                self._build(opened)
            except (StreamError, SettingsError):
                del self.first[-1]  # only the newest row is rejected
                raise
            self.given, self.opened, self.run, self.first = given, opened, copied(self.built.run), []
            problem = None
            while given.peek():
                try:
                    self._learn_next()
                except StreamError as error:
                    problem = problem or error
            if problem:
                raise problem
        return self.opened is not None

    def _about_run(self) -> dict[str, Any]:
        """The entries of a line of metrics that describe the run."""
        carry = carry_norm(self.built.learner.carry(self.run))
        return {"carry": digits(carry), "seconds": self.entries["seconds"]}

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of metrics so far, up to date."""
        if self.opened:
            self.metrics.add_up(self.opened.score)
        return self.metrics.lines

    def closing(self) -> dict[str, Any] | None:
        """The line of metrics of the unfinished interval; None if it is empty."""
        return self.metrics.closing(self.opened.score, self._about_run()) if self.opened else None

    @property
    def samples(self) -> int:
        """The number of rows received so far."""
        return self.metrics.samples + len(self.first)

    def _run_now(self) -> Any:
        """The run after all rows, including those that wait for their window."""
        left = self.entries["position"]["left"]
        return self.run if left is None else self.built.learner.forward(self.run, Samples(*left).xs)[0]

    def answer(self, row: Row) -> tuple[Any, Samples, Any] | None:
        """Predict at a row, as if it were the next one, without learning from it.

        Args:
            row: the row by column.

        Returns:
            The score, the row as a sample, and the outputs of the learner; None if there are too few rows so far.

        Raises:
            StreamError: if the row is bad.
        """
        if not self.open(only_if=SOON):
            return None
        try:
            samples = self.opened.stream.peek([row])
        except BadRow as problem:
            raise StreamError(f"the row is bad: {problem}.") from None
        return self.opened.score, samples, self.built.learner.forward(self._run_now(), samples.xs)[1]

    def forecast(self, steps: int) -> Forecast:
        """Forecast the next rows, with standard deviations.

        Args:
            steps: the number of rows.

        Raises:
            SettingsError: if the run cannot forecast this many rows.
            StreamError: if there are no rows yet.
        """
        check_ahead(self.settings, steps)
        if not self.open():
            raise StreamError("there is nothing to forecast from yet: fit the model, or let it learn some rows.")
        self.metrics.add_up(self.opened.score)
        return rows_to_come(self.settings, self.opened, self.built.learner, self._run_now(), steps, self.samples)

    def fit(self, data: Any, hooks: Hooks) -> None:
        """Learn from many rows, in the training loop of the command line. If it fails, nothing has changed.

        Args:
            data: the path of a file, or an iterator of rows.
            hooks: callbacks of the training loop.
        """
        if self.first:
            self.open()
        self.settle()
        settings, position, given = self.settings, self.entries["position"], None
        if isinstance(data, str | os.PathLike):
            settings, position = self._file_settings(os.fspath(data))
        else:
            given = PythonRows(data)
            if not given.peek():
                return
        opened = open_stream(settings, position["stream"], source=given)
        with opened.stream:
            self.settings, before = settings, self.settings
            try:
                self._build(opened)
                at = {"position": {**position, "stream": opened.stream.position()}}
                memory = RunInMemory(self.run, deepcopy({**self.entries, **at}) if self.opened else {})
                fit(
                    opened.stream,
                    **self.built._asdict(),
                    folder=memory,
                    intervals=Intervals(metrics_every=settings.metrics_every, checkpoint_every=None),
                    score=opened.score,
                    watch=settings.watch,
                    hooks=hooks,
                )
            except BaseException:
                self.settings = before
                raise
        if memory.kept:
            run, self.entries, lines = memory.kept
            tally = Tally(**self.entries["tally"])
            self.metrics = Metrics(tally, self.metrics.lines + lines, settings.metrics_every)
            self._restore(lambda like: run)

    def _file_settings(self, path: str) -> tuple[Settings, dict[str, Any]]:
        """The settings and the position to read a file with."""
        settings = replace(self.settings, source=path, format="auto", final=True).settled()
        if settings.kind not in ("csv", "jsonl"):
            raise SettingsError(f"{path}: pass rows, or a file whose name ends in .csv, .jsonl or .ndjson.")
        position = self.entries["position"]
        if self.opened is None:
            return settings, position
        if settings.kind != self.settings.kind:
            kinds = f"the model has learned from {self.settings.kind}, but this file is {settings.kind}"
            raise SettingsError(f"{path}: {kinds}. Read it into a data frame, and pass that.")
        return settings, {"stream": afresh(position["stream"]), "left": position["left"]}

    def settle(self) -> None:
        """Bring `entries` up to date."""
        if self.opened:
            self.metrics.add_up(self.opened.score)
            self.entries |= {
                "position": {**self.entries["position"], "stream": self.opened.stream.position()},
                "tally": msgspec.structs.asdict(self.metrics.tally),
                "score": self.opened.score.state,
            }

    def save(self, path: Path) -> None:
        """Write the run as a folder that the command line can continue.

        Args:
            path: a new folder, or the one that the run was loaded from or saved to before.

        Raises:
            SettingsError: if there is nothing to save yet, or if the folder holds another run or a later state.
        """
        if not self.open():
            raise SettingsError("there is nothing to save yet: fit the model, or let it learn some rows.")
        self.settle()
        is_home = path.resolve() == self.home
        with RunFolder(path, keep=self.settings.keep, new=not is_home) as folder:
            if (path / SETTINGS).exists() and not is_home:
                raise SettingsError(f"{path} already holds a run. Choose another folder.")
            if folder.entries.get("samples", 0) > self.samples:
                raise SettingsError(f"{path} holds a later state of this run. Load it, or choose another folder.")
            folder.begin(self.settings)
            folder.note(COLUMNS, columns_of(self.opened.stream))
            log = folder.log(METRICS)
            log.write(self.lines[self.logged if is_home else 0 :])
            folder.save(self.samples, self.run, deepcopy(self.entries), lambda path: None)
            folder.wait()
            if closing := self.closing():
                log.write([closing])
        self.home, self.logged = path.resolve(), len(self.lines)


class RunInMemory:
    """A stand-in for the run folder that `fit` writes to, without files.

    Args:
        run: the run to continue.
        entries: the entries of its checkpoint; empty for a new run.

    Attributes:
        kept: the saved run, its entries, and its lines of metrics; None if nothing was saved.
    """

    def __init__(self, run: Any, entries: dict[str, Any]):
        self.entries, self.kept, self._lines = entries, None, []
        self.saved = SimpleNamespace(path=MEMORY, restore=lambda like: copied(run)) if entries else None

    def log(self, name: str) -> Any:
        return SimpleNamespace(write=self._lines.extend)

    def save(self, samples: int, run: Any, entries: dict[str, Any], after: Any, *, replaces: bool = True) -> None:
        self.kept = run, entries, list(self._lines)

    def wait(self) -> None:
        """Nothing is written in the background."""


# Learners with their compiled functions, shared by all models with the same settings and columns.
_built = lru_cache(maxsize=16)(build)
