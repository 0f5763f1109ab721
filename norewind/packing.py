"""A run packed for single calls: a few vectors in place of many arrays, each of which costs microseconds in a call."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from norewind import checks
from norewind.chunks import careful_step, skipping_step
from norewind.combinators import one_step_of
from norewind.compilation import compiled_kernel
from norewind.layout import Layout, Vectors, layout_of
from norewind.ranges import Symbols
from norewind.run import Run, Update, explain, nonfinite_error
from norewind.trees import Tree, is_key, strong

MODEL = Run._fields[:2]
"""What a prediction needs of a run: the parameters and the state."""
STATE, AHEAD = Run._fields.index("state"), Run._fields.index("ahead")
NUMBERS = np.generic, int, float


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
    are then NumPy arrays. `unpack()` gives the run back.

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


class PackedEstimate:
    """The `Estimate` of a packed run: its numbers are read, and its gradient computed again, when somebody looks.

    It keeps the run before the step.
    """

    __slots__ = ("_gradient", "_inputs", "_layout", "_seen")

    def __init__(self, layout: Layout, seen: Vectors, gradient: Callable, inputs: tuple[PackedRun, Tree, Tree]):
        self._layout, self._seen, self._gradient, self._inputs = layout, seen, gradient, inputs

    @property
    def loss(self) -> np.ndarray:
        return self._layout.view_leaf(self._seen, 1)

    @property
    def output(self) -> Tree:
        return self._layout.view(self._seen)[2]

    @property
    def grad(self) -> Tree:
        run, x, target = self._inputs
        return self._gradient(run.unpack(), x, target)

    def __repr__(self) -> str:
        return f"Estimate(loss={self.loss}, output={self.output!r})"


class PackedCall:
    """A compiled function that returns a pair: vectors, which stay where they are, and a tree, which is read."""

    def __init__(self, function: Callable, arguments: tuple[Any, ...]):
        def call(*arguments):
            vectors, seen = function(*arguments)
            self.seen = layout_of(seen)
            return vectors, self.seen.pack(seen)

        self.seen: Layout
        self.kernel = compiled_kernel(call, *arguments)

    def __call__(self, *arguments: Any) -> tuple[Any, Tree]:
        vectors, seen = self.kernel(*arguments)
        return vectors, self.seen.view(tuple(map(np.asarray, seen)))


class SingleCalls:
    """The calls of one learner on packed runs, compiled once for each layout and kind of input."""

    def __init__(self, update: Update, stops: bool, symbols: Symbols):
        self._update, self._stops, self._symbols = update, stops, symbols
        self._calls: dict[Any, PackedCall] = {}
        # By the kinds of inputs, so that nothing else is looked at: the call, and the symbols of each.
        self._quick: dict[Any, tuple[Any, ...]] = {}
        self._needed: dict[Layout, int] = {}
        self._gradient = jax.jit(self._grad)

    def step(self, what: str, run: PackedRun, x: Tree, target: Tree) -> tuple[Vectors, PackedEstimate]:
        """The vectors after one step, and its estimate."""
        key = run.layout, _kind(x), _kind(target)
        try:
            call, inputs, targets = self._quick[key]
            given = x if inputs is None else inputs[x], target if targets is None else targets[target]
        except KeyError:
            call = given = None
        if call is None or given is None:
            call, given = self._prepared(what, key, self._advance, run, run.vectors, x, target)
        vectors, seen = call.kernel(run.vectors, *given)
        seen, finite = tuple(map(np.asarray, seen)), call.seen.leaves[0]
        if self._stops and not seen[finite.vector][finite.start]:
            raise nonfinite_error(run)
        return vectors, PackedEstimate(call.seen, seen, self._gradient, (run, x, target))

    def scan_one(self, run: PackedRun, xs: Tree, targets: Tree, newest: Tree) -> tuple[PackedRun, tuple[Any, Tree]]:
        """`Online.scan` of a chunk of one step: the run, the loss and the output, the latter with a leading axis."""
        call = self._call_for(self._advance_and_answer, run, xs, targets, newest)
        vectors, (finite, loss, output) = call(run.vectors, xs, targets, newest)
        if self._stops and not finite:
            raise nonfinite_error(run)
        return PackedRun(run.layout, vectors), (loss, output)

    def forward_one(self, run: PackedRun, xs: Tree) -> tuple[PackedRun, Tree]:
        """`Online.forward` of a chunk of one sample. Only the vectors that hold the moving state are written."""
        moving = run.layout.vectors_of(AHEAD if run.layout.has(AHEAD) else STATE)
        new, output = self._call_for(self._answer_first, run, xs)(run.vectors, xs)
        vectors = list(run.vectors)
        for place, vector in zip(moving, new, strict=True):
            vectors[place] = vector
        return PackedRun(run.layout, tuple(vectors)), output

    def _call_for(self, function: Callable, run: PackedRun, *inputs: Tree) -> PackedCall:
        key = function.__name__, run.layout, *map(_signature, inputs)
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = PackedCall(partial(function, run.layout), (run.vectors, *inputs))
        return call

    def _advance_and_answer(self, layout: Layout, vectors: Vectors, xs: Tree, targets: Tree, newest: Tree):
        run, sample = layout.unpack(vectors), jax.tree.map(lambda leaf: leaf[0], (xs, targets, newest))
        (new, finite), loss, output = careful_step(self._update, run, jnp.array(True), sample)
        if not self._stops:
            (new,), loss, output = skipping_step(self._update, run, sample)
        return layout.pack(strong(new)), jax.tree.map(lambda leaf: leaf[None], (finite, loss, output))

    def _answer_first(self, layout: Layout, vectors: Vectors, xs: Tree):
        run, field = layout.unpack(vectors), AHEAD if layout.has(AHEAD) else STATE
        transition = one_step_of(self._update.model.transition)
        state, output = transition(run.params, run[field], jax.tree.map(lambda leaf: leaf[0], xs))
        new = layout.pack(run._replace(**{Run._fields[field]: strong(state)}))
        return tuple(new[place] for place in layout.vectors_of(field)), jax.tree.map(lambda leaf: leaf[None], output)

    def predict(self, run: PackedRun, x: Tree) -> tuple[Vectors, Tree]:
        """The vectors of the state after one more input, and the output."""
        layout, vectors, ahead = run.layout, run.vectors, run.ahead_vectors
        needed = self._needed.get(layout)
        if needed is None:
            needed = self._needed[layout] = layout.vectors_of_first(len(MODEL))
        # Every vector that is passed costs a microsecond.
        vectors = vectors[:needed] if ahead is None else (vectors[:needed], ahead)
        key = layout, _kind(x), ahead is None
        try:
            call, inputs = self._quick[key]
            given = (x if inputs is None else inputs[x],)
        except KeyError:
            call = given = None
        if call is None or given is None:
            function = self._answer if ahead is None else self._answer_next
            call, given = self._prepared("predict: ", key, function, run, vectors, x)
        return call(vectors, *given)

    def _prepared(self, what: str, quick: Any, function: Callable, run: PackedRun, vectors: Any, *inputs: Any):
        """The call for such inputs and what to give it, checked. Numbers, and arrays that are no symbols, are found
        at once the next time."""
        try:
            sizes = self._symbols.check(what, run, *inputs)[: len(inputs)]
            given = tuple(map(_given, inputs, sizes))
            key = function.__name__, run.layout, *map(_signature, given)
            call = self._calls.get(key)
            if call is None:
                call = self._calls[key] = PackedCall(partial(function, run.layout), (vectors, *given))
        except Exception as error:
            explain(what, error, self._update, run, *inputs)
            raise
        if all(isinstance(value, NUMBERS) or _is_plain(value, size) for value, size in zip(inputs, sizes, strict=True)):
            known = self._quick.setdefault(quick, (call, *({} if size else None for size in sizes)))[1:]
            for symbols, value, there in zip(known, inputs, given, strict=True):
                if symbols is not None:
                    symbols[value] = there
        return call, given

    def _advance(self, layout: Layout, vectors: Vectors, x: Tree, target: Tree):
        run = layout.unpack(vectors)
        # A run that stops keeps the old vectors, so that only skipping has to choose between old and new numbers.
        advance = self._update.advance_and_look if self._stops else self._update.advance_if_finite
        new, estimate, finite = advance(run, x, target)
        return layout_of(new).pack(new), (finite, estimate.loss, estimate.output)

    def _answer(self, layout: Layout, vectors: Vectors, x: Tree):
        params, state = layout.unpack_first(vectors, len(MODEL))
        return self._moved(params, state, x)

    def _answer_next(self, layout: Layout, vectors: tuple[Vectors, Vectors], x: Tree):
        """After inputs that wait for their targets."""
        params, state = layout.unpack_first(vectors[0], len(MODEL))
        return self._moved(params, layout_of(state).unpack(vectors[1]), x)

    def _moved(self, params: Tree, state: Tree, x: Tree):
        state, output = self._update.transition(params, state, x)
        state = strong(state)
        return layout_of(state).pack(state), output

    def _grad(self, run: Run, x: Tree, target: Tree) -> Tree:
        return self._update.advance(run, x, target)[1].grad


def _kind(value: Any) -> Any:
    """What tells inputs of one call apart: for arrays type and shape, for numbers their class."""
    return (value.dtype, value.shape) if type(value) is np.ndarray else type(value)


def _is_plain(value: Any, size: int | None) -> bool:
    """Whether an input is an array without symbols, which would have to be looked at every time."""
    return type(value) is np.ndarray and size is None


def _signature(value: Any) -> Any:
    """What a program is compiled for."""
    if isinstance(value, np.generic):
        return type(value)
    if hasattr(value, "dtype"):
        return value.dtype, value.shape
    if isinstance(value, dict | list | tuple):
        leaves, structure = jax.tree.flatten(value)
        return structure, *map(_signature, leaves)
    return type(value)


def _given(value: Any, size: int | None) -> Any:
    """What a call is given: symbols are kept on the device, and arrays are passed as they are."""
    if size and np.ndim(value) == 0:
        return _placed(int(value))
    if value is None or isinstance(value, (np.ndarray, *NUMBERS)):
        return value
    return jax.tree.map(
        lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) and not is_key(leaf) else leaf, value
    )


@lru_cache
def _placed(symbol: int) -> jax.Array:
    """A symbol on the device: there are few of them, and it takes two microseconds to bring one there."""
    return jax.device_put(np.int32(symbol))
