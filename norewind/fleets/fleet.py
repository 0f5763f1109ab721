"""A fleet: a learner with a separate run for every key. Samples of different keys may arrive in any order."""

from copy import copy
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from norewind.core import checks
from norewind.core.trees import Tree, concatenated
from norewind.engines.kernels import kernel
from norewind.fleets.slots import Slots
from norewind.learners.learner import Learner
from norewind.storage.checkpoint import MAX_CHECKPOINT_BYTES
from norewind.streams.stream import Keyed, Samples
from norewind.streams.table.scaling import SeriesStatistics, TableLayout, nothing_known, scaled

# Bytes for resident keys, if their number is not given.
RESIDENT_BYTES = 1_000_000_000
# The most numbers in one chunk: if rows are wide, chunks have fewer of them.
MAX_CHUNK_NUMBERS = 1 << 26


class Engine(Protocol):
    """The interface for running a learner for many keys, as returned by `Learner.for_keys`.

    Attributes:
        own: the initial arrays that every key has for itself, by name.
        shared: the initial value of everything that all keys share.
        chunk_size: the number of rows to pass at a time.
        any_order: whether the results of a key do not depend on other keys, not even by rounding, so that only the rows
            of each key need to be in order.
    """

    own: dict[str, np.ndarray]
    shared: Tree
    chunk_size: int
    any_order: bool

    def learn(
        self, shared: Tree, arrays: dict[str, np.ndarray], places: np.ndarray, xs: Tree, targets: Tree
    ) -> tuple[Tree, np.ndarray, Any, Any]:
        """Learn from rows, in order.

        Args:
            shared: the part that all keys share; it must not be used afterwards.
            arrays: the arrays that keys have for themselves, with one entry per slot along the leading axis; changed in
                place.
            places: the slot of each row's key.
            xs: the inputs of the rows.
            targets: their targets.

        Returns:
            The new shared part, the losses, the outputs made at the rows, and the earlier outputs for these rows.
        """
        ...

    def answer(self, arrays: dict[str, np.ndarray], xs: Tree) -> tuple[Any, Any]:
        """Return the outputs that `learn` would give if row i were the next row of key i.

        Args:
            arrays: the arrays of the keys, with one entry per row; they must not be used afterwards.
            xs: the inputs of the rows.

        Returns:
            The outputs made at the rows, and the earlier outputs for these rows.
        """
        ...

    def upcoming(self, record: np.ndarray) -> np.ndarray:
        """Return the forecasts of the next rows of a key; see `Learner.upcoming`.

        Args:
            record: the record of the key.
        """
        ...


class FleetRun(NamedTuple):
    """The part of a fleet that all keys share. Everything else is in the fleet and its folder.

    Attributes:
        shared: parameters and optimizer state, or nothing.
    """

    shared: Tree


class Fleet(Learner):
    """A learner with one run per key. New keys may appear at any time, and samples may arrive in any order.

    Without `share`, every key has its own model, which starts from `run` and learns exactly as
    `learner` alone would from that key's samples. With `share`, all keys train one model, sample by
    sample in the order of arrival, and each key has its own state and carry.

    Args:
        learner: the learner of each key: from `online`, `Ahead` to forecast later rows, or, without `share`,
            `LeastSquares`.
        run: the run that every key starts from, e.g. from `learner.init`.
        share: whether all keys share one model.
        resident: the number of keys in memory; the keys that have been silent longest are on disk. By default, as many
            as fit into 1 GB.
        table: the columns of a table. If it is given, inputs are raw rows, which the fleet standardises key by key.

    Raises:
        ModelError: this learner cannot be run for many keys, or `resident` is less than 1.

    >>> import jax, numpy as np, norewind
    >>> cell = norewind.cells.gru(inputs=1, hidden=4, outputs=1, symbols=False)
    >>> estimator = norewind.bptt(cell.transition, norewind.losses.squared_error)
    >>> learner = norewind.online(estimator, norewind.adam(1e-2))
    >>> start = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    >>> sensors = norewind.fleets.Fleet(learner, start)
    >>> keys, xs = [b"north", b"south"] * 100, np.ones((200, 1), np.float32)
    >>> run, losses, _ = sensors.scan(sensors.init(), norewind.fleets.Keyed(keys, xs), xs)
    >>> sensors.keys, bool(losses[-1] < losses[0])
    (2, True)
    """

    def __init__(
        self,
        learner: Learner,
        run: Any,
        *,
        share: bool = False,
        resident: int | None = None,
        table: TableLayout | None = None,
    ):
        self.horizon, self.table = learner.horizon, table
        self.engine: Engine = learner.for_keys(run, share=share)
        own = dict(self.engine.own)
        if table is not None:
            statistics, waiting, seen = (part[0] for part in nothing_known(table))
            own |= {"statistics": statistics, "waiting": waiting, "seen": seen, "errors": np.zeros(4)}
        size = sum(part.nbytes for part in own.values())
        most = max(1, RESIDENT_BYTES // size) if resident is None else resident
        checks.at_least_one("fleet: resident", most)
        self.slots = Slots(own, most)
        self.samples = 0
        self._folder: Any = None

    @property
    def keys(self) -> int:
        """The number of resident keys."""
        return len(self.slots)

    def init(self) -> FleetRun:
        """Start a run without keys."""
        return FleetRun(self.engine.shared)

    def scan(
        self, run: FleetRun, xs: Keyed, targets: Any = None, *, count: int | None = None, outputs: bool = False
    ) -> tuple[FleetRun, Any, Any]:
        """Learn from samples of any keys, in order; see `Learner.scan`.

        The runs of the keys are stored and changed in the fleet itself.

        Args:
            run: the run to continue; it must not be used afterwards.
            xs: inputs with their keys.
            targets: their targets; None with a table.
            count: use only the first `count` samples.
            outputs: ignored, because outputs cost nothing extra.

        Returns:
            `(run, losses, outputs)`. Outputs are those at the samples; with a horizon, `(made, due)`, as for `Ahead`;
            with a table, `(made, due, samples)`.

        Raises:
            ValueError: there are no samples.
        """
        keys = xs.keys.tolist() if isinstance(xs.keys, np.ndarray) else list(xs.keys)
        rows, most = len(keys) if count is None else count, self.slots.resident
        if not rows:
            raise ValueError("fleet: there are no samples.")
        step = rows if rows <= most or len(set(keys[:rows])) <= most else most
        pieces = []
        for start in range(0, rows, step):
            part = slice(start, min(start + step, rows))
            inputs = jax.tree.map(lambda leaf: np.asarray(leaf)[part], (xs.xs, targets))  # noqa: B023
            run, piece = self._piece(run, keys[part], *inputs)
            pieces.append(piece)
        losses, *made = concatenated(pieces)
        return run, losses, made[0] if len(made) == 1 else tuple(made)

    def _piece(self, run: FleetRun, keys: list[bytes], xs: Tree, targets: Tree) -> tuple[FleetRun, tuple]:
        """Learn from samples of at most as many keys as may be resident."""
        places, arrays, samples = self.slots.places(keys, self.samples), self.slots.arrays, None
        # By slot, and by row within a slot: memory that is read from start to end arrives twice as fast.
        order = np.argsort(places * len(places) + np.arange(len(places))) if self.engine.any_order else None
        if order is not None:
            places, xs, targets = jax.tree.map(lambda leaf: leaf.take(order, axis=0), (places, xs, targets))
        if self.table is not None:
            samples = self._scaled(arrays, places, xs)
            xs, targets = samples.xs, samples.targets
        shared, losses, made, due = self.engine.learn(run.shared, arrays, places, xs, targets)
        self.samples += len(keys)
        found: tuple = (made, due) if self.horizon else (made,)
        if samples is not None:
            add_errors(arrays["errors"], places, samples.targets, samples.last, due)
            found = made, due, samples
        found = losses, *found
        if order is not None:
            back = np.argsort(order)
            found = jax.tree.map(lambda leaf: leaf.take(back, axis=0), found)
        return FleetRun(shared), found

    def _scaled(self, arrays: dict[str, np.ndarray], places: np.ndarray, rows: np.ndarray) -> Samples:
        """Standardise raw rows, and update the statistics of their keys."""
        assert self.table is not None
        series = SeriesStatistics(*(arrays[name] for name in ("statistics", "waiting", "seen")))
        return Samples(*scaled(self.table, series, np.ascontiguousarray(rows, np.float64), places))

    def answer(self, records: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, Samples]:
        """Return the outputs that `scan` would give for raw rows, without learning. The keys must not share a model.

        Args:
            records: the record of a key for each row.
            rows: the raw rows, each taken as the next one of its key.

        Returns:
            The outputs made at the rows, the earlier outputs for these rows, and the standardised samples.
        """
        arrays = {name: records[name].copy() for name in self.slots.arrays}
        samples = self._scaled(arrays, np.arange(len(rows)), rows)
        return *self.engine.answer(arrays, samples.xs), samples

    def rehearse(self, run: FleetRun) -> None:
        """Compile all programs needed for learning, using a temporary key.

        Args:
            run: a run; it stays unchanged.
        """
        assert self.table is not None
        fleet, rows = copy(self), self.horizon + 1
        fleet.slots = Slots({name: self.slots.fresh[name][0] for name in self.slots.arrays}, 1)
        fleet.scan(run, Keyed([b""] * rows, np.zeros((rows, self.table.columns))))

    def forward(self, run: FleetRun, xs: Any, *, count: int | None = None) -> tuple[FleetRun, Any]:
        """Raise an error: fleets do not support this method. Use `answer` to predict rows without learning.

        Args:
            run: unused.
            xs: unused.
            count: unused.

        Raises:
            ModelError: always.
        """
        raise checks.ModelError("forward: not for fleets, whose runs change in place. Use scan, or fleet.answer.")

    def reset(self, run: FleetRun) -> FleetRun:
        """Raise an error: fleets do not support this method, because their keys begin at different times.

        Args:
            run: unused.

        Raises:
            ModelError: always.
        """
        raise checks.ModelError("reset: every key of a fleet has its own sequence. Use a new key to begin a new one.")

    def chunk_size(self, run: FleetRun) -> int:
        """Return the number of rows that the engine prefers, or fewer if rows are wide.

        Args:
            run: unused: the size depends on the engine alone.
        """
        width = 32 + sum(part.size for name, part in self.engine.own.items() if name in ("xs", "targets", "outputs"))
        return max(1, min(self.engine.chunk_size, MAX_CHUNK_NUMBERS // width))

    def keep_in(self, folder: Any, samples: int) -> None:
        """Keep the keys in a run folder, starting from one of its checkpoints.

        Args:
            folder: the run folder.
            samples: the number of samples at that checkpoint.
        """
        self.slots.keep_in(folder.path, samples)
        self.samples, self._folder = samples, folder
        folder.at_end(self.slots.close)

    def write_keys(self, samples: int) -> None:
        """Write the keys that have changed. The checkpoint file, written afterwards, makes them valid.

        Args:
            samples: the number of samples at the checkpoint.
        """
        self.slots.write_keys(samples, self._folder.oldest)
        if self.slots.store.size > MAX_CHECKPOINT_BYTES:
            self._folder.writer.keep = 1


@kernel
def add_errors(errors, places, targets, last, due):
    """Add the squared errors of rows to the sums of their keys. Each row counts as the mean over its known targets.

    Args:
        errors: per slot, the number of scored rows, and the squared errors of the model, the last value and the mean.
        places: the slot of each row.
        targets: standardised targets; NaN means unknown.
        last: the last known values, standardised likewise.
        due: the earlier forecasts of these rows.
    """
    for t in range(len(places)):
        known, model, persistence, mean = 0, 0.0, 0.0, 0.0
        for i in range(targets.shape[1]):
            target, newest = np.float64(targets[t, i]), np.float64(last[t, i])
            if np.isfinite(target) and np.isfinite(newest):
                known += 1
                model += (target - due[t, i]) ** 2
                persistence += (target - newest) ** 2
                mean += target**2
        if known:
            sums = errors[places[t]]
            sums[0] += 1
            sums[1] += model / known
            sums[2] += persistence / known
            sums[3] += mean / known
