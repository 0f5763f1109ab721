"""A run packed for single calls: a few vectors in place of many arrays, each of which costs microseconds in a call."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from norewind.estimator import Estimate
from norewind.learner import Learner, nonfinite_error, nothing_pending
from norewind.run import NonFiniteError, Run
from norewind.trees import Tree, all_finite, is_key, strong

Vectors = tuple[jax.Array, ...]


class Packing:
    """How a tree of arrays becomes one vector per kind of number, and back. Nothing is rounded.

    Complex numbers are pairs of reals, PRNG keys are their data. `tree` is an example.
    """

    def __init__(self, tree: Tree):
        leaves, self.structure = jax.tree.flatten(tree)
        self.impls = [jax.random.key_impl(leaf) if is_key(leaf) else None for leaf in leaves]
        self.keeps_numpy = [isinstance(leaf, np.ndarray) for leaf in leaves]
        self.likes = [jax.eval_shape(_data, leaf) for leaf in leaves]
        flat = [jax.eval_shape(_flat, like) for like in self.likes]
        self.kinds = sorted({str(part.dtype) for part in flat})
        ends = dict.fromkeys(self.kinds, 0)
        self.places = []
        for part in flat:
            kind = str(part.dtype)
            self.places.append((self.kinds.index(kind), ends[kind], ends[kind] + part.size))
            ends[kind] += part.size
        self.sizes = ends
        self.packed, self._unpack = jax.jit(self.pack), jax.jit(self.unpack)

    def pack(self, tree: Tree, into: Vectors | None = None) -> Vectors:
        vectors = list(into or (jnp.zeros(size, kind) for kind, size in self.sizes.items()))
        for (kind, start, _), leaf in zip(self.places, jax.tree.leaves(tree), strict=True):
            # Not one concatenation: XLA's looks for every number's place among all the parts.
            vectors[kind] = jax.lax.dynamic_update_slice(vectors[kind], _flat(leaf), (start,))
        return tuple(vectors)

    def unpack(self, vectors: Vectors) -> Tree:
        parts = [
            _shaped(jax.lax.slice(vectors[kind], (start,), (stop,)), like)
            for (kind, start, stop), like in zip(self.places, self.likes, strict=True)
        ]
        leaves = [
            part if impl is None else jax.random.wrap_key_data(part, impl=impl)
            for part, impl in zip(parts, self.impls, strict=True)
        ]
        return jax.tree.unflatten(self.structure, leaves)

    def unpacked(self, vectors: Vectors) -> Tree:
        """The tree outside of compiled functions; what was a NumPy array is one again."""
        leaves = jax.tree.leaves(self._unpack(vectors))
        leaves = [np.array(leaf) if keeps else leaf for leaf, keeps in zip(leaves, self.keeps_numpy, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)

    def compiled(self, function: Callable[..., tuple[Tree, Any]]) -> Callable[..., tuple[Vectors, Any]]:
        """A function from a tree to a tree and results, as one from vectors to vectors and the results."""

        def call(vectors, *inputs):
            tree, results = function(self.unpack(vectors), *inputs)
            return self.pack(tree, vectors), results

        return jax.jit(call)


class PackedRun(NamedTuple):
    """A run as vectors, with the inputs that wait for their targets, and the state after them."""

    vectors: Vectors
    pending: tuple[Tree, ...] = ()
    ahead: Vectors | None = None


def packed(learner: Learner, run: Run) -> "tuple[PackedLearner, PackedRun]":
    """A learner and its run for one sample at a time: the same numbers but for rounding, several times faster a call.

    Estimates come without `grad`. For chunks use `Learner.scan`, which is faster still.

    >>> import jax, norewind, optax
    >>> cell = norewind.cells.gru(inputs=3, hidden=8, outputs=3)
    >>> learner = norewind.online(norewind.uoro(cell.transition, norewind.losses.cross_entropy), optax.adam(1e-2))
    >>> run = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    >>> single, now = norewind.packed(learner, run)
    >>> for symbol in [0, 1, 2, 0, 1]:
    ...     now, output = single.predict(now, symbol)
    ...     now, estimate = single.learn(now, (symbol + 1) % 3)
    >>> int(single.unpacked(now).samples)
    5
    """
    single = PackedLearner(learner, run)
    return single, single.pack(run)


class PackedLearner:
    """What `packed` returns. `pack` and `unpacked` lead from a run to a packed one and back."""

    def __init__(self, learner: Learner, run: Run):
        update, self._stops = learner.update, learner.stops
        self._packing = Packing(run._replace(pending=(), ahead=None))
        self._states = Packing(run.state)

        def advance(run, x, target):
            run, estimate, finite = update.advance_if_finite(run, x, target)
            return run, (estimate.loss, estimate.output, finite)

        def transition(vectors, ahead, x):
            run = self._packing.unpack(vectors)
            state = run.state if ahead is None else self._states.unpack(ahead)
            state, output = update.transition(run.params, state, x)
            return self._states.pack(strong(state)), output

        self._advance, self._transition = self._packing.compiled(advance), jax.jit(transition)

    def pack(self, run: Run) -> PackedRun:
        ahead = self._states.packed(run.ahead) if run.pending else None
        return PackedRun(self._packing.packed(run._replace(pending=(), ahead=None)), run.pending, ahead)

    def unpacked(self, run: PackedRun) -> Run:
        ahead = None if run.ahead is None else self._states.unpacked(run.ahead)
        return self._packing.unpacked(run.vectors)._replace(pending=run.pending, ahead=ahead)

    def step(self, run: PackedRun, x: Tree, target: Tree) -> tuple[PackedRun, Estimate]:
        """See `Learner.step`."""
        nothing_pending(run, "step")
        vectors, estimate = self._learned(run.vectors, x, target)
        return PackedRun(vectors), estimate

    def predict(self, run: PackedRun, x: Tree) -> tuple[PackedRun, Tree]:
        """See `Learner.predict`."""
        ahead, output = self._transition(run.vectors, run.ahead, x)
        return PackedRun(run.vectors, (*run.pending, x), ahead), output

    def learn(self, run: PackedRun, target: Tree) -> tuple[PackedRun, Estimate]:
        """See `Learner.learn`."""
        if not run.pending:
            raise ValueError("no input waits for a target: call predict(run, x) before learn(run, target).")
        x, *later = run.pending
        vectors, estimate = self._learned(run.vectors, x, target)
        return PackedRun(vectors, tuple(later), run.ahead if later else None), estimate

    def _learned(self, vectors: Vectors, x: Tree, target: Tree) -> tuple[Vectors, Estimate]:
        new, (loss, output, finite) = self._advance(vectors, x, target)
        if self._stops and not finite:
            raise nonfinite_error(self._packing.unpacked(vectors))
        return new, Estimate(loss, None, output)


class Single:
    """A learner of rows for one row at a time, from packed run to packed run; see `Ahead.step` and `Ahead.answer`.

    `run` is an example. `pack` and `unpacked` lead from a run to a packed one and back.
    """

    def __init__(self, learner: Any, run: Tree):
        packing = Packing(run)
        self.pack, self.unpacked = packing.packed, packing.unpacked

        def step(vectors, x, target):
            run, loss, outputs = _step(learner, packing.unpack(vectors), x, target)
            vectors = packing.pack(run, vectors)
            return vectors, (loss, outputs, all_finite(vectors))

        self._step = jax.jit(step)
        self.answer = packing.compiled(partial(_answer, learner))

    def step(self, vectors: Vectors, x: np.ndarray, target: np.ndarray) -> tuple[Vectors, float, Any]:
        """Learn from one row: the packed run, the loss and the outputs."""
        vectors, (loss, outputs, finite) = self._step(vectors, x, target)
        if not finite:
            raise NonFiniteError("this row gave numbers that are not finite; the run before it is kept.", 0, None)
        return vectors, float(loss), outputs


def _step(learner: Any, run: Tree, x: jax.Array, target: jax.Array) -> tuple[Tree, jax.Array, Any]:
    """One row, through the learner's own step of rows or through a chunk of one."""
    if hasattr(learner, "answer"):
        return learner.step(run, x, target)
    run, (losses, outputs) = learner.scan(run, x[None], target[None], count=1, outputs=True)
    return run, losses[0], outputs[0]


def _answer(learner: Any, run: Tree, x: jax.Array) -> tuple[Tree, Any]:
    if hasattr(learner, "answer"):
        return learner.answer(run, x)
    run, outputs = learner.forward(run, x[None], count=1)
    return run, outputs[0]


def _data(leaf: Any) -> jax.Array:
    return jax.random.key_data(leaf) if is_key(leaf) else jnp.asarray(leaf)


def _flat(leaf: Any) -> jax.Array:
    leaf = _data(leaf)
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        leaf = jnp.stack([leaf.real, leaf.imag])
    if leaf.dtype == jnp.uint32:
        leaf = jax.lax.bitcast_convert_type(leaf, jnp.int32)
    return jnp.ravel(leaf)


def _shaped(part: jax.Array, like: Any) -> jax.Array:
    if jnp.issubdtype(like.dtype, jnp.complexfloating):
        return jax.lax.complex(*part.reshape(2, *like.shape))
    if like.dtype == jnp.uint32:
        part = jax.lax.bitcast_convert_type(part, jnp.uint32)
    return part.reshape(like.shape)
