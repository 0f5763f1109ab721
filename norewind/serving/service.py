"""What the service does: answers rows, accepts rows to learn from, joins late labels, and reports its status."""

import asyncio
import contextlib
import gc
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from norewind.runs.fit import Hooks
from norewind.runs.folder import METRICS, read_log
from norewind.serving.batches import Batches, seconds_per_row
from norewind.serving.bodies import Refusal, busy
from norewind.serving.feed import Feed, about
from norewind.serving.labels import Labels
from norewind.serving.learning import Learning, samples_in

# How long the learning thread may keep Python to itself while an answer waits (in seconds). A request gives Python
# away at every system call, and waits this long to get it back.
SWITCH = 0.0005
# How long the rows that were accepted may take to be learned from when the service ends (in seconds).
DRAIN = 20.0


class Service:
    """A run that answers and learns. All methods belong to the event loop, except for those that hooks call.

    Holds the folder and compiles everything. This happens before the event loop, so that mistakes end the command.

    Args:
        folder: the run folder.
        queue: the largest number of rows that wait to be learned from.
        waiting: the largest number of rows that wait for their labels.
    """

    def __init__(self, folder: Path, *, queue: int = 4096, waiting: int = 10_000):
        self.feed = Feed(about(folder), read_log(folder / METRICS))
        self.loop: asyncio.AbstractEventLoop | None = None
        self.streams: set[asyncio.Task] = set()
        self.predicted = 0
        self._expected: dict[int, asyncio.Future] = {}
        self._progress = asyncio.Event()
        sys.setswitchinterval(SWITCH)
        metrics, lines = self._later(self.feed.add_metrics), self._later(self._add_lines)
        hooks = Hooks(metrics=metrics, lines=lines, checkpoint=self._saved)
        self.learning = Learning(folder, queue, hooks, self._later(self._ended))
        self.learning.start()
        self.model = self.learning.model
        try:
            self.batches = Batches(self.model.answers, seconds_per_row(self.model.warm_up))
            self.labels = Labels(folder, waiting, self.learning.durable)
        except BaseException:
            self.close()  # or the process would wait for the learning thread forever
            raise
        self.feed.status = self.status
        # What is there stays: a collection that goes through all of JAX takes a tenth of a second.
        gc.collect()
        gc.freeze()

    def close(self) -> None:
        """Let go of the folder in any case."""
        self.learning.stop()
        self.learning.join()
        self.model.close()

    def _later(self, call: Callable) -> Callable:
        """The same call in the event loop; the learning thread does not wait for it."""

        def schedule(*arguments):
            if self.loop and not self.loop.is_closed():
                self.loop.call_soon_threadsafe(call, *arguments)

        return schedule

    def _add_lines(self, entries: list[dict[str, Any]]) -> None:
        self.feed.add_rows(entries)
        for entry in entries:
            future = self._expected.pop(entry["sample"], None)
            if future and not future.done():
                future.set_result(entry)
        self._progressed()

    def _progressed(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    def _ended(self) -> None:
        """Nothing more is learned, so nobody needs to wait for it."""
        for future in self._expected.values():
            future.cancel()
        self._expected.clear()
        self._progressed()

    def _saved(self, path: Path) -> None:
        """In the thread that writes checkpoints: the event loop must not wait for a disk."""
        self.labels.save()
        self._later(self.labels.forget)(samples_in(path))

    async def predict(self, rows: Sequence[dict[str, Any]], ids: Sequence[str | None]) -> list[dict[str, Any]]:
        """Answer rows from the present state. Those with an id wait for the rest of them from now on."""
        read = [self.model.read(row)[0] for row in rows]
        answers = [await future for future in self.batches.ask(read)]
        for id, row, answer in zip(ids, rows, answers, strict=True):
            if id is not None:
                self.labels.add(id, row)
                answer["id"] = id
        self.predicted += len(rows)
        return answers

    def learn(self, rows: Sequence[dict[str, Any]], ids: Sequence[str | None]) -> int:
        """Accept rows, all or none, and return the number of the last."""
        named = [id for id in ids if id is not None]
        if len(set(named)) < len(named):
            raise Refusal(400, "the same id is there twice.")
        whole = [row if id is None else self.labels.whole(id, row) for id, row in zip(ids, rows, strict=True)]
        last = self._accept([self.model.read(row) for row in whole])
        if last is None:
            raise busy(f"{len(self.learning.incoming)} rows wait to be learned from")
        for number, id in enumerate(ids, last - len(rows) + 1):
            if id is not None:
                self.labels.done(id, number)
        return last

    def _accept(self, rows: list[tuple[dict[str, Any], bytes]], *, hurry: bool = False) -> int | None:
        """The number of the last row; None if there are too many."""
        if self.learning.problem:
            raise Refusal(503, f"nothing more is learned: {self.learning.problem}")
        return self.learning.add(rows, hurry=hurry)

    async def until_learned(self, number: int) -> None:
        """Wait for a row to be learned from, but not longer than a minute."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60):
                while self.learning.learned < number and not self.learning.problem:
                    await self._progress.wait()

    async def follow(self, row: dict[str, Any]) -> asyncio.Future:
        """Predict a row and learn from it, in its turn: the answer to come."""
        read = self.model.read(row)
        while (number := self._accept([read], hurry=True)) is None:
            await self._progress.wait()  # the sender has to wait too
        self._expected[number] = future = asyncio.get_running_loop().create_future()
        return future

    def standing(self) -> dict[str, Any]:
        """Up to which row the run has accepted, learned, and saved."""
        return {name: getattr(self.learning, name) for name in ("accepted", "learned", "durable")}

    def status(self) -> dict[str, Any]:
        learning = self.learning
        return {
            **self.standing(),
            "samples": learning.learned,
            "predicted": self.predicted,
            "waiting": len(self.labels.waiting),
            "queue": len(learning.incoming),
            "watch": learning.problem or ("suspicious" if learning.training.watch.bad else "healthy"),
            "diverged": bool(learning.problem),
        }

    def end(self) -> None:
        """End requests that would not end by themselves. What streams have read is still answered."""
        self.feed.end()
        for task in self.streams:
            task.cancel()

    async def stop(self) -> None:
        """Learn what was accepted, save it, and let go of the folder."""
        self.learning.stop(drain=True)
        if not await asyncio.to_thread(self.learning.join, DRAIN):
            self.learning.stop()
            await asyncio.to_thread(self.learning.join)
        self.labels.forget(self.learning.durable)
        self.labels.save()
