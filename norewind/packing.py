"""A run packed for single calls: a few vectors in place of many arrays, each of which costs microseconds in a call."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from norewind import checks
from norewind.chunks import careful_step, skipping_step
from norewind.combinators import one_step_of
from norewind.compilation import compiled_kernel
from norewind.estimator import Estimate
from norewind.layout import Layout, Vectors, layout_of
from norewind.ranges import Symbols
from norewind.run import Run, Update, explain, nonfinite_error
from norewind.trees import Tree, strong

# What a prediction needs of a run: the parameters and the state.
MODEL = Run._fields[:2]
STATE, AHEAD = Run._fields.index("state"), Run._fields.index("ahead")


class PackedRun:
    """A run as a few vectors, for single calls: `learner.step`, `predict`, `learn` and `reset` take and return it.

    It has the fields of a `Run`, which are unpacked when somebody looks; `unpack` gives the run itself.
    """

    __slots__ = ("_run", "ahead_vectors", "layout", "pending", "vectors")

    def __init__(self, layout: Layout, vectors: Vectors, pending: tuple[Tree, ...] = (), ahead: Vectors | None = None):
        self.layout, self.vectors, self.pending, self.ahead_vectors = layout, vectors, pending, ahead
        self._run: Run | None = None

    def unpack(self) -> Run:
        """The same run, as arrays."""
        if self._run is None:
            run = self.layout.unpack_now(self.vectors)
            if self.ahead_vectors is not None:
                run = run._replace(pending=self.pending, ahead=layout_of(run.state).unpack_now(self.ahead_vectors))
            self._run = run
            return run
        return self._run

    def __getattr__(self, name: str) -> Any:
        if name not in Run._fields:
            raise AttributeError(f"a packed run has no {name!r}.")
        return getattr(self.unpack(), name)

    def __repr__(self) -> str:
        return f"Packed{self.unpack()!r}"


def pack(run: Run) -> PackedRun:
    """A run for single calls: the same but for rounding, in less than half of the time a call. For chunks use `scan`.

    `learner.step`, `predict`, `learn` and `reset` take it and return one. Losses and outputs
    are then NumPy arrays, and there is no gradient in an estimate: to see one, step with
    `unpack()`, which gives the run back.

    >>> import jax, norewind
    >>> cell = norewind.cells.gru(inputs=3, hidden=8, outputs=3)
    >>> learner = norewind.online(norewind.uoro(cell.transition, norewind.losses.cross_entropy), norewind.adam(1e-2))
    >>> run = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    >>> packed = norewind.pack(run)
    >>> for symbol in [0, 1, 2, 0, 1]:
    ...     packed, output = learner.predict(packed, symbol)
    ...     packed, estimate = learner.learn(packed, (symbol + 1) % 3)
    >>> int(packed.samples), type(packed.unpack()).__name__
    (5, 'Run')
    """
    checks.run("pack", run, Run)
    bare = run._replace(pending=(), ahead=None) if run.pending else run
    layout = layout_of(bare)
    ahead = layout_of(run.state).pack_now(run.ahead) if run.pending else None
    return PackedRun(layout, layout.pack_now(bare), run.pending, ahead)


jax.tree_util.register_pytree_node(
    PackedRun,
    lambda run: ((run.vectors, run.pending, run.ahead_vectors), run.layout),
    lambda layout, parts: PackedRun(layout, *parts),
)


class PackedCall:
    """A compiled function of packed runs that returns vectors, which stay where they are, and numbers, which are read.

    `symbols` are the numbers of symbols that its inputs may be; None where they are not symbols.
    """

    def __init__(self, function: Callable, arguments: tuple[Any, ...], symbols: tuple[int | None, ...] = ()):
        def call(*arguments):
            vectors, seen = function(*arguments)
            self.seen = layout_of(seen)
            return vectors, self.seen.pack(seen)

        self.seen: Layout
        self.symbols = symbols
        self.kernel = compiled_kernel(call, *arguments)

    def __call__(self, *arguments: Any) -> tuple[Any, Tree]:
        vectors, seen = self.kernel(*arguments)
        return vectors, self.seen.view(tuple(map(np.asarray, seen)))

    def knows(self, inputs: tuple[Tree, ...]) -> bool:
        """Whether all inputs are known to be in range. Only single symbols are looked at quickly."""
        for value, size in zip(inputs, self.symbols, strict=True):
            if size is not None and not (isinstance(value, int | np.integer) and 0 <= value < size):
                return False
        return True


class SingleCalls:
    """The calls of one learner on packed runs, compiled once for each layout and kind of input."""

    def __init__(self, update: Update, stops: bool, symbols: Symbols):
        self._update, self._stops, self._symbols = update, stops, symbols
        self._calls: dict[Any, PackedCall] = {}

    def step(self, what: str, run: PackedRun, x: Tree, target: Tree) -> tuple[Vectors, Estimate]:
        """The vectors after one step, and its estimate without the gradient."""
        call = self._checked(what, self._advance, run, run.vectors, x, target)
        vectors, (finite, loss, output) = call(run.vectors, x, target)
        if self._stops and not finite:
            raise nonfinite_error(run)
        return vectors, Estimate(loss, None, output)

    def predict(self, run: PackedRun, x: Tree) -> tuple[Vectors, Tree]:
        """The vectors of the state after one more input, and the output."""
        # Every vector that is passed costs a microsecond.
        needed = run.vectors[: run.layout.vectors_of_first(len(MODEL))]
        vectors = needed if run.ahead_vectors is None else (needed, run.ahead_vectors)
        function = self._answer if run.ahead_vectors is None else self._answer_next
        return self._checked("predict: ", function, run, vectors, x)(vectors, x)

    def scan_one(self, run: PackedRun, xs: Tree, targets: Tree, newest: Tree) -> tuple[PackedRun, tuple[Any, Tree]]:
        """`Online.scan` of a chunk of one step: the run, the losses and the outputs."""
        call = self._call(self._advance_and_answer, run, run.vectors, xs, targets, newest)
        vectors, (finite, losses, outputs) = call(run.vectors, xs, targets, newest)
        if self._stops and not finite:
            raise nonfinite_error(run)
        return PackedRun(run.layout, vectors), (losses, outputs)

    def forward_one(self, run: PackedRun, xs: Tree) -> tuple[PackedRun, Tree]:
        """`Online.forward` of a chunk of one sample. Only the vectors that hold the moving state are written."""
        new, outputs = self._call(self._answer_first, run, run.vectors, xs)(run.vectors, xs)
        vectors = list(run.vectors)
        for place, vector in zip(run.layout.vectors_of(_moving(run.layout)), new, strict=True):
            vectors[place] = vector
        return PackedRun(run.layout, tuple(vectors)), outputs

    def _checked(self, what: str, function: Callable, run: PackedRun, vectors: Any, *inputs: Tree) -> PackedCall:
        """The call for such inputs, which are refused if they make no sense."""
        try:
            call = self._calls.get((function.__name__, run.layout, *map(_signature, inputs)))
            if call is None or not call.knows(inputs):
                sizes = self._symbols.check(what, run, *inputs)[: len(inputs)]
                call = self._call(function, run, vectors, *inputs, symbols=sizes)
        except Exception as error:
            explain(what, error, self._update, run, *inputs)
            raise
        return call

    def _call(self, function: Callable, run: PackedRun, vectors: Any, *inputs: Tree, symbols: tuple = ()) -> PackedCall:
        key = function.__name__, run.layout, *map(_signature, inputs)
        if key not in self._calls:
            self._calls[key] = PackedCall(partial(function, run.layout), (vectors, *inputs), symbols)
        return self._calls[key]

    def _advance(self, layout: Layout, vectors: Vectors, x: Tree, target: Tree):
        # A run that stops keeps the old vectors, so that only skipping has to choose between old and new numbers.
        advance = self._update.advance_and_look if self._stops else self._update.advance_if_finite
        new, estimate, finite = advance(layout.unpack(vectors), x, target)
        return layout.pack(new), (finite, estimate.loss, estimate.output)

    def _advance_and_answer(self, layout: Layout, vectors: Vectors, xs: Tree, targets: Tree, newest: Tree):
        run, sample = layout.unpack(vectors), jax.tree.map(lambda leaf: leaf[0], (xs, targets, newest))
        (new, finite), loss, output = careful_step(self._update, run, jnp.array(True), sample)
        if not self._stops:
            (new,), loss, output = skipping_step(self._update, run, sample)
        return layout.pack(strong(new)), jax.tree.map(lambda leaf: leaf[None], (finite, loss, output))

    def _answer(self, layout: Layout, vectors: Vectors, x: Tree):
        params, state = layout.unpack_first(vectors, len(MODEL))
        state, output = self._update.transition(params, state, x)
        return layout_of(state).pack(strong(state)), output

    def _answer_next(self, layout: Layout, vectors: tuple[Vectors, Vectors], x: Tree):
        """After inputs that wait for their targets."""
        params, state = layout.unpack_first(vectors[0], len(MODEL))
        state, output = self._update.transition(params, layout_of(state).unpack(vectors[1]), x)
        return layout_of(state).pack(strong(state)), output

    def _answer_first(self, layout: Layout, vectors: Vectors, xs: Tree):
        run, field = layout.unpack(vectors), _moving(layout)
        transition = one_step_of(self._update.model.transition)
        state, output = transition(run.params, run[field], jax.tree.map(lambda leaf: leaf[0], xs))
        new = layout.pack(run._replace(**{Run._fields[field]: strong(state)}))
        return tuple(new[place] for place in layout.vectors_of(field)), jax.tree.map(lambda leaf: leaf[None], output)


def _moving(layout: Layout) -> int:
    """The field of a run that a prediction moves: the newest state, if there is one besides that of learning."""
    return AHEAD if layout.has(AHEAD) else STATE


def _signature(value: Any) -> Any:
    """What a program is compiled for."""
    if type(value) is int or type(value) is float:
        return type(value)
    if isinstance(value, np.ndarray | jax.Array):
        return value.dtype, value.shape
    if isinstance(value, dict | list | tuple):
        leaves, structure = jax.tree.flatten(value)
        return structure, *map(_signature, leaves)
    return type(value)
