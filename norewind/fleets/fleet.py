"""A fleet: a learner with a run for every key, whose samples come in any order."""

from copy import copy
from typing import Any, NamedTuple

import jax
import numpy as np

from norewind import checks
from norewind.checkpoint import LARGEST
from norewind.estimator import Loss
from norewind.fleets.private import Private
from norewind.fleets.scaling import beside as scaling_of
from norewind.fleets.scaling import delayed, scaled_by_key, segments, sorted_by_key
from norewind.fleets.shared import Shared
from norewind.fleets.slots import Slots
from norewind.streams.scaling import Layout
from norewind.streams.stream import Keyed, Samples
from norewind.trees import Tree

MEMORY = 1_000_000_000
"""Bytes for resident keys, if their number is not given."""
CHUNK = 1 << 17
"""Rows that are sorted by key at a time: the more, the more samples of a key are learned in a row."""
ROWS = 1 << 26
"""Numbers in the rows of a chunk: wide rows make shorter ones."""


class FleetRun(NamedTuple):
    """What the keys of a fleet share: parameters and optimizer, or nothing. The rest is in the fleet and its folder."""

    shared: Tree


def fleet(
    learner: Any,
    run: Any,
    *,
    share: bool = False,
    resident: int | None = None,
    window: int = 256,
) -> "Fleet":
    """A learner with one run for every key: keys appear at any time, and their samples come in any order.

    Without `share`, every key has a model of its own, which starts from `run`, and learns as
    `learner` alone would from its samples. With `share`, all keys teach one model: the keys
    that have a sample in a window of `window` samples make one step of `norewind.parallel`
    together, with a state and a carry each; what is left of a key's samples makes the next.

    Args:
        learner: what learns, from `online`; without `share`, also `LeastSquares`.
        run: where a key starts from, e.g. from `learner.init`.
        share: one model for all keys.
        resident: the keys in memory; those silent longest are on disk. By default as many as fit 1 GB.
        window: with `share`, the samples that are looked at together.

    >>> import jax, numpy as np, norewind
    >>> cell = norewind.cells.gru(inputs=1, hidden=4, outputs=1, symbols=False)
    >>> estimator = norewind.bptt(cell.transition, norewind.losses.squared_error)
    >>> learner = norewind.online(estimator, norewind.adam(1e-2))
    >>> start = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    >>> sensors = norewind.fleet(learner, start)
    >>> keys, xs = [b"north", b"south"] * 100, np.ones((200, 1), np.float32)
    >>> run, losses = sensors.scan(sensors.init(), norewind.Keyed(keys, xs), xs)
    >>> sensors.keys, bool(losses[-1] < losses[0])
    (2, True)
    """
    return Fleet(learner, run, share=share, resident=resident, window=window)


class Fleet:
    """What `fleet` returns. With a `table`, its inputs are raw rows, which it standardises key by key."""

    def __init__(
        self,
        learner: Any,
        run: Any,
        *,
        share: bool = False,
        resident: int | None = None,
        horizon: int = 0,
        loss: Loss | None = None,
        window: int = 256,
        table: Layout | None = None,
        row: tuple[int, int] | None = None,
    ):
        if horizon and (loss is None or row is None):
            raise checks.ModelError("fleet: a horizon needs the loss, and the numbers of inputs and outputs (row).")
        self.share, self.horizon, self.window, self.table = share, horizon, window if share else 1, table
        self.loss = None if loss is None else jax.jit(jax.vmap(loss))
        start = run._replace(ahead=run.state) if horizon else run
        kind = Shared if share else Private
        self.engine = kind(learner, start, self.window)
        beside = {"samples": np.zeros((), np.int64), "errors": np.zeros(4)}
        if row is not None and horizon:
            numbers = np.asarray(jax.numpy.zeros(row[1]))
            beside |= {"xs": np.zeros((horizon, row[0]), np.float32), "outputs": np.tile(numbers, (horizon, 1))}
        beside |= {} if table is None else scaling_of(table)
        example = Slots(self.engine.own(start), beside, 1)
        most = max(2 * self.window, MEMORY // example.dtype.itemsize) if resident is None else resident
        if resident is not None and share and resident < window:
            raise checks.ModelError(f"fleet: {resident} resident keys are fewer than a window of {window} can have.")
        checks.at_least_one("fleet: resident", most)
        self.slots = Slots(self.engine.own(start), beside, most)
        width = sum(np.size(part) for part in beside.values()) + 32
        self.chunk = max(self.window, min(CHUNK, ROWS // width) // self.window * self.window)
        self.samples = 0
        self._folder: Any = None

    @property
    def keys(self) -> int:
        """The number of resident keys."""
        return len(self.slots)

    def init(self) -> FleetRun:
        return FleetRun(self.engine.init())

    def scan(self, run: FleetRun, xs: Keyed, targets: Any = None, *, count: int | None = None, outputs: bool = False):
        """Learn from samples of any keys, in their order: `(run, losses)`, or `(run, (losses, outputs))`.

        The runs of the keys change in the fleet itself. `count` is the number of windows, or
        of samples where there are none. `outputs` are those at the samples; with a horizon,
        `(made, due)`, as `Ahead` has them; with a table, `(made, due, samples)`.
        """
        keys = list(xs.keys)
        rows = len(keys) if count is None else count * self.window
        rows = rows // self.window * self.window
        step = (
            rows if len(set(keys[:rows])) <= self.slots.resident else self.slots.resident // self.window * self.window
        )
        pieces = []
        for start in range(0, rows, max(1, step)):
            part = slice(start, min(start + step, rows))
            inner, target = (jax.tree.map(lambda leaf: np.asarray(leaf)[part], tree) for tree in (xs.xs, targets))  # noqa: B023
            run, piece = self._piece(run, keys[part], inner, target)
            pieces.append(piece)
        if not pieces:
            raise ValueError(f"fleet: there is no sample in {len(keys)} keys; a window has {self.window}.")
        losses, *made = jax.tree.map(lambda *parts: np.concatenate(parts), *pieces)
        losses = losses if self.window == 1 else losses.reshape(-1, self.window).sum(axis=1)
        out = made[0] if len(made) == 1 else tuple(made)
        return run, (losses, out) if outputs else losses

    def _piece(self, run: FleetRun, keys: list[bytes], xs: Tree, targets: Tree) -> tuple[FleetRun, tuple]:
        """Samples of no more keys than may be resident."""
        places = self.slots.places(keys, self.samples)
        order, parts, records = *sorted_by_key(places, self.slots.resident), self.slots.rows
        samples = None if self.table is None else scaled_by_key(self.table, records, parts, xs[order])
        if samples is not None:
            xs, targets = samples.xs, samples.targets
        else:
            xs, targets = (jax.tree.map(lambda leaf: leaf[order], tree) for tree in (xs, targets))
        seen = records["samples"][parts.places]
        idle = np.clip(self.horizon - seen, 0, parts.counts)
        newest, learned = None, xs
        if self.horizon:
            newest = xs
            learned, records["xs"][parts.places] = delayed(records["xs"][parts.places], xs, parts, self.horizon)
        shared, made, losses = self.engine.learn(run.shared, self.slots, parts, (learned, targets, newest), idle, order)
        records["samples"][parts.places] = seen + parts.counts
        self.samples += len(keys)
        found: tuple = (made,)
        if self.horizon:
            assert made is not None
            due, records["outputs"][parts.places] = delayed(records["outputs"][parts.places], made, parts, self.horizon)
            losses = np.where(parts.turn < self.horizon - seen[parts.key], 0, self._losses(due, targets))
            found = (made, due)
        elif samples is not None:
            found = (made, made)
        if samples is not None:
            self._tally(parts, found[1], samples)
            found = (*found, samples)
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return FleetRun(shared), jax.tree.map(lambda leaf: leaf[back], (losses, *found))

    def answer(self, records: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, Samples]:
        """What `scan` would return as outputs for raw rows, each as the next of the key with this record; without
        learning. For keys that share nothing."""
        assert isinstance(self.engine, Private)
        assert self.table is not None
        records = records.copy()
        samples = scaled_by_key(self.table, records, segments(np.arange(len(rows))), rows)
        made = self.engine.answer(self.slots.leaves(records), samples.xs)
        return made, records["outputs"][:, 0] if self.horizon else made, samples

    def rehearse(self, run: FleetRun) -> None:
        """Compile what learning needs, with a key of its own."""
        assert self.table is not None
        fleet, rows = copy(self), self.horizon + 1
        fleet.slots = self.slots.another(max(self.window, 1))
        layout = self.table
        xs, targets = np.zeros((rows, layout.columns)), np.zeros((rows, len(layout.targets)))
        fleet.scan(run, Keyed([b""] * rows, xs), targets)

    def _losses(self, due: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """The losses of forecasts. The arrays are filled up to a power of two, so that few sizes are compiled."""
        assert self.loss is not None
        size = max(4096, 1 << (len(due) - 1).bit_length())
        fill = [
            np.concatenate([part, np.zeros((size - len(part), *part.shape[1:]), part.dtype)]) for part in (due, targets)
        ]
        return np.asarray(self.loss(*fill))[: len(due)]

    def _tally(self, parts: Any, due: np.ndarray, samples: Samples) -> None:
        """Add up the squared errors of every key, row after row: the model's, the last value's and the mean's."""
        assert samples.last is not None
        targets = samples.targets.astype(np.float64)
        means = due[:, : targets.shape[1]]
        errors = np.stack([targets - means, targets - samples.last, targets], axis=1)
        known = ~np.isnan(errors).any(axis=(1, 2))
        squares = np.mean(errors[known] ** 2, axis=2)
        rows = np.concatenate([np.ones((len(squares), 1)), squares], axis=1)
        sums = self.slots.rows["errors"][parts.places]
        np.add.at(sums, parts.key[known], rows)
        self.slots.rows["errors"][parts.places] = sums

    def carry(self, run: FleetRun) -> Tree:
        """Nothing: what keys carry is their own."""
        return ()

    def keep_in(self, folder: Any, samples: int) -> None:
        """Keep the keys in a run folder, as they were at its checkpoint after this many samples."""
        self.slots.keep_in(folder.path, samples)
        self.samples, self._folder = samples, folder
        folder.at_end(self.close)

    def settle(self, samples: int) -> None:
        """Write the keys that have changed, before the checkpoint file that makes them count."""
        self.slots.settle(samples, self._folder.oldest)
        if self.slots.store.size > LARGEST:
            self._folder.writer.keep = 1

    def close(self) -> None:
        self.slots.close()
