"""Runs packed for single calls: a few vectors, because each array that is passed costs microseconds."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from norewind.core import checks
from norewind.core.combinators import one_step_of
from norewind.core.estimator import Estimate
from norewind.core.run import Run, Update, explain, nonfinite_error
from norewind.core.symbol_ranges import Symbols
from norewind.core.trees import Tree, strong
from norewind.engines.compilation import compiled_kernel
from norewind.learners.chunks import careful_step, skipping_step
from norewind.learners.packed_layout import Layout, Vectors, layout_of

# The fields of a run that a prediction needs: the parameters and the state.
MODEL = Run._fields[:2]
# Checked in every call, since checking for a JAX array takes longer.
SYMBOL, SCALAR = (int, np.integer), (int, float, np.generic)
STATE, AHEAD = Run._fields.index("state"), Run._fields.index("ahead")


class PackedRun:
    """A run as a few vectors, for single calls: `learner.step`, `predict`, `learn` and `reset` accept and return it.

    It has the fields of a `Run`, which are unpacked on first access; `unpack` returns the run itself.

    Args:
        layout: where the arrays of the run are in the vectors.
        vectors: the vectors.
        pending: inputs that are waiting for their targets.
        ahead: the vectors of the state after these inputs.
    """

    __slots__ = ("_run", "ahead_vectors", "layout", "pending", "vectors")

    def __init__(self, layout: Layout, vectors: Vectors, pending: tuple[Tree, ...] = (), ahead: Vectors | None = None):
        self.layout, self.vectors, self.pending, self.ahead_vectors = layout, vectors, pending, ahead
        self._run: Run | None = None

    def unpack(self) -> Run:
        """Return the same run, as arrays."""
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
    """Pack a run for single calls, which then take less than half the time. For chunks use `scan`.

    `learner.step`, `predict`, `learn` and `reset` accept it and return another. The numbers are the
    same up to rounding. Losses and outputs are then NumPy arrays, and an estimate has no gradient: to see
    one, step with `unpack()`, which returns the run itself.

    Args:
        run: the run to pack.

    Returns:
        The packed run.

    Raises:
        ModelError: it is not a run.

    >>> import jax, norewind
    >>> cell = norewind.cells.gru(inputs=3, hidden=8, outputs=3)
    >>> learner = norewind.online(norewind.uoro(cell.transition, norewind.losses.cross_entropy), norewind.adam(1e-2))
    >>> run = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    >>> packed = norewind.learners.pack(run)
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
    """A compiled function of packed runs. It returns vectors, which stay on the device, and numbers, which are read.

    Args:
        function: the function, from vectors and inputs to vectors and numbers.
        arguments: examples of its arguments.
        symbols: for each input, the number of symbols that it may be; None if it is not a symbol.
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

    def given(self, inputs: tuple[Tree, ...]) -> tuple[Tree, ...] | None:
        """Place single symbols on the device.

        Args:
            inputs: the inputs.

        Returns:
            The inputs; None if one of the symbols is not known to be in range.
        """
        given = inputs
        for place, size in enumerate(self.symbols):
            if size is not None:
                value = inputs[place]
                if not (isinstance(value, SYMBOL) and 0 <= value < size):
                    return None
                given = *given[:place], _placed(value, jax.config.jax_enable_x64), *given[place + 1 :]  # pyright: ignore[reportAttributeAccessIssue] (made when it is imported)
        return given


class SingleCalls:
    """The calls of one learner on packed runs, compiled once for each layout and kind of input.

    Args:
        update: the estimator with the optimizer.
        stops: whether a number that is not finite raises an error.
        symbols: the check of symbols.
    """

    def __init__(self, update: Update, stops: bool, symbols: Symbols):
        self._update, self._stops, self._symbols = update, stops, symbols
        self._calls: dict[Any, PackedCall] = {}

    def step(self, what: str, run: PackedRun, x: Tree, target: Tree) -> tuple[Vectors, Estimate]:
        """Learn from one sample.

        Args:
            what: the name of the function that was called, for messages.
            run: the run.
            x: the input.
            target: the target.

        Returns:
            The vectors after the step, and its estimate without the gradient.
        """
        vectors, (finite, loss, output) = self._checked(what, self._advance, run, run.vectors, x, target)
        if self._stops and not finite:
            raise nonfinite_error(run)
        return vectors, Estimate(loss, None, output)

    def predict(self, run: PackedRun, x: Tree) -> tuple[Vectors, Tree]:
        """Predict the output for one more input.

        Args:
            run: the run.
            x: the input.

        Returns:
            The vectors of the state after the input, and the output.
        """
        # Every argument costs a microsecond.
        needed = run.vectors[: run.layout.vectors_of_first(len(MODEL))]
        return self._checked("predict", self._answer, run, (needed, run.ahead_vectors), x)

    def scan_one(self, run: PackedRun, xs: Tree, targets: Tree, newest: Tree) -> tuple[PackedRun, Any, Tree]:
        """Do what `Online.scan` does, for a chunk of one step.

        Args:
            run: the run.
            xs: the input, with a leading axis of one.
            targets: the target, likewise.
            newest: a newer input to answer, likewise; or None.

        Returns:
            The run, the losses and the outputs.
        """
        call = self._call(self._advance_and_answer, run, run.vectors, xs, targets, newest)
        vectors, (finite, losses, outputs) = call(run.vectors, xs, targets, newest)
        if self._stops and not finite:
            raise nonfinite_error(run)
        return PackedRun(run.layout, vectors), losses, outputs

    def forward_one(self, run: PackedRun, xs: Tree) -> tuple[PackedRun, Tree]:
        """Do what `Online.forward` does, for one sample. Only the vectors that hold the moving state are written.

        Args:
            run: the run.
            xs: the input, with a leading axis of one.

        Returns:
            The run and the outputs.
        """
        new, outputs = self._call(self._answer_first, run, run.vectors, xs)(run.vectors, xs)
        vectors = list(run.vectors)
        for place, vector in zip(run.layout.vectors_of(_moving(run.layout)), new, strict=True):
            vectors[place] = vector
        return PackedRun(run.layout, tuple(vectors)), outputs

    def _checked(self, what: str, function: Callable, run: PackedRun, vectors: Any, *inputs: Tree) -> tuple[Any, Tree]:
        """Call a function with inputs, which are checked first."""
        try:
            call = self._calls.get((function.__name__, run.layout, *map(_signature, inputs)))
            given = None if call is None else call.given(inputs)
            if call is None or given is None:
                sizes = self._symbols.check(what, *inputs)[: len(inputs)]
                call, given = self._call(function, run, vectors, *inputs, symbols=sizes), inputs
        except Exception as error:
            explain(what, error, self._update, run, *inputs)
            raise
        return call(vectors, *given)

    def _call(self, function: Callable, run: PackedRun, vectors: Any, *inputs: Tree, symbols: tuple = ()) -> PackedCall:
        key = function.__name__, run.layout, *map(_signature, inputs)
        if key not in self._calls:
            self._calls[key] = PackedCall(partial(function, run.layout), (vectors, *inputs), symbols)
        return self._calls[key]

    def _advance(self, layout: Layout, vectors: Vectors, x: Tree, target: Tree):
        # When a run stops, the old vectors are kept, so only skipping has to choose between old and new numbers.
        advance = self._update.advance_and_check if self._stops else self._update.advance_if_finite
        new, estimate, finite = advance(layout.unpack(vectors), x, target)
        return layout.pack(new), (finite, estimate.loss, estimate.output)

    def _advance_and_answer(self, layout: Layout, vectors: Vectors, xs: Tree, targets: Tree, newest: Tree):
        run, sample = layout.unpack(vectors), jax.tree.map(lambda leaf: leaf[0], (xs, targets, newest))
        if self._stops:
            (new, finite), loss, output = careful_step(self._update, run, jnp.array(True), sample)
        else:
            (new,), loss, output = skipping_step(self._update, run, sample)
            finite = None  # a bad sample has been skipped
        return layout.pack(strong(new)), jax.tree.map(lambda leaf: leaf[None], (finite, loss, output))

    def _answer(self, layout: Layout, vectors: tuple[Vectors, Vectors | None], x: Tree):
        """Answer with the state after the inputs that are still waiting for their targets, if there are any."""
        (params, state), ahead = layout.unpack_first(vectors[0], len(MODEL)), vectors[1]
        state = state if ahead is None else layout_of(state).unpack(ahead)
        state, output = self._update.transition(params, state, x)
        return layout_of(state).pack(strong(state)), output

    def _answer_first(self, layout: Layout, vectors: Vectors, xs: Tree):
        run, field = layout.unpack(vectors), _moving(layout)
        transition = one_step_of(self._update.estimator.model.transition)
        state, output = transition(run.params, run[field], jax.tree.map(lambda leaf: leaf[0], xs))
        return layout.replace(vectors, field, strong(state)), jax.tree.map(lambda leaf: leaf[None], output)


def _moving(layout: Layout) -> int:
    """Return the field of a run that a prediction changes: the newest state, if it is kept separately."""
    return AHEAD if layout.has(AHEAD) else STATE


@lru_cache(maxsize=1024, typed=True)
def _placed(symbol: Any, x64: bool) -> jax.Array:
    """Return a symbol on the device. There are few of them, and a cache is faster than a transfer.

    A Python integer has 64 bits only with `x64`.
    """
    return jax.device_put(symbol)


def _signature(value: Any) -> Any:
    """Return the part of a value that a program is compiled for."""
    if isinstance(value, SCALAR):
        return type(value)
    if isinstance(value, np.ndarray | jax.Array):
        return value.dtype, value.shape
    if isinstance(value, dict | list | tuple):
        leaves, structure = jax.tree.flatten(value)
        return structure, *map(_signature, leaves)
    return type(value)
