"""A fleet: a learner with a run for every key, whose samples come in any order."""

from copy import copy
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from norewind import checks
from norewind.checkpoint import LARGEST
from norewind.fleets.slots import Slots
from norewind.kernels import kernel
from norewind.learners.protocol import Learner
from norewind.streams.scaling import Layout, Series, nothing_known, scaled
from norewind.streams.stream import Keyed, Samples
from norewind.trees import Tree

# Bytes for resident keys, if their number is not given.
MEMORY = 1_000_000_000
# Numbers in the rows of a chunk: wide rows make shorter ones.
NUMBERS = 1 << 26


class Engine(Protocol):
    """How a learner is run for many keys; what `Learner.for_keys` returns.

    Attributes:
        own: what every key has for itself at its start, by name.
        shared: what all keys share at the start.
        chunk: how many rows to give it at a time.
    """

    own: dict[str, np.ndarray]
    shared: Tree
    chunk: int

    def learn(
        self, shared: Tree, arrays: dict[str, np.ndarray], places: np.ndarray, xs: Tree, targets: Tree
    ) -> tuple[Tree, np.ndarray, Any, Any]:
        """Learn from rows, in order.

        Args:
            shared: what all keys share; used up.
            arrays: what keys have for themselves, with one entry per slot along the leading axes; changed in place.
            places: the slot of each row's key.
            xs: the inputs of the rows.
            targets: their targets.

        Returns:
            What all keys share, the losses, the outputs made at the rows, and the outputs that were made of them.
        """
        ...

    def answer(self, arrays: dict[str, np.ndarray], xs: Tree) -> tuple[Any, Any]:
        """The outputs of `learn` if each row were the next of the key with the same number. `arrays` are used up."""
        ...

    def pending(self, record: np.ndarray) -> np.ndarray:
        """What is forecast of the next rows of a key; see `Learner.pending`."""
        ...


class FleetRun(NamedTuple):
    """What the keys of a fleet share: parameters and optimizer, or nothing. The rest is in the fleet and its folder."""

    shared: Tree


def fleet(
    learner: Learner, run: Any, *, share: bool = False, resident: int | None = None, window: int = 256
) -> "Fleet":
    """A learner with one run for every key: keys appear at any time, and their samples come in any order.

    Without `share`, every key has a model of its own, which starts from `run`, and learns as
    `learner` alone would from its samples. With `share`, all keys teach one model: the keys
    that have a sample in a window of `window` samples make one step of `norewind.parallel`
    together, with a state and a carry each; what is left of a key's samples makes the next.

    Args:
        learner: what learns: from `online`, `Ahead` to forecast later rows, or without `share` `LeastSquares`.
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


class Fleet(Learner):
    """What `fleet` returns. With a `table`, its inputs are raw rows, which it standardises key by key."""

    def __init__(
        self,
        learner: Learner,
        run: Any,
        *,
        share: bool = False,
        resident: int | None = None,
        window: int = 256,
        table: Layout | None = None,
    ):
        if resident is not None and share and resident < window:
            raise checks.ModelError(f"fleet: {resident} resident keys are fewer than a window of {window} can have.")
        self.horizon, self.window, self.table = learner.horizon, window if share else 1, table
        self.engine: Engine = learner.for_keys(run, window if share else None)
        own = dict(self.engine.own)
        if table is not None:
            statistics, waiting, seen = (part[0] for part in nothing_known(table))
            own |= {"statistics": statistics, "waiting": waiting, "seen": seen, "errors": np.zeros(4)}
        size = sum(part.nbytes for part in own.values())
        most = max(2 * self.window, MEMORY // size) if resident is None else resident
        checks.at_least_one("fleet: resident", most)
        self.slots = Slots(own, most)
        self.samples = 0
        self._folder: Any = None

    @property
    def keys(self) -> int:
        """The number of resident keys."""
        return len(self.slots)

    def init(self) -> FleetRun:
        """Start without keys."""
        return FleetRun(self.engine.shared)

    def scan(
        self, run: FleetRun, xs: Keyed, targets: Any = None, *, count: int | None = None, outputs: bool = False
    ) -> tuple[FleetRun, Any]:
        """Learn from samples of any keys, in their order; see `Learner.scan`.

        The runs of the keys change in the fleet itself. `count` is the number of windows, or
        of samples where there are none. `outputs` are those at the samples; with a horizon,
        `(made, due)`, as `Ahead` has them; with a table, `(made, due, samples)`.
        """
        keys = xs.keys.tolist() if isinstance(xs.keys, np.ndarray) else list(xs.keys)
        rows = (len(keys) if count is None else count * self.window) // self.window * self.window
        if not rows:
            raise ValueError(f"fleet: there is no sample in {len(keys)} keys; a window has {self.window}.")
        most = self.slots.resident // self.window * self.window
        step = rows if rows <= most or len(set(keys[:rows])) <= self.slots.resident else most
        pieces = []
        for start in range(0, rows, step):
            part = slice(start, min(start + step, rows))
            inputs = jax.tree.map(lambda leaf: np.asarray(leaf)[part], (xs.xs, targets))  # noqa: B023
            run, piece = self._piece(run, keys[part], *inputs)
            pieces.append(piece)
        losses, *made = pieces[0] if len(pieces) == 1 else jax.tree.map(lambda *all: np.concatenate(all), *pieces)
        losses = losses if self.window == 1 else losses.reshape(-1, self.window).sum(axis=1)
        return run, (losses, made[0] if len(made) == 1 else tuple(made)) if outputs else losses

    def _piece(self, run: FleetRun, keys: list[bytes], xs: Tree, targets: Tree) -> tuple[FleetRun, tuple]:
        """Learn from samples of no more keys than may be resident."""
        places, arrays, samples = self.slots.places(keys, self.samples), self.slots.arrays, None
        if self.table is not None:
            samples = self._scaled(arrays, places, xs)
            xs, targets = samples.xs, samples.targets
        shared, losses, made, due = self.engine.learn(run.shared, arrays, places, xs, targets)
        self.samples += len(keys)
        found: tuple = (made, due) if self.horizon else (made,)
        if samples is not None:
            add_errors(arrays["errors"], places, samples.targets, samples.last, due)
            found = made, due, samples
        return FleetRun(shared), (losses, *found)

    def _scaled(self, arrays: dict[str, np.ndarray], places: np.ndarray, rows: np.ndarray) -> Samples:
        """Raw rows as samples. What is known of their keys is brought up to date."""
        assert self.table is not None
        series = Series(*(arrays[name] for name in ("statistics", "waiting", "seen")))
        return Samples(*scaled(self.table, series, np.ascontiguousarray(rows, np.float64), places))

    def answer(self, records: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, Samples]:
        """What `scan` would return as outputs for raw rows, each as the next of the key with this record; without
        learning. For keys that share nothing."""
        arrays = {name: records[name].copy() for name in self.slots.arrays}
        samples = self._scaled(arrays, np.arange(len(rows)), rows)
        return *self.engine.answer(arrays, samples.xs), samples

    def rehearse(self, run: FleetRun) -> None:
        """Compile what learning needs, with a key of its own."""
        assert self.table is not None
        fleet, rows = copy(self), self.horizon + 1
        fleet.slots = self.slots.another(1)
        fleet.scan(run, Keyed([b""] * rows, np.zeros((rows, self.table.columns))))

    def forward(self, run: FleetRun, xs: Any, *, count: int | None = None) -> tuple[FleetRun, Any]:
        """Not for fleets: `answer` predicts rows without learning."""
        raise checks.ModelError("forward: a fleet has no run that could be left as it is. Use scan, or fleet.answer.")

    def reset(self, run: FleetRun) -> FleetRun:
        """Not for fleets, whose keys begin at different times."""
        raise checks.ModelError("reset: the keys of a fleet have sequences of their own. Use other keys for new ones.")

    def chunk(self, run: FleetRun) -> int:
        """As many rows as the engine wants, in whole windows."""
        width = 32 + sum(part.size for name, part in self.engine.own.items() if name in ("xs", "targets", "outputs"))
        return max(self.window, min(self.engine.chunk, NUMBERS // width) // self.window * self.window)

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
        """Close the files."""
        self.slots.close()


@kernel
def add_errors(errors, places, targets, last, due):
    """Add up the squared errors of every key: how many rows were scored, and the model's, the last value's, the mean's.

    A row counts with the mean over its known targets.
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
