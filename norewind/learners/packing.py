"""The online learner for single samples: its runs are a few vectors, because each array that is passed costs time."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from norewind.core import checks
from norewind.core.combinators import one_step_of
from norewind.core.run import Run, explain_call_error, nonfinite_error
from norewind.core.trees import Tree, without_weak_types
from norewind.engines.compilation import compiled_kernel
from norewind.learners.keyed.keyed_program import KeyedProgram
from norewind.learners.learner import Learner
from norewind.learners.online import NOTHING_PENDING, OnlineLearner, check_nothing_pending
from norewind.learners.packed_layout import PackedLayout, Vectors, layout_of

# Checked in every call, since checking for a JAX array takes longer.
SYMBOL, SCALAR = (int, np.integer), (int, float, np.generic)
PARAMS, STATE, LATEST_STATE = map(Run._fields.index, ("params", "state", "latest_state"))


class PackedRun:
    """A run of `PackedLearner`: the arrays of a `Run` as a few vectors.

    Args:
        layout: where the arrays of the run are in the vectors.
        vectors: the vectors, which hold all arrays of the run.
        pending: inputs that are waiting for their targets.
        latest_vectors: the vectors of the state after all inputs so far, if predictions have moved it; None if not.
    """

    __slots__ = ("latest_vectors", "layout", "pending", "vectors")

    def __init__(
        self,
        layout: PackedLayout,
        vectors: Vectors,
        pending: tuple[Tree, ...] = (),
        latest_vectors: Vectors | None = None,
    ):
        self.layout = layout
        self.vectors = vectors
        self.pending = pending
        self.latest_vectors = latest_vectors

    def unpack(self) -> Run:
        """Return the same run, as arrays."""
        run = self.layout.unpack_now(self.vectors)
        if self.latest_vectors is None:
            return run
        state = layout_of(run.state).unpack_now(self.latest_vectors)
        field = LATEST_STATE if self.pending else _latest_state(self.layout)
        return run._replace(pending=self.pending, **{Run._fields[field]: state})

    @property
    def steps(self) -> jax.Array:
        """The number of steps learned from."""
        return self.unpack().steps

    @property
    def samples(self) -> jax.Array:
        """The number of samples learned from."""
        return self.unpack().samples

    def __repr__(self) -> str:
        return f"Packed{self.unpack()!r}"


jax.tree_util.register_pytree_node(
    PackedRun,
    lambda run: ((run.vectors, run.pending, run.latest_vectors), run.layout),
    lambda layout, parts: PackedRun(layout, *parts),
)


class PackedLearner(Learner):
    """A learner of single samples, which takes less than half the time of `OnlineLearner`.

    Its runs are packed: `init` starts one, `pack` makes one from a `Run`, and `run.unpack()` returns a `Run` again. The
    numbers are those of the learner that it is made of, up to rounding. Losses and outputs are NumPy arrays. Chunks of
    several samples are unpacked and learned by `OnlineLearner`.

    Args:
        learner: the learner, from `online`.

    >>> import jax, norewind
    >>> cell = norewind.cells.gru(inputs=3, hidden=8, outputs=3)
    >>> estimator = norewind.uoro(cell.transition, norewind.losses.cross_entropy)
    >>> learner = norewind.learners.PackedLearner(norewind.online(estimator, norewind.adam(1e-2)))
    >>> run = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    >>> for symbol in [0, 1, 2, 0, 1]:
    ...     run, output = learner.predict(run, symbol)
    ...     run, loss, output = learner.learn(run, (symbol + 1) % 3)
    >>> int(run.unpack().samples)
    5
    """

    window = 0

    def __init__(self, learner: OnlineLearner):
        self.learner = learner
        self._update = learner.update
        self._programs: dict[Any, PackedProgram] = {}

    def init(self, params: Tree, state: Tree, key: jax.Array) -> PackedRun:
        """Start a run; see `OnlineLearner.init`."""
        return self.pack(self.learner.init(params, state, key))

    def pack(self, run: Run) -> PackedRun:
        """Pack a run.

        Args:
            run: the run, from `online(...).init`.

        Raises:
            ModelError: it is not a run.
        """
        checks.check_run("pack", run, Run)
        bare = run._replace(pending=(), latest_state=None) if run.pending else run
        layout = layout_of(bare)
        latest = layout_of(run.state).pack_now(run.latest_state) if run.pending else None
        return PackedRun(layout, layout.pack_now(bare), run.pending, latest)

    def step(self, run: PackedRun, x: Tree, target: Tree) -> tuple[PackedRun, np.ndarray, Tree]:
        """Learn from one sample; see `OnlineLearner.step`.

        Args:
            run: the run to continue.
            x: the input of the model.
            target: the target, which the loss compares with the model's output.

        Returns:
            `(run, loss, output)`.
        """
        check_nothing_pending(run, "step", PackedRun)
        return self._learn_sample("step", run, x, target)

    def predict(self, run: PackedRun, x: Tree) -> tuple[PackedRun, Tree]:
        """Predict the output for an input, which is kept until its target arrives; see `OnlineLearner.predict`."""
        checks.check_run("predict", run, PackedRun)
        latest, output = self._call("predict", self._answer, run, _needed(run), x)
        return PackedRun(run.layout, run.vectors, (*run.pending, x), latest), output

    def learn(self, run: PackedRun, target: Tree) -> tuple[PackedRun, np.ndarray, Tree]:
        """Learn from the oldest waiting input; see `OnlineLearner.learn`. Returns `(run, loss, output)`."""
        checks.check_run("learn", run, PackedRun)
        if not run.pending:
            raise ValueError(NOTHING_PENDING)
        x, *later = run.pending
        new, loss, output = self._learn_sample("learn", run, x, target)
        if later:
            new = PackedRun(run.layout, new.vectors, tuple(later), run.latest_vectors)
        return new, loss, output

    def scan(
        self,
        run: PackedRun,
        xs: Tree,
        targets: Tree,
        *,
        latest: Tree = None,
        count: int | None = None,
        outputs: bool = False,
    ) -> tuple[PackedRun, np.ndarray | jax.Array, Tree]:
        """Learn from a chunk; see `OnlineLearner.scan`. A chunk of one sample is fast, and always returns its output.

        Raises:
            NonFiniteError: a number was not finite, unless such samples are skipped.
            ValueError: the arguments do not fit together, or inputs are still waiting for their targets.
        """
        check_nothing_pending(run, "scan", PackedRun)
        if count not in (None, 1) or not _is_single(xs) or run.latest_vectors is not None:
            new, losses, made = self.learner.scan(
                run.unpack(), xs, targets, latest=latest, count=count, outputs=outputs
            )
            return self.pack(new), losses, made
        return self._learn_chunk_of_one(run, xs, targets, latest)

    def forward(self, run: PackedRun, xs: Tree, *, count: int | None = None) -> tuple[PackedRun, Tree]:
        check_nothing_pending(run, "forward", PackedRun)
        if count not in (None, 1) or not _is_single(xs):
            new, outputs = self.learner.forward(run.unpack(), xs, count=count)
            return self.pack(new), outputs
        latest, outputs = self._call("forward", self._answer_only, run, _needed(run), xs)
        return PackedRun(run.layout, run.vectors, (), latest), outputs

    def reset(self, run: PackedRun, when: bool | np.ndarray | jax.Array = True) -> PackedRun:
        return self.pack(self.learner.reset(run.unpack(), when))

    def carry(self, run: PackedRun) -> Tree:
        return run.unpack().carry

    def report(self, run: PackedRun) -> dict[str, float]:
        return self.learner.report(run.unpack())

    def chunk_size(self, run: PackedRun) -> int:
        return self.learner.chunk_size(run.unpack())

    def for_keys(self, run: PackedRun, *, share: bool = False) -> KeyedProgram:
        return self.learner.for_keys(run.unpack(), share=share)

    def _learn_sample(self, caller: str, run: PackedRun, x: Tree, target: Tree) -> tuple[PackedRun, np.ndarray, Tree]:
        vectors, (loss, output) = self._call(caller, self._learn, run, run.vectors, x, target)
        if loss == loss:
            return PackedRun(run.layout, vectors), loss, output
        xs, targets = jax.tree.map(lambda leaf: np.asarray(leaf)[None], (x, target))
        new, losses, outputs = self._skip_or_stop(run, xs, targets, latest=None)
        return new, *_first((losses, outputs))

    def _learn_chunk_of_one(
        self, run: PackedRun, xs: Tree, targets: Tree, latest: Tree
    ) -> tuple[PackedRun, np.ndarray | jax.Array, Tree]:
        inputs = (xs, targets) if latest is None else (xs, targets, latest)
        vectors, (losses, outputs) = self._call("scan", self._learn_only, run, run.vectors, *inputs)
        if losses[0] == losses[0]:
            return PackedRun(run.layout, vectors), losses, outputs
        return self._skip_or_stop(run, xs, targets, latest)

    def _skip_or_stop(
        self, run: PackedRun, xs: Tree, targets: Tree, latest: Tree
    ) -> tuple[PackedRun, np.ndarray | jax.Array, Tree]:
        """Handle a chunk of one sample that gave numbers that are not finite.

        Rare: the learner that it is made of skips the sample. A choice between old and new numbers in every call would
        take a quarter of its time.
        """
        if self.learner.stops:
            raise nonfinite_error(run)
        before = PackedRun(run.layout, run.vectors).unpack()
        new, losses, outputs = self.learner.scan(before, xs, targets, latest=latest, outputs=True)
        return self.pack(new), losses, outputs

    def _call(self, caller: str, function: Callable, run: PackedRun, vectors: Any, *inputs: Tree) -> tuple[Any, Tree]:
        """Call a function with vectors and inputs, which are checked first. It is compiled once per kind of inputs."""
        key = function.__name__, run.layout, *map(_signature, inputs)
        try:
            program = self._programs.get(key)
            placed = None if program is None else program.on_device(inputs)
            if placed is None:
                sizes = self.learner.symbols.check(caller, *inputs[:2])[: len(inputs)]
                if program is None:
                    program = PackedProgram(partial(function, run.layout), vectors, inputs, sizes)
                    self._programs[key] = program
                placed = inputs
        except Exception as error:
            explain_call_error(caller, error, self._update, run.unpack(), *inputs[:2])
            raise
        assert program is not None
        return program(vectors, *placed)

    def _learn(self, layout: PackedLayout, vectors: Vectors, x: Tree, target: Tree, latest: Tree = None):
        """Learn from a sample. The loss is NaN if a number is not finite: one more number would take longer to read."""
        new, estimate, finite = self._update.step(layout.unpack(vectors), x, target, latest, nonfinite="report")
        assert finite is not None
        loss = jnp.where(finite, estimate.loss, jnp.nan)
        return layout.pack(without_weak_types(new)), (loss, estimate.output)

    def _learn_only(self, layout: PackedLayout, vectors: Vectors, *inputs: Tree):
        """Learn from the only one of some samples. Indexing is faster in compiled code than before it."""
        vectors, numbers = self._learn(layout, vectors, *_first(inputs))
        return vectors, _alone(numbers)

    def _answer(self, layout: PackedLayout, vectors: tuple[Vectors, Vectors | None], x: Tree, *, sample: bool = False):
        """Answer an input with the latest state; with `sample`, a single sample of a model that takes windows."""
        needed, latest = dict(zip(_indices_to_predict(layout), vectors[0], strict=True)), vectors[1]
        params, state = (layout.unpack_entry(needed, entry) for entry in (PARAMS, _latest_state(layout)))
        state = state if latest is None else layout_of(state).unpack(latest)
        transition = one_step_of(self._update.estimator.model.transition) if sample else self._update.transition
        state, output = transition(params, state, x)
        return layout_of(state).pack(without_weak_types(state)), output

    def _answer_only(self, layout: PackedLayout, vectors: tuple[Vectors, Vectors | None], xs: Tree):
        """Answer the only one of some samples."""
        latest, output = self._answer(layout, vectors, _first(xs), sample=True)
        return latest, _alone(output)


class PackedProgram:
    """A compiled function of packed runs. It returns vectors, which stay on the device, and numbers, which are read.

    Args:
        function: the function, from vectors and inputs to vectors and numbers.
        vectors: an example of the vectors.
        inputs: an example of the inputs.
        symbols: for each input, the number of symbols that it may be; None if it is not a symbol.
    """

    def __init__(self, function: Callable, vectors: Any, inputs: tuple[Tree, ...], symbols: tuple[int | None, ...]):
        def call(*arguments):
            vectors, numbers = function(*arguments)
            self.numbers_layout = layout_of(numbers)
            return vectors, self.numbers_layout.pack(numbers)

        self.numbers_layout: PackedLayout
        self.symbols = symbols
        self.kernel = compiled_kernel(call, vectors, *inputs)

    def __call__(self, *arguments: Any) -> tuple[Any, Tree]:
        vectors, numbers = self.kernel(*arguments)
        return vectors, self.numbers_layout.view(tuple(map(np.asarray, numbers)))

    def on_device(self, inputs: tuple[Tree, ...]) -> tuple[Tree, ...] | None:
        """Place single symbols on the device.

        Args:
            inputs: the arguments of a call, after the vectors.

        Returns:
            The inputs; None if one of the symbols is not known to be in range.
        """
        placed = inputs
        for i, size in enumerate(self.symbols):
            if size is not None:
                value = inputs[i]
                if not (isinstance(value, SYMBOL) and 0 <= value < size):
                    return None
                placed = *placed[:i], _placed(value, jax.config.jax_enable_x64), *placed[i + 1 :]  # pyright: ignore[reportAttributeAccessIssue] (made when it is imported)
        return placed


def _latest_state(layout: PackedLayout) -> int:
    """Return the field of a run that holds the latest state: `latest_state`, if it is kept separately."""
    return LATEST_STATE if layout.vectors_of[LATEST_STATE] else STATE


@lru_cache(maxsize=256)
def _indices_to_predict(layout: PackedLayout) -> tuple[int, ...]:
    """Return the indices of the vectors that a prediction needs."""
    return tuple(sorted({*layout.vectors_of[PARAMS], *layout.vectors_of[_latest_state(layout)]}))


def _needed(run: PackedRun) -> tuple[Vectors, Vectors | None]:
    """Return the vectors that a prediction needs: every argument costs a microsecond."""
    return tuple(run.vectors[i] for i in _indices_to_predict(run.layout)), run.latest_vectors


def _is_single(xs: Tree) -> bool:
    """Whether inputs hold a single entry along their leading axis."""
    return len(xs if type(xs) is np.ndarray else jax.tree.leaves(xs)[0]) == 1


def _first(entries: Tree) -> Tree:
    """Return the first of some entries along their leading axis."""
    return jax.tree.map(lambda leaf: leaf[0], entries)


def _alone(entry: Tree) -> Tree:
    """Add a leading axis of length 1."""
    return jax.tree.map(lambda leaf: leaf[None], entry)


@lru_cache(maxsize=1024, typed=True)
def _placed(symbol: Any, x64: bool) -> jax.Array:
    """Return a symbol on the device. There are few of them, and a cache is faster than a transfer.

    A Python integer has 64 bits only with `x64`.
    """
    return jax.device_put(symbol)


def _signature(value: Any) -> Any:
    """Return the part of a value that a program is compiled for."""
    if type(value) is np.ndarray:
        return value.dtype.num, value.shape
    if isinstance(value, SCALAR):
        return type(value)
    if isinstance(value, jax.Array):
        return value.dtype, value.shape
    if isinstance(value, dict | list | tuple):
        leaves, structure = jax.tree.flatten(value)
        return structure, *map(_signature, leaves)
    return type(value)
