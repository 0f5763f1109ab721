"""A run that lives in this process: it takes rows one at a time or many, and can be saved as a run folder."""

import os
from copy import deepcopy
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

from norewind import names
from norewind.cache import keep_compiled_from_now
from norewind.people.files import file_settings
from norewind.people.memory import Memory, arrays_of, filled
from norewind.people.scoring import Metrics
from norewind.people.table import Row, rows_of
from norewind.runs.build import Opened, build, open_stream, set_precision
from norewind.runs.fit import carry_norm, fit
from norewind.runs.folder import METRICS, Saved, read_log
from norewind.runs.hooks import Hooks, Intervals
from norewind.runs.metrics import Tally, Watch, digits
from norewind.runs.settings import Settings, SettingsError
from norewind.streams import Samples, StreamError
from norewind.streams.given import Given
from norewind.streams.parsing import FIRST_ROWS
from norewind.trees import copied


class Live:
    """A stream of rows, its learner and its run, under the settings of the command line.

    Columns are judged by the first rows, so these wait until there are enough of them or
    until somebody asks. `state` is what a checkpoint holds beside the run.
    """

    def __init__(self, settings: Settings, saved: Saved | None = None):
        set_precision(settings)
        keep_compiled_from_now()
        self.settings = settings
        self.home = saved.path.parent.parent.resolve() if saved else None
        entries = saved.entries if saved else {}
        self.state: dict[str, Any] = {name: entries[name] for name in ("seconds", "answered", "score") if entries}
        self.position: dict[str, Any] = entries.get("position", {"stream": None, "left": None})
        self.watch = entries.get("watch", asdict(Watch()))
        tally = Tally(**entries.get("tally", {}))
        lines = read_log(self.home / METRICS) if self.home else []
        lines = [line for line in lines if line["samples"] <= tally.samples]
        self.metrics, self.logged = Metrics(tally, lines, settings.metrics_every), len(lines)
        self.first: list[Row] = []
        self.opened: Opened | None = None
        self.run: Any = None
        if saved:
            self._restore(saved.restore)

    def _restore(self, restored: Any) -> None:
        """Open the stream at the position, with the run that `restored` makes of a fresh one."""
        self.given = Given(lasts=True)
        opened = open_stream(self.settings, self.position["stream"], source=self.given)
        self._build(opened)
        self.run = restored(self.built.run)
        opened.score.state = deepcopy(self.state["score"])
        self.opened = opened

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: everything but what opens again."""
        self.settle()
        gone = ("opened", "given", "built", "run")
        state = {name: value for name, value in self.__dict__.items() if name not in gone}
        return state | {"leaves": None if self.opened is None else arrays_of(self.run)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        leaves = state.pop("leaves")
        # A copy is another run: the folder stays that of the original.
        self.__dict__.update(deepcopy(state), opened=None, run=None, home=None)
        set_precision(self.settings)
        if leaves is not None:
            self._restore(lambda like: filled(like, leaves))

    def _build(self, opened: Opened) -> None:
        self.built = _built(
            replace(self.settings, source="", format="jsonl", inputs=(), targets=(), copy=()), opened.shape
        )

    def learn(self, row: Row) -> None:
        """Learn from one more row."""
        method = self.settings.method
        if method != names.AUTO and (window := names.parse_method(method).window) > 1:
            raise SettingsError(
                f"learn_one: the method {method} learns from windows of {window} rows. Use fit, or a method without "
                "windows."
            )
        if self.opened is None:
            self.first.append(row)
            if len(self.first) >= (1 if self.settings.inputs and self.settings.targets else FIRST_ROWS):
                self.open()
            return
        self.given.put(row)
        self._learn_next()

    def _learn_next(self) -> None:
        assert self.opened is not None
        try:
            samples = self.opened.stream.take(1)
        except StreamError:
            self.given.discard()  # the bad row must not stand in the way of the next one
            raise
        if samples is not None and len(samples.xs):
            learner = self.built.learner
            self.run, (losses, outputs) = learner.scan(self.run, samples.xs, samples.targets, outputs=True)
            self.metrics.note((samples, losses, outputs), self.opened.score, self._shown)

    def open(self, *, only_if: int = 1) -> bool:
        """Judge the columns by the rows that have come, if they are so many, and learn from them."""
        if self.opened is None and len(self.first) >= only_if:
            given = Given(self.first, lasts=True)
            try:
                opened = open_stream(self.settings, None, source=given)
                self._build(opened)
            except (StreamError, SettingsError):
                del self.first[-1]  # the newest one is refused, the others wait on
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

    def _shown(self) -> dict[str, Any]:
        """What a line of metrics says about the run."""
        carry = carry_norm(self.built.learner.carry(self.run))
        return {"carry": digits(carry), "seconds": self.state.get("seconds", 0.0)}

    def add_up(self) -> None:
        """Add rows that were learned one by one to the tally, the score and the lines of metrics."""
        if self.opened:
            self.metrics.add_up(self.opened.score)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of metrics."""
        self.add_up()
        return self.metrics.lines

    def closing(self) -> dict[str, Any] | None:
        """The line of the interval that has not ended."""
        return self.metrics.closing(self.opened.score, self._shown()) if self.opened else None

    @property
    def samples(self) -> int:
        return self.metrics.samples + len(self.first)

    def classes(self) -> list[str]:
        """The names of the classes that have come."""
        assert self.opened is not None
        return self.opened.stream.classes

    def run_now(self) -> Any:
        """The run after all rows, also those that wait for their window."""
        left = self.position["left"]
        return self.run if left is None else self.built.learner.forward(self.run, Samples(*left).xs)[0]

    def fit(self, data: Any, hooks: Hooks) -> None:
        """Learn from a file by its path, or from rows, in the training loop of the command line.

        If it fails, everything is as before.
        """
        if self.first:
            self.open()
        self.settle()
        settings, position = self.settings, self.position
        if isinstance(data, str | os.PathLike):
            settings, position, given = *file_settings(self, os.fspath(data)), None
        else:
            given = Given(rows_of(data))
            if given.peek() is None:
                return
        opened = open_stream(settings, position["stream"], source=given)
        with opened.stream:
            self.settings, before = settings, self.settings
            try:
                self._build(opened)
                memory = Memory(self.run if self.opened else None, self.entries(opened, position))
                fit(
                    opened.stream,
                    self.built.learner,
                    self.built.run,
                    window=self.built.window,
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
            self._keep(*memory.kept, memory.lines)

    def _keep(self, run: Any, entries: dict[str, Any], lines: list[dict[str, Any]]) -> None:
        self.state = {name: entries[name] for name in ("seconds", "answered", "score")}
        self.position, self.watch = entries["position"], entries["watch"]
        self.metrics = Metrics(Tally(**entries["tally"]), self.metrics.lines + lines, self.settings.metrics_every)
        self._restore(lambda like: run)

    def settle(self) -> None:
        """Note where everything stands."""
        self.add_up()
        if self.opened:
            self.position = {**self.position, "stream": self.opened.stream.position()}
            self.state["score"] = self.opened.score.state

    def entries(self, opened: Opened, position: dict[str, Any]) -> dict[str, Any]:
        """What a checkpoint of this moment holds beside the run; nothing before the first row."""
        if self.opened is None:
            return {}
        return deepcopy(
            {
                "seconds": self.state.get("seconds", 0.0),
                "position": {**position, "stream": opened.stream.position()},
                "answered": self.state.get("answered", 0),
                "tally": asdict(self.metrics.tally),
                "score": self.opened.score.state,
                "watch": self.watch,
            }
        )


_built = lru_cache(maxsize=16)(build)
"""A learner and its compiled functions, shared by all models with the same settings and columns."""
