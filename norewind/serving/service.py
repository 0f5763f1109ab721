"""The service: it predicts rows, learns from rows in a separate thread, joins late labels, and reports its status."""

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from norewind.errors import Diverged
from norewind.serving.bodies import RequestError, busy_error
from norewind.serving.forecast_requests import ForecastRequest, LearnerRequests
from norewind.serving.late_labels import LateLabels
from norewind.serving.page_content import PageContent, about
from norewind.serving.queues import IncomingRows, PredictionQueue, seconds_per_row
from norewind.serving.row_model import KeyedModel, RowModel, SeriesModel, rows_so_far
from norewind.storage.checkpoint import Writer, samples_of
from norewind.streams.stream import BadRow
from norewind.streams.table.columns import nested_value
from norewind.training.folder import RunFolder, saved_run
from norewind.training.hooks import Hooks
from norewind.training.log import METRICS, read_log
from norewind.training.settings import Settings, SettingsError
from norewind.training.train_folder import train_folder
from norewind.training.training_loop import Training

# How long the learning thread may hold the GIL while an answer waits (in seconds). A request releases the GIL at every
# system call, and waits this long to get it back.
SWITCH_SECONDS = 0.0005
# Rows that wait for their labels are saved this long after they have changed (in seconds), or later if saving takes
# more than a twentieth of the time.
SAVE_SECONDS = 1.0
# The longest time that /learn?wait=1 waits (in seconds).
MAX_WAIT_SECONDS = 60
FLUSH_SECONDS = 0.01
ENDED_ANSWER = {"error": "learning ended before this row was learned from."}


class Service:
    """A run that predicts rows, and learns from rows as `norewind train` does.

    The constructor locks the folder, starts the learning thread and compiles everything before the event loop
    starts, so that errors end the command. After that, public methods may be called only in the event loop.

    Args:
        folder: the run folder.
        max_queue: the largest number of rows that may wait to be learned from.
        max_unlabeled: the largest number of rows that may wait for their labels.
        drain_seconds: how long `stop` learns from accepted rows before it drops the rest.

    Raises:
        SettingsError: the run cannot be served.

    Attributes:
        accepted, learned, durable: the number of rows accepted, learned from, and saved in a checkpoint.
        problem: why the run no longer learns; None while it does.
        error: the exception that ended learning, other than divergence.
        model: the answers of the run.
        page: the content of the live page.
        loop: the event loop, set when it starts.
        streams: the tasks that read the bodies of open streams.
    """

    model: RowModel
    training: Training
    labels: LateLabels

    def __init__(
        self, folder: Path, *, max_queue: int = 4096, max_unlabeled: int = 10_000, drain_seconds: float = 20.0
    ):
        self.folder = folder
        self._settings = settings_to_serve(folder)
        self._max_unlabeled = max_unlabeled
        self._drain_seconds = drain_seconds
        self.page = PageContent(about(folder), read_log(folder / METRICS), self.status)
        self.incoming = IncomingRows(max_queue)
        self.accepted = self.learned = self.durable = self.predicted = 0
        self.problem: str | None = None
        self.error: BaseException | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.streams: set[asyncio.Task] = set()
        self._answers: dict[int, asyncio.Future] = {}
        self._requests = LearnerRequests()
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._writer: Writer | None = None
        self._save_error: OSError | None = None
        sys.setswitchinterval(SWITCH_SECONDS)
        self._thread = threading.Thread(target=self._learn, name="learning")
        self._thread.start()
        self._ready.wait()
        if self.error is not None:
            raise self.error
        try:
            self._queue = PredictionQueue(self.model.answers, seconds_per_row(self.model.warm_up))
        except BaseException:
            self.close()  # otherwise the process would wait for the learning thread forever
            raise
        # A garbage collection that visits all objects of JAX takes a tenth of a second.
        gc.collect()
        gc.freeze()

    # In the learning thread.

    def _learn(self) -> None:
        hooks = Hooks(
            begin=self._begin,
            metrics=lambda line: self._call_soon(self.page.add_metrics, line),
            checkpoint=self._note_checkpoint,
            predictions=self._publish,
            should_stop=self._should_stop,
        )
        try:
            with RunFolder(self.folder, mode="resume") as folder:
                train_folder(self._settings, folder, continues=True, source=self.incoming, hooks=hooks)
            self.durable = self.learned
        except Diverged as error:
            self.problem = f"the run diverged: {error.reason}"
            self.model.restore_kept()
        except BaseException as error:
            self.error = error
            self.problem = f"learning ended: {error}"
        finally:
            self.incoming.close()
            self._ready.set()
            self._call_soon(self._end_answers)

    def _begin(self, training: Training) -> None:
        assert training.folder
        self.training = training
        self.accepted = self.learned = self.durable = rows_so_far(training)
        self.model = (SeriesModel if self._settings.key is None else KeyedModel)(training, self._settings)
        columns = self.model.stream.used_columns
        self.labels = LateLabels(self.folder, columns, most=self._max_unlabeled, durable=self.durable)
        # Before the checkpoint: after a kill in between, a label that it contains must not be learned again.
        training.folder.before_checkpoints(lambda _: self.labels.save())
        self._writer = training.folder.writer
        self._ready.set()

    def _should_stop(self) -> bool:
        """Return whether to stop learning.

        Raises:
            OSError: a checkpoint, or the rows that wait for their labels, could not be saved.
        """
        if self._save_error:
            raise self._save_error
        if self._writer:
            self._writer.check()
        self._requests.answer_all(self._call_soon)
        return self._stop.is_set()

    def _publish(self, entries: list[dict[str, Any]]) -> None:
        self.model.publish()
        self.learned = rows_so_far(self.training)
        self._call_soon(self._add_rows, entries)

    def _note_checkpoint(self, path: Path) -> None:
        """Remember that a checkpoint was written. Runs in the thread that writes it."""
        if self.training.is_healthy():
            self.model.keep(samples_of(path))
        self.labels.forget(samples_of(path))
        # The checkpoint also contains rows that wait for their window, but the number in its name excludes them.
        self.durable = max(self.durable, samples_of(path))

    def _call_soon(self, call: Callable, *arguments: Any) -> None:
        """Call in the event loop, without waiting for it."""
        if self.loop and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(call, *arguments)

    # In the event loop.

    def _add_rows(self, entries: list[dict[str, Any]]) -> None:
        self.page.add_rows(entries)
        for entry in entries:
            if answer := self._answers.pop(entry["sample"], None):
                answer.set_result(entry)

    def _end_answers(self) -> None:
        for answer in self._answers.values():
            answer.set_result(ENDED_ANSWER)
        self._answers.clear()
        self._requests.end()

    def _future_answer(self, number: int) -> asyncio.Future:
        """Return the future answer to an accepted row. Several tasks may await it, so it must not be cancelled."""
        return self._answers.setdefault(number, asyncio.get_running_loop().create_future())

    def read(self, row: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Return a row as the stream reads it, and its line.

        Args:
            row: values by column, as the client sent them.

        Raises:
            RequestError: the row is bad.
        """
        try:
            read, line = self.model.stream.read_back(row)
        except BadRow as problem:
            raise RequestError(400, f"the row is bad: {problem}.") from None
        # Without the other columns, since as Python objects they may take twenty times the memory of the line.
        return {name: nested_value(read, name) for name in self.model.stream.used_columns}, line

    def _accept(self, rows: list[tuple[dict[str, Any], bytes]], *, at_once: bool = False) -> bool:
        if self.problem:
            raise RequestError(503, f"the run no longer learns: {self.problem}")
        with self.labels.lock:  # not even a second Ctrl-C may come between accepting and counting
            accepted = self.incoming.add(rows, at_once=at_once)
            self.accepted += len(rows) if accepted else 0
        return accepted

    async def predict(self, rows: Sequence[dict[str, Any]], ids: Sequence[str | None]) -> list[dict[str, Any]]:
        """Predict rows from the current state.

        Args:
            rows: rows by column.
            ids: ids of rows whose remaining columns will be sent later; None for the others.

        Returns:
            An entry like a line of predictions.jsonl for each row.

        Raises:
            RequestError: a row is bad, or too many rows are waiting.
        """
        read = [self.read(row)[0] for row in rows]
        answers = [await future for future in self._queue.ask(read)]
        for id, row, answer in zip(ids, rows, answers, strict=True):
            if id is not None:
                self.labels.add(id, row)
                answer["id"] = id
        self.predicted += len(rows)
        return answers

    async def forecast(self, wanted: ForecastRequest) -> list[dict[str, Any]]:
        """Forecast the next rows from everything learned so far.

        Args:
            wanted: which rows to forecast.

        Returns:
            One entry per row, as `norewind forecast` prints them.

        Raises:
            RequestError: the run cannot forecast this, no longer learns, or is too busy.
        """
        if self.problem or not self._thread.is_alive():
            raise RequestError(503, f"the run no longer learns: {self.problem}")
        if self._settings.key is None and wanted.key is None:
            return await self._requests.ask(partial(self.model.forecast, wanted))
        try:
            return self.model.forecast(wanted)
        except SettingsError as error:
            raise RequestError(400, str(error)) from None

    async def explain(self, step: int | None) -> dict[str, Any]:
        """Explain the latest forecast; see `explain_training`.

        Args:
            step: how many rows ahead it is; None for the nearest step.

        Raises:
            RequestError: the run cannot be explained, no longer learns, or is too busy.
        """
        if self.problem or not self._thread.is_alive():
            raise RequestError(503, f"the run no longer learns: {self.problem}")
        return await self._requests.ask(partial(self.model.explain, list(self.page.metrics), step))

    def learn(self, rows: Sequence[dict[str, Any]], ids: Sequence[str | None]) -> int:
        """Accept rows to learn from, all or none.

        Args:
            rows: rows by column.
            ids: ids of rows without labels that these complete; None for rows that are already complete.

        Returns:
            The number of the last row.

        Raises:
            RequestError: a row is bad, no row waits with that id, the queue is full, or the run no longer learns.
        """
        named = [id for id in ids if id is not None]
        if len(set(named)) < len(named):
            raise RequestError(400, "an id appears twice.")
        complete = [row if id is None else self.labels.complete(id, row) for id, row in zip(ids, rows, strict=True)]
        read = [self.read(row) for row in complete]
        with self.labels.lock:
            if not self._accept(read):
                raise busy_error(f"{len(self.incoming)} rows wait to be learned from")
            for number, id in enumerate(ids, self.accepted - len(rows) + 1):
                if id is not None:
                    self.labels.accept(id, number)
        return self.accepted

    async def wait_until_learned(self, number: int) -> None:
        """Wait until a row has been learned from or learning has ended, but no longer than a minute.

        Args:
            number: the number of the row.
        """
        if self.learned < number and not self.problem:
            await asyncio.wait([self._future_answer(number)], timeout=MAX_WAIT_SECONDS)

    async def follow(self, row: dict[str, Any]) -> asyncio.Future:
        """Accept a row to predict and learn from, waiting while the queue is full.

        Args:
            row: values by column, as the client sent them.

        Returns:
            A future for its answer, which is set after learning from it.

        Raises:
            RequestError: the row is bad, or the run no longer learns.
        """
        read = self.read(row)
        while not self._accept([read], at_once=True):
            await self.wait_until_learned(self.learned + 1)
        return self._future_answer(self.accepted)

    def row_counts(self) -> dict[str, int]:
        """Return the number of rows accepted, learned from, and saved."""
        return {"accepted": self.accepted, "learned": self.learned, "durable": self.durable}

    def status(self) -> dict[str, Any]:
        """Return the state of the service, as `/health` reports it."""
        return {
            **self.row_counts(),
            "samples": self.learned,
            "predicted": self.predicted,
            "waiting": len(self.labels),
            "queue": len(self.incoming),
            "divergence": self.problem or ("suspicious" if self.training.divergence.bad else "healthy"),
            "diverged": bool(self.problem),
        }

    def end(self) -> None:
        """End requests that would not end on their own. Lines that were already sent are still answered."""
        self.page.end()
        for task in self.streams:
            task.cancel()

    async def save_labels(self) -> None:
        """Save the rows that wait for their labels soon after they change, until cancelled or saving fails."""
        pause = SAVE_SECONDS
        while self._save_error is None:
            await asyncio.sleep(pause)
            began = time.perf_counter()
            try:
                await asyncio.to_thread(self.labels.save)
            except OSError as error:
                self._save_error = error
            pause = max(SAVE_SECONDS, 20 * (time.perf_counter() - began))

    async def stop(self) -> None:
        """Learn from the accepted rows, unless that takes too long, save, and release the folder."""
        self.incoming.close()
        await asyncio.to_thread(self._thread.join, self._drain_seconds)
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Stop learning, save, and release the folder.

        Raises:
            OSError: the rows that wait for their labels could not be saved.
        """
        self._stop.set()
        self.incoming.close()
        self._thread.join()
        self.model.close()
        self.labels.save()


def settings_to_serve(folder: Path) -> Settings:
    """Return the settings of a run, adapted to rows from requests.

    Raises:
        SettingsError: the run cannot be served.
    """
    settings, _ = saved_run(folder)
    problem = None
    if not settings.has_rows:
        problem = "predicts symbols, and only runs on rows can be served"
    elif settings.share:
        problem = "has one model for all keys, which answers only while it learns"
    if problem:
        raise SettingsError(
            f"{folder} {problem}. Use a topic (docs/kafka.md), or a pipe: norewind train - --flush 1 --predictions "
            f"stdout. For the live page, use: norewind watch {folder}"
        )
    written = "file" if settings.predictions == "file" else "none"
    return replace(
        settings, samples=None, flush=FLUSH_SECONDS, final=False, bad="stop", predictions=written, tensorboard=False
    )
