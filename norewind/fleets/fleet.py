"""A fleet: a learner with a separate run for every key. Samples of different keys may arrive in any order."""

from copy import copy
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from norewind.core import checks
from norewind.core.trees import Tree, concatenate_trees
from norewind.engines.kernels import kernel
from norewind.fleets.slots import FleetRecords, Slots
from norewind.learners.horizon import nearest_steps
from norewind.learners.keyed.keyed_program import KeyedProgram
from norewind.learners.learner import BaseLearner, Forecasts, Learner, LearnerFolder
from norewind.storage.checkpoint import MAX_CHECKPOINT_BYTES
from norewind.streams.stream import Keyed, Samples
from norewind.streams.table.scaling import LATEST, SeriesStatistics, TableLayout, init_series, scale_rows

# Bytes for resident keys, if their number is not given.
RESIDENT_BYTES = 1_000_000_000
# The maximum number of rows in a chunk, and of numbers: if rows are wide, chunks have fewer of them.
MAX_CHUNK_ROWS = 1 << 17
MAX_CHUNK_NUMBERS = 1 << 26


class FleetRun(NamedTuple):
    """The part of a fleet that all keys share. Everything else is in the fleet and its folder.

    Attributes:
        shared: parameters and optimizer state, or nothing.
    """

    shared: Tree


class KeyedOutputs(NamedTuple):
    """The outputs for raw rows of many keys, with one entry per row: `Forecasts`, and the rows.

    Attributes:
        made: the forecasts made at each row.
        due: the earlier forecasts of each row; with a horizon of 0, the same.
        samples: the rows, standardised by the past of their keys.
    """

    made: np.ndarray
    due: np.ndarray
    samples: Samples


class KeyForecasts(NamedTuple):
    """Forecasts of the next rows of one key, the nearest row first.

    Attributes:
        outputs: the outputs of the key's model, for standardised targets.
        mean: the mean of every target, as known when each row was forecast; NaN if no row had arrived at that time.
        deviation: the standard deviation of every target, likewise.
        latest: the latest value of every target.
        rows: the number of rows of the key so far.
    """

    outputs: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    latest: np.ndarray
    rows: int


class Fleet(BaseLearner):
    """A learner with one run per key. New keys may appear at any time, and samples may arrive in any order.

    Without `share`, every key has its own model, which starts from `run` and learns exactly as
    `learner` alone would from that key's samples. With `share`, all keys train one model, sample by
    sample in the order of arrival, and each key has its own state and carry.

    The run that `scan` takes and returns holds only what the keys share. The runs of the keys are kept in the fleet
    itself and, once `keep_in` was called, in the run folder. There, each is a *record*.

    Args:
        learner: the learner of each key: from `online`, `AheadLearner` to forecast later rows, or, without `share`,
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
        run: Tree,
        *,
        share: bool = False,
        resident: int | None = None,
        table: TableLayout | None = None,
    ):
        if not isinstance(learner, Learner):
            raise checks.ModelError(f"fleet: the learner must be one for a single key, not a {type(learner).__name__}.")
        self.steps = learner.steps
        self.table = table
        self.program: KeyedProgram = learner.for_keys(run, share=share)
        own = dict(self.program.own)
        if table is not None:
            statistics, waiting, seen = (part[0] for part in init_series(table))
            of_table = {"statistics": statistics, "waiting": waiting, "seen": seen, "errors": np.zeros(4)}
            assert not own.keys() & of_table.keys()
            own |= of_table
        size = sum(part.nbytes for part in own.values())
        most = max(1, RESIDENT_BYTES // size) if resident is None else resident
        checks.check_at_least_one("fleet: resident", most)
        self.slots = Slots(own, most)

    @property
    def keys(self) -> int:
        """The number of resident keys."""
        return len(self.slots)

    def init(self) -> FleetRun:
        """Start a run without keys."""
        return FleetRun(self.program.shared)

    def scan(
        self, run: FleetRun, xs: Keyed, targets: Tree = None, *, count: int | None = None, outputs: bool = False
    ) -> tuple[FleetRun, np.ndarray, Forecasts | KeyedOutputs]:
        """Learn from samples of any keys, in order; see `Learner.scan`.

        Args:
            run: the run to continue; it must not be used afterwards.
            xs: inputs with their keys.
            targets: their targets; None for raw rows, which contain them.
            count: use only the first `count` samples.
            outputs: ignored, because outputs cost nothing extra.

        Returns:
            `(run, losses, outputs)`. Outputs are `Forecasts`; for raw rows, `KeyedOutputs`.

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
        return run, *concatenate_trees(pieces)

    def _piece(self, run: FleetRun, keys: list[bytes], xs: Tree, targets: Tree) -> tuple[FleetRun, tuple]:
        """Learn from samples of at most as many keys as may be resident."""
        slots = self.slots.load(keys)
        arrays = self.slots.arrays
        samples = scales = None
        # By slot, and by row within a slot: memory that is read from start to end arrives twice as fast.
        order = np.argsort(slots * len(slots) + np.arange(len(slots))) if self.program.any_order else None
        if order is not None:
            slots, xs, targets = jax.tree.map(lambda leaf: leaf.take(order, axis=0), (slots, xs, targets))
        if self.table is not None:
            samples = self._scaled(arrays, slots, xs)
            xs, targets, scales = samples.xs, samples.targets, samples.scales_after
        shared, losses, made, due = self.program.learn(run.shared, arrays, slots, xs, targets, scales)
        outputs: Forecasts | KeyedOutputs = Forecasts(made, due)
        if samples is not None:
            add_errors(arrays["errors"], slots, samples.targets, samples.last, due)
            outputs = KeyedOutputs(made, due, samples)
        results = losses, outputs
        if order is not None:
            back = np.argsort(order)
            results = jax.tree.map(lambda leaf: leaf.take(back, axis=0), results)
        return FleetRun(shared), results

    def _scaled(self, arrays: dict[str, np.ndarray], slots: np.ndarray, rows: np.ndarray) -> Samples:
        """Standardise raw rows, and update the statistics of their keys."""
        assert self.table is not None
        series = SeriesStatistics(*(arrays[name] for name in ("statistics", "waiting", "seen")))
        return Samples(*scale_rows(self.table, series, np.ascontiguousarray(rows, np.float64), slots))

    def forward(self, records: np.ndarray, rows: np.ndarray) -> KeyedOutputs:
        """Return the outputs that `scan` would give for raw rows, without learning. The keys must not share a model.

        Args:
            records: the record of a key for each row.
            rows: the raw rows, each taken as the next one of its key.
        """
        arrays = {name: records[name].copy() for name in self.slots.arrays}
        samples = self._scaled(arrays, np.arange(len(rows)), rows)
        return KeyedOutputs(*self.program.forward(arrays, samples.xs, samples.scales_after), samples)

    def warm_up(self, run: FleetRun) -> None:
        """Compile all programs needed for learning from raw rows, using a temporary key.

        Args:
            run: a run; it stays unchanged.
        """
        assert self.table is not None
        fleet, rows = copy(self), self.horizon + 1
        fleet.slots = Slots({name: self.slots.fresh[name][0] for name in self.slots.arrays}, 1)
        fleet.scan(run, Keyed([b""] * rows, np.zeros((rows, self.table.columns))))

    def records(self, folder: Path) -> FleetRecords:
        """Open the records of all keys for reading, also while another thread learns.

        Args:
            folder: the run folder.
        """
        return FleetRecords(self.slots, folder)

    def upcoming(self, record: np.ndarray) -> KeyForecasts:
        """Return the forecasts of the next `horizon` rows of a key.

        Args:
            record: the record of the key, trained on raw rows.
        """
        assert self.table is not None
        scales, rows = record["waiting"], int(record["seen"])
        # Each row is forecast with the nearest step that reaches it, made some rows before the latest one.
        made_at = rows - 1 - nearest_steps(tuple(self.table.steps.tolist()))[0]
        known = np.where(made_at[:, None, None] >= 0, scales[made_at % len(scales)], np.nan)
        latest = record["statistics"][LATEST, self.table.targets]
        return KeyForecasts(self.program.upcoming(record), known[..., 0], known[..., 1], latest, rows)

    def chunk_size(self, run: FleetRun) -> int:
        rings = ("xs", "targets", "outputs", "mixture_outputs")
        width = 32 + sum(part.size for name, part in self.program.own.items() if name in rings)
        return max(1, min(MAX_CHUNK_ROWS, MAX_CHUNK_NUMBERS // width))

    def keep_in(self, folder: LearnerFolder, samples: int) -> None:
        self.slots.keep_in(folder.path, samples)
        folder.at_end(self.slots.close)

        def write_keys(samples: int) -> None:
            # The checkpoint file, written afterwards, makes them valid.
            self.slots.write_keys(samples, folder.oldest)
            if self.slots.store.size > MAX_CHECKPOINT_BYTES:
                folder.writer.keep = 1

        folder.before_checkpoints(write_keys)


@kernel
def add_errors(errors, slots, targets, last, due):
    """Add the squared errors of rows to the sums of their keys. Each row counts as the mean over its known targets.

    Args:
        errors: per slot, the number of scored rows, and the squared errors of the model, the last value and the mean.
        slots: the slot of each row.
        targets: standardised targets; NaN means unknown.
        last: the last known values, standardised likewise.
        due: the earlier forecasts of these rows.
    """
    for t in range(len(slots)):
        known, model, persistence, mean = 0, 0.0, 0.0, 0.0
        for i in range(targets.shape[1]):
            target, latest = np.float64(targets[t, i]), np.float64(last[t, i])
            if np.isfinite(target) and np.isfinite(latest):
                known += 1
                model += (target - due[t, i]) ** 2
                persistence += (target - latest) ** 2
                mean += target**2
        if known:
            sums = errors[slots[t]]
            sums[0] += 1
            sums[1] += model / known
            sums[2] += persistence / known
            sums[3] += mean / known
