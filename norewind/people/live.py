"""A run that lives in this process: it takes rows one at a time or many, and can be saved as a run folder."""

import os
from collections import deque
from copy import deepcopy
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import jax
import numpy as np

from norewind import names
from norewind.people.built import built_once
from norewind.people.feed import Feed, line_writer, row_of, rows_of
from norewind.runs.build import Opened, open_stream, set_precision
from norewind.runs.fit import Hooks, Intervals, fit
from norewind.runs.folder import RunFolder, Saved
from norewind.runs.metrics import Tally, Watch, mean
from norewind.runs.settings import SETTINGS, Settings, SettingsError
from norewind.streams import Samples, Source, StreamError, afresh

POINTS = 200
"""Lines of metrics for one `fit`, about, and how many of them are kept to be shown."""
BATCH = 256
"""Rows learned one by one whose losses wait to be added up together."""
Row = dict[str, Any]


class Live:
    """A stream of rows, its learner and its run, under the settings of the command line.

    Everything opens with the first row, since rows name the columns.
    """

    def __init__(self, settings: Settings, saved: Saved | None = None):
        if settings.precision == "double":
            set_precision(settings)
        self.settings, self.saved = settings, saved
        self.home = saved.path.parent.parent.resolve() if saved else None
        entries = saved.entries if saved else {}
        self.position: dict[str, Any] = entries.get("position", {"stream": None, "left": None})
        self.tally, self.watch = Tally(**entries.get("tally", {})), entries.get("watch", asdict(Watch()))
        self.seconds, self.score_state = entries.get("seconds", 0.0), entries.get("score")
        self.lines: deque[dict[str, Any]] = deque(maxlen=POINTS)
        self.opened: Opened | None = None
        self.run: Any = None
        """Packed, as `self.single` has it."""
        self._unscored: list[tuple[Samples, float]] = []
        if saved:
            self._open(Feed())

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: everything but what opens again."""
        self.add_up()
        gone = ("opened", "feed", "written", "learner", "single", "saved")
        state = {name: value for name, value in self.__dict__.items() if name not in gone}
        if self.opened:
            state["position"] = {**self.position, "stream": self.opened.stream.position()}
            state["score_state"] = self.opened.score.state
        return state | {"run": jax.tree.map(np.asarray, self.run)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, opened=None, saved=None)
        if self.run is not None:
            run = self.run
            self.run = None
            self._open(Feed())
            self.run = run

    def _open(self, feed: Any) -> Opened:
        opened = self.opened_at(self.position["stream"], feed)
        if self.run is None:
            built, self.single = built_once(replace(self.settings, source="", format="jsonl"), opened.shape)
            self.learner, self.window = built.learner, built.window
            self.run = self.single.pack(self.saved.restore(built.run) if self.saved else built.run)
        if self.score_state is not None:
            opened.score.state, self.score_state = self.score_state, None
        elif self.opened:
            opened.score.state = deepcopy(self.opened.score.state)
        self.opened, self.feed = opened, feed
        position = opened.stream.position()
        columns = position.get("columns", [])
        self.written = line_writer(self.settings.kind, columns, self.settings.delimiter)
        return opened

    def opened_at(self, position: Any, feed: Any, settings: Settings | None = None) -> Opened:
        return open_stream(settings or self.settings, position, source=feed)

    def learn(self, row: Any) -> None:
        method = self.settings.method
        if method != names.AUTO and (window := names.parse_method(method).window) > 1:
            raise SettingsError(
                f"learn_one: the method {method} learns from windows of {window} rows. Use fit, or a method without "
                "windows."
            )
        line = self._line(row)
        if self.opened is None:
            self._open(Feed([line]))
        else:
            self.feed.put(line)
        samples = self._taken()
        if len(samples.xs):
            loss = self._learned(samples)
            self._unscored.append((samples, loss))
            if len(self._unscored) >= BATCH:
                self.add_up()

    def _learned(self, samples: Samples) -> float:
        if self.samples < self.settings.horizon:
            self.run, _ = self.single.answer(self.run, samples.xs[0])
            return 0.0
        self.run, loss, _ = self.single.step(self.run, samples.xs[0], samples.targets[0])
        return loss

    def _line(self, row: Any) -> bytes:
        if self.opened is None and self.settings.kind != "jsonl":
            raise SettingsError("fit a file first: only then are its columns known.")
        return (self.written if self.opened else line_writer("jsonl", [], ","))(row_of(row))

    def _taken(self) -> Samples:
        assert self.opened is not None
        try:
            samples = self.opened.stream.take(1)
        except StreamError:
            # The bad row must not stand in the way of the next one.
            self._settle()
            self._reopen()
            raise
        assert samples is not None
        return samples

    def _reopen(self) -> None:
        """Open the stream at the position again, without what was not taken."""
        if self.position["stream"] is None:
            self.opened = self.run = None
        else:
            self._open(Feed())

    def _settle(self) -> None:
        """Note where the stream stands; before its first row, there is no such place."""
        if self.opened and "columns" in (position := self.opened.stream.position()):
            self.position = {**self.position, "stream": position}

    def peek(self, row: Any) -> Samples | None:
        """The sample that a row would be, without taking it; None before there is anything to compare it with."""
        if self.opened is None:
            return None
        position = self.opened.stream.position()
        if "columns" not in position:
            return None
        stream = self.opened_at(position, Feed([self._line(row)])).stream
        samples = stream.take(1)
        return samples if samples is not None and len(samples.xs) else None

    def entry(self, samples: Samples, outputs: Any) -> Row:
        """What the command line would write about one sample."""
        assert self.opened is not None
        outputs = jax.tree.map(lambda leaf: np.asarray(leaf)[None], outputs)
        return next(iter(self.opened.score.predictions(self.samples + 1, samples, outputs)))

    def predicted(self, row: Any) -> Row | None:
        """What the model says to a row; nothing is learned."""
        samples = self.peek(row)
        if samples is None:
            return None
        _, outputs = self.single.answer(self.run_now(), samples.xs[0])
        return self.entry(samples, outputs)

    def run_now(self) -> Any:
        """The run after all rows, also those that wait for their window."""
        run = self.run
        left = self.position["left"]
        for x in [] if left is None else Samples(*left).xs:
            run, _ = self.single.answer(run, x)
        return run

    def fit(self, data: Any, hooks: Hooks) -> None:
        """Learn from a file by its path, or from rows, in the training loop of the command line.

        If it fails, everything is as before.
        """
        self.add_up()
        self._settle()
        before = self.settings, self.position
        try:
            opened = self._open_data(data)
            if opened is not None:
                self._fit(opened, hooks, self._metrics_every(data))
        except BaseException:
            self.settings, self.position = before
            self._reopen()
            raise

    def _fit(self, opened: Opened, hooks: Hooks, every: int) -> None:
        before, total, average = 0, 0.0, None

        def on_chunk(samples, loss):
            nonlocal before, total
            total += loss * (samples - before)
            before = samples
            hooks.chunk(samples, loss)

        def on_metrics(line):
            nonlocal average
            average = line["mean"]
            self.lines.append({**line, "samples": line["samples"] + self.tally.samples})
            hooks.metrics(line)

        with opened.stream as stream:
            fitted = fit(
                stream,
                self.learner,
                self.single.unpacked(self.run),
                window=self.window,
                intervals=Intervals(metrics_every=every, checkpoint_every=None),
                score=opened.score,
                watch=self.settings.watch,
                hooks=replace(hooks, chunk=on_chunk, metrics=on_metrics),
            )
            self.position = {"stream": stream.position(), "left": None}
        self.run = self.single.pack(fitted.run)
        self.tally.samples += fitted.samples
        scored = round(total / average) if average else 0
        self.tally.all = [self.tally.all[0] + scored, self.tally.all[1] + total]
        self._open(Feed())

    def _open_data(self, data: Any) -> Opened | None:
        if isinstance(data, str | os.PathLike):
            return self._open_file(os.fspath(data))
        rows = iter(rows_of(data))
        if (top := next(rows, None)) is None:
            return None
        return self._open(Feed((self._line(row) for row in chain([top], rows)), lasts=False))

    def _metrics_every(self, data: Any) -> int:
        is_long = hasattr(data, "__len__") and not isinstance(data, str)
        return max(1, len(data) // POINTS) if is_long else Intervals().metrics_every

    def _open_file(self, path: str) -> Opened:
        settings = replace(self.settings, source=path, format="auto").settled()
        if self.opened is None:
            self.settings = settings
        elif settings.kind != self.settings.kind:
            raise SettingsError(
                f"{path}: the model has learned from {self.settings.kind}, and this is {settings.kind}. "
                "Read it into a data frame, and give that."
            )
        else:
            self.position = {"stream": afresh(self.position["stream"]), "left": None}
        if settings.kind not in ("csv", "jsonl"):
            raise SettingsError(f"{path}: give a file that ends in .csv, .jsonl or .ndjson, or rows.")
        self.settings = replace(self.settings, source=path)
        return self._open(Source(path))

    @property
    def samples(self) -> int:
        return self.tally.samples + len(self._unscored)

    def add_up(self) -> None:
        """Add the losses of rows that were learned one by one to those from before."""
        if not self._unscored:
            return
        assert self.opened is not None
        parts, losses = zip(*self._unscored, strict=True)
        self._unscored = []
        samples: Samples = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        scored = self.opened.score.add(samples)
        self.tally.add(np.array(losses) * self.opened.score.scale, len(losses), scored)

    @property
    def mean_loss(self) -> float | None:
        self.add_up()
        return mean(self.tally.all)

    def save(self, path: Path) -> None:
        """Write the run as a folder that the command line can go on with."""
        if self.opened is None:
            raise SettingsError("there is nothing to save yet: fit the model, or let it learn some rows.")
        self.add_up()
        self._settle()
        holds_this = path.resolve() == self.home
        with RunFolder(path, keep=self.settings.keep, new=not holds_this) as folder:
            if (path / SETTINGS).exists() and not holds_this:
                raise SettingsError(f"{path} already holds a run. Choose another folder.")
            folder.begin(self.settings)
            entries = {
                "seconds": self.seconds,
                "position": self.position,
                "answered": 0,
                "tally": asdict(self.tally),
                "score": self.opened.score.state,
                "watch": self.watch,
            }
            folder.save(self.samples, self.single.unpacked(self.run), entries, lambda path: None)
        self.home = path.resolve()
