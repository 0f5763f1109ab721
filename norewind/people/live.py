"""A run in this process: it takes rows one at a time or many, answers about them, and can be saved as a run folder."""

import os
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import msgspec
import numpy as np

from norewind import names
from norewind.cache import keep_compiled_from_now
from norewind.checkpoint import arrays_of, restored
from norewind.runs.build import Opened, build, open_stream, set_precision
from norewind.runs.fit import Hooks, Intervals, carry_norm, fit
from norewind.runs.folder import COLUMNS, METRICS, RunFolder, Saved, read_log
from norewind.runs.metrics import Tally, Watch, digits, next_line
from norewind.runs.predict import Forecast, check_ahead, rows_to_come
from norewind.runs.scores import Score
from norewind.runs.settings import SETTINGS, Settings, SettingsError
from norewind.runs.train import columns_of
from norewind.streams import Samples, StreamError, afresh
from norewind.streams.columns import BadRow
from norewind.streams.given import Given
from norewind.streams.parsing import FIRST_ROWS
from norewind.streams.stream import joined
from norewind.trees import copied

Row = dict[str, Any]
# The number of rows that are enough to judge the columns by when an answer is wanted.
SOON = 20
# Rows that are added up at once unless the metrics are wanted earlier: one by one would take as long as learning.
TOGETHER = 200
# Named in errors about a run that has no folder.
MEMORY = Path("memory")


class Live:
    """A stream of rows, its learner and its run, under the settings of the command line.

    Columns are judged by the first rows, so these wait until there are enough of them or
    until an answer is wanted. `entries` is what a checkpoint holds in addition to the run.
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
        """Open the stream at the position, with the run that `restored` makes of a fresh one."""
        self.given = Given(lasts=True)
        opened = open_stream(self.settings, self.entries["position"]["stream"], source=self.given)
        self._build(opened)
        self.run = restored(self.built.run)
        opened.score.state = deepcopy(self.entries["score"])
        self.opened = opened

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: everything except what can be opened again."""
        self.settle()
        reopened = ("opened", "given", "built", "run")
        state = {name: value for name, value in self.__dict__.items() if name not in reopened}
        return state | {"arrays": None if self.opened is None else arrays_of(self.run)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        arrays = state.pop("arrays")
        # A copy is another run: the folder remains that of the original.
        self.__dict__.update(deepcopy(state), opened=None, run=None, home=None)
        set_precision(self.settings)
        if arrays is not None:
            self._restore(lambda like: restored(MEMORY, arrays, like))

    def _build(self, opened: Opened) -> None:
        settings = replace(self.settings, source="", format="jsonl", inputs=(), targets=(), copy=())
        self.built = _built(settings, opened.shape)

    def learn(self, row: Row) -> None:
        """Learn from one more row."""
        method = self.settings.method
        if method != names.AUTO and (window := names.parse_method(method).window) > 1:
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
        """Judge the columns by the rows so far, if there are enough of them, and learn from these rows."""
        if self.opened is None and len(self.first) >= only_if:
            given = Given(self.first, lasts=True)
            try:
                opened = open_stream(self.settings, None, source=given)
                self._build(opened)
            except (StreamError, SettingsError):
                del self.first[-1]  # only the newest row is rejected
                raise
            self.given, self.opened, self.run, self.first = given, opened, copied(self.built.run), []
            problem = None
            while given.peek() is not None:
                try:
                    self._learn_next()
                except StreamError as error:
                    problem = problem or error
            if problem:
                raise problem
        return self.opened is not None

    def _about_run(self) -> dict[str, Any]:
        """The entries of a line of metrics about the run."""
        carry = carry_norm(self.built.learner.carry(self.run))
        return {"carry": digits(carry), "seconds": self.entries["seconds"]}

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of metrics."""
        if self.opened:
            self.metrics.add_up(self.opened.score)
        return self.metrics.lines

    def closing(self) -> dict[str, Any] | None:
        """The line of the interval that has not ended."""
        return self.metrics.closing(self.opened.score, self._about_run()) if self.opened else None

    @property
    def samples(self) -> int:
        return self.metrics.samples + len(self.first)

    def _run_now(self) -> Any:
        """The run after all rows, including those that wait for their window."""
        left = self.entries["position"]["left"]
        return self.run if left is None else self.built.learner.forward(self.run, Samples(*left).xs)[0]

    def answer(self, row: Row) -> tuple[Any, Samples, Any] | None:
        """The score, the row as the next sample, and the outputs there, learning nothing; None if it is too early."""
        if not self.open(only_if=SOON):
            return None
        try:
            samples = self.opened.stream.peek([row])
        except BadRow as problem:
            raise StreamError(f"the row is bad: {problem}.") from None
        return self.opened.score, samples, self.built.learner.forward(self._run_now(), samples.xs)[1]

    def forecast(self, steps: int) -> Forecast:
        """The next rows, with their deviations."""
        check_ahead(self.settings, steps)
        if not self.open():
            raise StreamError("there is nothing to forecast from yet: fit the model, or let it learn some rows.")
        self.metrics.add_up(self.opened.score)
        return rows_to_come(self.settings, self.opened, self.built.learner, self._run_now(), steps, self.samples)

    def fit(self, data: Any, hooks: Hooks) -> None:
        """Learn from a file by its path, or from an iterator of rows, in the training loop of the command line.

        If it fails, everything is as before.
        """
        if self.first:
            self.open()
        self.settle()
        settings, position, given = self.settings, self.entries["position"], None
        if isinstance(data, str | os.PathLike):
            settings, position = self._file_settings(os.fspath(data))
        else:
            given = Given(data)
            if given.peek() is None:
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
            raise SettingsError(f"{path}: give a file that ends in .csv, .jsonl or .ndjson, or rows.")
        position = self.entries["position"]
        if self.opened is None:
            return settings, position
        if settings.kind != self.settings.kind:
            kinds = f"the model has learned from {self.settings.kind}, and this is {settings.kind}"
            raise SettingsError(f"{path}: {kinds}. Read it into a data frame, and give that.")
        return settings, {"stream": afresh(position["stream"]), "left": position["left"]}

    def settle(self) -> None:
        """Update `entries` to this moment."""
        if self.opened:
            self.metrics.add_up(self.opened.score)
            self.entries |= {
                "position": {**self.entries["position"], "stream": self.opened.stream.position()},
                "tally": msgspec.structs.asdict(self.metrics.tally),
                "score": self.opened.score.state,
            }

    def save(self, path: Path) -> None:
        """Write the run as a folder that the command line can continue."""
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


class Metrics:
    """The tally and the lines of metrics of a run, and the rows that wait to be added to them."""

    def __init__(self, tally: Tally, lines: list[dict[str, Any]], every: int | None):
        self.tally, self.lines, self.every = tally, lines, every
        self._rows: list[tuple[Samples, Any, Any]] = []
        self._about_runs: list[dict[str, Any]] = []
        self._due = next_line(tally.samples, every)

    @property
    def samples(self) -> int:
        return self.tally.samples + len(self._rows)

    def note(self, row: tuple[Samples, Any, Any], score: Score, about_run: Callable[[], dict[str, Any]]) -> None:
        """Take one more row: its samples, losses and outputs, of length one. A line ends with `about_run()`."""
        self._rows.append(row)
        if self.samples == self._due:
            self._about_runs.append(about_run())
            self._due = next_line(self.samples, self.every)
        if len(self._rows) >= TOGETHER:
            self.add_up(score)

    def add_up(self, score: Score) -> None:
        """Add the waiting rows to the tally and the score, and write the lines that are due."""
        while self._rows:
            count = next_line(self.tally.samples, self.every) - self.tally.samples
            rows, self._rows = self._rows[:count], self._rows[count:]
            parts, losses, outputs = zip(*rows, strict=True)
            whole = jax.tree.map(lambda *made: np.concatenate([np.asarray(one) for one in made]), *outputs)
            scored = score.add(joined(parts), whole)
            self.tally.add(np.concatenate(losses).astype(np.float64) * score.scale, len(losses), scored)
            if len(rows) == count:
                self.lines.append({**self.tally.take(), **score.take(), **self._about_runs.pop(0)})

    def closing(self, score: Score, about_run: dict[str, Any]) -> dict[str, Any] | None:
        """The line of the interval so far, which continues; None if it is empty."""
        self.add_up(score)
        if not self.tally.interval[0]:
            return None
        before = deepcopy((self.tally, score.state))
        line = {**self.tally.take(), **score.take(), **about_run}
        self.tally, score.state = before
        return line


class RunInMemory:
    """What `fit` needs of a run folder, without files. `kept` is the run that was saved, its entries, and its lines."""

    def __init__(self, run: Any, entries: dict[str, Any]):
        self.entries, self.kept, self._lines = entries, None, []
        self.saved = SimpleNamespace(path=MEMORY, restore=lambda like: copied(run)) if entries else None

    def log(self, name: str) -> Any:
        return SimpleNamespace(write=self._lines.extend)

    def save(self, samples: int, run: Any, entries: dict[str, Any], after: Any, *, replaces: bool = True) -> None:
        self.kept = run, entries, list(self._lines)

    def wait(self) -> None:
        """Nothing is written in the background."""


# A learner and its compiled functions, shared by all models with the same settings and columns.
_built = lru_cache(maxsize=16)(build)
