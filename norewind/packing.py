"""A run packed for single calls: a few vectors in place of many arrays, each of which costs microseconds in a call."""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from norewind import checks
from norewind.compilation import compiled_kernel
from norewind.run import Run, Update, nonfinite_error
from norewind.trees import Tree, is_key, strong

Vectors = tuple[jax.Array | np.ndarray, ...]


class Leaf(NamedTuple):
    """One array of a tree: what it is, and where it stands in which vector."""

    dtype: Any
    shape: tuple[int, ...]
    impl: Any  # of a PRNG key; None for numbers
    vector: int
    start: int
    stop: int


class Layout:
    """How a tree becomes a vector of bits per width of number, and back. Nothing is rounded.

    All numbers of 32 bits share a vector, and so do those of 64. Complex numbers are pairs of
    reals, keys are their data. Layouts of trees with the same arrays are one object (`layout_of`).
    """

    def __init__(self, structure: Any, kinds: tuple[tuple[Any, tuple[int, ...], Any], ...]):
        self.structure, self.leaves = structure, []
        ends: dict[str, int] = {}
        for dtype, shape, impl in kinds:
            kind = _kind(dtype)
            start = ends.setdefault(kind, 0)
            ends[kind] += prod(shape) * (2 if np.issubdtype(dtype, np.complexfloating) else 1)
            self.leaves.append(Leaf(dtype, shape, impl, list(ends).index(kind), start, ends[kind]))
        self.vector_kinds, self.lengths = tuple(ends), list(ends.values())

    def pack(self, tree: Tree) -> Vectors:
        """The vectors, inside a compiled function."""
        # Not joined by `concatenate`: in one piece of machine code, that looks for the part of every single number.
        vectors = [jnp.zeros(length, kind) for length, kind in zip(self.lengths, self.vector_kinds, strict=True)]
        for leaf, value in zip(self.leaves, jax.tree.leaves(tree), strict=True):
            part = _flat(jax.random.key_data(value) if leaf.impl else jnp.asarray(value))
            vectors[leaf.vector] = jax.lax.dynamic_update_slice(vectors[leaf.vector], part, (leaf.start,))
        return tuple(vectors)

    def unpack(self, vectors: Vectors) -> Tree:
        """The tree, inside a compiled function."""
        return self._tree(vectors, _shaped)

    def pack_now(self, tree: Tree) -> Vectors:
        return jax.jit(self.pack)(tree)

    def unpack_now(self, vectors: Vectors) -> Tree:
        """The tree as JAX arrays, outside of compiled functions; there is nothing to compile."""
        return self._tree([np.asarray(vector) for vector in vectors], lambda part, leaf: jnp.array(_viewed(part, leaf)))

    def view(self, vectors: Vectors) -> Tree:
        """The tree as NumPy arrays that look into the vectors."""
        return self._tree([np.asarray(vector) for vector in vectors], _viewed)

    def lengthened(self, vectors: Vectors) -> Vectors:
        """Vectors of the first entry of a pair, as those of the pair: with zeros at the end."""
        longer = [np.zeros(length, kind) for length, kind in zip(self.lengths, self.vector_kinds, strict=True)]
        for new, old in zip(longer, vectors, strict=False):
            new[: min(len(new), len(old))] = np.asarray(old)[: len(new)]
        return tuple(map(jnp.asarray, longer))

    def shortened(self, vectors: Vectors) -> Vectors:
        """Vectors of a pair whose first entry has this layout, as those of that entry."""
        return tuple(v if len(v) == n else np.asarray(v)[:n] for v, n in zip(vectors, self.lengths, strict=False))

    def second(self, pair: tuple[Tree, Tree]) -> "Layout":
        """Of the layout of a pair, what concerns the pair's second entry."""
        part = Layout(jax.tree.structure(pair[1]), ())
        part.leaves = self.leaves[len(jax.tree.leaves(pair[0])) :]
        return part

    def _tree(self, vectors: Any, shaped: Any) -> Tree:
        values = []
        for leaf in self.leaves:
            value = shaped(vectors[leaf.vector][leaf.start : leaf.stop], leaf)
            values.append(value if leaf.impl is None else jax.random.wrap_key_data(jnp.asarray(value), impl=leaf.impl))
        return jax.tree.unflatten(self.structure, values)


_layouts: dict[Any, Layout] = {}


def layout_of(tree: Tree) -> Layout:
    """The layout of a tree, the same object for all trees with the same arrays, so that programs are compiled once."""
    leaves, structure = jax.tree.flatten(tree)
    kinds = []
    for leaf in leaves:
        impl = jax.random.key_impl(leaf) if is_key(leaf) else None
        data = jax.eval_shape(jax.random.key_data, leaf) if impl else leaf
        kinds.append((np.dtype(jnp.result_type(data)), tuple(np.shape(data)), impl))
    key = structure, tuple(kinds)
    if key not in _layouts:
        _layouts[key] = Layout(*key)
    return _layouts[key]


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
    if not run.pending and run.ahead is not None:
        raise ValueError("pack: this run belongs to `Ahead`, which keeps a state of its own. Pack a run of `online`.")
    bare = run._replace(pending=(), ahead=None)
    layout = layout_of(bare)
    ahead = layout_of(run.state).pack_now(run.ahead) if run.pending else None
    return PackedRun(layout, layout.pack_now(bare), run.pending, ahead)


class PackedEstimate:
    """The `Estimate` of a packed run: loss and output are there, the gradient is computed again when somebody looks.

    Until then it keeps the run before the step.
    """

    __slots__ = ("_grad", "loss", "output")

    def __init__(self, loss: np.ndarray, output: Tree, grad: Callable[[], Tree]):
        self.loss, self.output, self._grad = loss, output, grad

    @property
    def grad(self) -> Tree:
        return self._grad()

    def __repr__(self) -> str:
        return f"Estimate(loss={self.loss}, output={self.output!r})"


class Program:
    """A compiled function that returns a pair as vectors; what stands second in the pair is read from them.

    The argument at `place` is the first entry of such a pair, so that a result can be passed back as it is.
    """

    def __init__(self, function: Callable, place: int, arguments: tuple[Any, ...], *, large: bool = False):
        def call(*arguments):
            pair = function(*arguments)
            self.layout = layout_of(pair)
            self.seen = self.layout.second(pair)
            return self.layout.pack(pair)

        self.layout: Layout
        self.seen: Layout
        self.place = place
        jax.eval_shape(call, *arguments)
        # Of a large program, XLA cannot always make one piece, and finds that out when most of the work is done.
        self._call = jax.jit(call) if large else compiled_kernel(call, *self._lengthened(arguments))

    def __call__(self, *arguments: Any) -> tuple[Vectors, Tree]:
        """The vectors of the pair, and its second entry."""
        vectors = self._call(*self._lengthened(arguments))
        return vectors, self.seen.view(vectors)

    def _lengthened(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        vectors = arguments[self.place]
        if vectors is None or [len(vector) for vector in vectors] == self.layout.lengths:
            return arguments
        return *arguments[: self.place], self.layout.lengthened(vectors), *arguments[self.place + 1 :]


class SingleCalls:
    """The programs for packed runs of one learner, compiled once for each layout and kind of input."""

    def __init__(self, update: Update, stops: bool):
        self._update, self._stops = update, stops
        self._programs: dict[Any, Program] = {}
        self._gradient = jax.jit(self._grad, static_argnums=0)

    def step(self, run: PackedRun, x: Tree, target: Tree) -> tuple[Vectors, PackedEstimate]:
        """The vectors after one step, and its estimate."""
        vectors, (finite, loss, output) = self._program(self._advance, 0, run.layout, run.vectors, x, target)
        if self._stops and not finite:
            raise nonfinite_error(run)
        return vectors, PackedEstimate(loss, output, partial(self._gradient, run.layout, run.vectors, x, target))

    def predict(self, run: PackedRun, x: Tree) -> tuple[Vectors, Tree]:
        """The vectors of the state after one more input, and the output."""
        return self._program(self._answer, 1, run.layout, run.vectors, run.ahead_vectors, x)

    def _program(self, function: Callable, place: int, layout: Layout, vectors: Vectors, *inputs: Any):
        key = place, layout, *map(_signature, inputs)
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = Program(partial(function, layout), place, (vectors, *inputs))
        return program(vectors, *inputs)

    def _advance(self, layout: Layout, vectors: Vectors, x: Tree, target: Tree):
        run = layout.unpack(vectors)
        # A run that stops keeps the old vectors, so that only skipping has to choose between old and new numbers.
        advance = self._update.advance_and_look if self._stops else self._update.advance_if_finite
        new, estimate, finite = advance(run, x, target)
        return new, (finite, estimate.loss, estimate.output)

    def _answer(self, layout: Layout, vectors: Vectors, ahead: Vectors | None, x: Tree):
        run = layout.unpack(vectors)
        state = run.state if ahead is None else layout_of(run.state).unpack(ahead)
        state, output = self._update.transition(run.params, state, x)
        return strong(state), output

    def _grad(self, layout: Layout, vectors: Vectors, x: Tree, target: Tree) -> Tree:
        return self._update.advance(layout.unpack(vectors), x, target)[1].grad


def _signature(value: Any) -> Any:
    """What a program is compiled for."""
    if hasattr(value, "dtype"):
        return value.dtype, value.shape
    if isinstance(value, dict | list | tuple):
        leaves, structure = jax.tree.flatten(value)
        return structure, *map(_signature, leaves)
    return type(value)


def _kind(dtype: np.dtype) -> str:
    real = np.dtype(dtype.type(0).real.dtype)
    return "uint32" if real.kind == "b" else {4: "uint32", 8: "uint64"}.get(real.itemsize, real.name)


def _flat(value: jax.Array) -> jax.Array:
    if jnp.issubdtype(value.dtype, jnp.complexfloating):
        value = jnp.stack([value.real, value.imag])
    kind = jnp.dtype(_kind(np.dtype(value.dtype)))
    return (value.astype(kind) if value.dtype == bool else jax.lax.bitcast_convert_type(value, kind)).ravel()


def _shaped(part: jax.Array, leaf: Leaf) -> jax.Array:
    if leaf.dtype == bool:
        return part.reshape(leaf.shape).astype(bool)
    if np.issubdtype(leaf.dtype, np.complexfloating):
        real = leaf.dtype.type(0).real.dtype
        return jax.lax.complex(*jax.lax.bitcast_convert_type(part, real).reshape(2, *leaf.shape))
    return jax.lax.bitcast_convert_type(part, leaf.dtype).reshape(leaf.shape)


def _viewed(part: np.ndarray, leaf: Leaf) -> np.ndarray:
    # For every number that a call returns: the letter of a dtype is there, while `np.issubdtype` takes a microsecond.
    if leaf.dtype.kind == "b":
        return part.reshape(leaf.shape).astype(bool)
    if leaf.dtype.kind == "c":
        parts = part.view(leaf.dtype.type(0).real.dtype).reshape(2, *leaf.shape)
        return np.ascontiguousarray(np.moveaxis(parts, 0, -1)).view(leaf.dtype)[..., 0]
    return part.view(leaf.dtype).reshape(leaf.shape)
