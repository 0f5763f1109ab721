"""Streams cut into steps: windows of samples, from readers or from anything that can be iterated over."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import jax
import numpy as np

from norewind.streams.stream import Samples, Stream

Position = dict[str, Any]

SHORTEST = 0.01
"""Seconds. Somebody with no patience at all would ask an idle stream without a pause."""


def as_steps(stream: Any, memory: int, position: Position | None) -> "Steps":
    """Windows of `memory` samples from a stream, from a function that makes one at a position, or from an iterable."""
    position = position or {}
    if callable(stream):
        stream = stream(position.get("stream"))
    elif position and hasattr(stream, "take"):
        raise ValueError(
            "fit: the folder holds a checkpoint, so the stream must be opened where that was taken. Pass a function of "
            "the position, e.g. lambda position: ByteStream(Source(path, ...), position=position)."
        )
    if not hasattr(stream, "take"):
        stream = IteratedStream(stream, memory, position.get("stream"))
    return Steps(stream, memory, position.get("left"))


class Steps:
    """A stream, handed out in whole windows. Samples that do not fill one yet wait."""

    def __init__(self, stream: Stream, memory: int, left: list | None = None):
        """`left` holds the samples that waited when the position was saved."""
        self.stream = stream
        self.memory = memory
        self._left = None if left is None else Samples(*map(_unpacked, left))

    def take(self, steps: int, patience: float | None = None) -> Samples | None:
        """Up to so many windows, one sample after the other; None at the end of the stream."""
        waiting = 0 if self._left is None else count_of(self._left)
        wanted = steps * self.memory
        patience = None if patience is None else max(patience, SHORTEST)
        new = self.stream.take(wanted - waiting, patience) if waiting < wanted else None
        if new is None and (self._left is None or waiting < self.memory):
            return None
        parts = [part for part in (self._left, new) if part is not None]
        whole = jax.tree.map(lambda *parts: np.concatenate(parts), *parts)
        usable = min(count_of(whole) // self.memory * self.memory, wanted)
        self._left = None if usable == count_of(whole) else first(whole, None, usable)
        return first(whole, usable)

    def windows(self, samples: Samples, steps: int) -> tuple[Any, Any]:
        """x and target of the samples, one entry per step, filled up with zeros to so many steps."""

        def shaped(leaf):
            leaf = np.asarray(leaf)
            padding = np.zeros((steps * self.memory - len(leaf), *leaf.shape[1:]), leaf.dtype)
            full = np.concatenate([leaf, padding]) if len(padding) else leaf
            return full if self.memory == 1 else full.reshape(steps, self.memory, *leaf.shape[1:])

        return jax.tree.map(shaped, samples.xs), jax.tree.map(shaped, samples.targets)

    def flat(self, outputs: Any, samples: int) -> Any:
        """Outputs of whole chunks of steps, one per sample, without the filling."""

        def unshaped(leaf):
            leaf = np.asarray(leaf)
            return (leaf if self.memory == 1 else leaf.reshape(-1, *leaf.shape[2:]))[:samples]

        return jax.tree.map(unshaped, outputs)

    def position(self) -> Position:
        """Where to go on, as JSON."""
        left = None if self._left is None else [_packed(field) for field in self._left]
        return {"stream": self.stream.position(), "left": left}


class IteratedStream:
    """Samples from an iterable of (x, target) pairs, each a number, an array, or a pytree of them."""

    def __init__(self, pairs: Iterable[tuple[Any, Any]], memory: int = 1, position: Position | None = None):
        """Rebuilt at a position, it goes through the pairs before it again, without using them."""
        self.counts: dict[str, int] = {}
        self._memory = memory
        self._items = (position or {}).get("items", 0)
        self._pairs = islice(iter(pairs), self._items, None)

    def take(self, count: int, patience: float | None = None) -> Samples | None:
        """The next pairs, in whole windows; None at the end."""
        pairs = list(islice(self._pairs, count))
        pairs = pairs[: len(pairs) // self._memory * self._memory]
        if not pairs:
            return None
        try:
            xs, targets = zip(*pairs, strict=True)
            samples = Samples(_stacked(xs), _stacked(targets))
        except (TypeError, ValueError) as error:
            raise self._odd_one(pairs, error) from None
        self._items += len(pairs)
        return samples

    def _odd_one(self, pairs: list, error: Exception) -> ValueError:
        """Which pair cannot stand in a row with the others, and why."""
        shapes = None
        for number, pair in enumerate(pairs, self._items + 1):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                kind = type(pair).__name__
                return ValueError(f"fit: item {number} of the stream is not a pair (x, target), but a {kind}.")
            before, shapes = shapes, jax.tree.map(np.shape, tuple(pair))
            if before not in (None, shapes):
                return ValueError(
                    f"fit: item {number} of the stream has the shapes {shapes}, but the one before has {before}. All "
                    "pairs must be built alike."
                )
        return ValueError(f"fit: the pairs after item {self._items} of the stream cannot be put together: {error}")

    def position(self) -> Position:
        """How many pairs were taken."""
        return {"items": self._items}


def count_of(samples: Samples) -> int:
    """How many samples there are."""
    return len(jax.tree.leaves(samples.xs)[0])


def first(samples: Samples, stop: int | None, start: int = 0) -> Samples:
    """The samples from `start` to `stop`."""
    return jax.tree.map(lambda leaf: leaf[start:stop], samples)


def _stacked(entries: tuple) -> Any:
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *entries)


def _packed(field: np.ndarray | None) -> dict | None:
    return None if field is None else {"dtype": str(field.dtype), "values": field.tolist(), "shape": field.shape}


def _unpacked(packed: dict | None) -> Any:
    return None if packed is None else np.array(packed["values"], packed["dtype"]).reshape(packed["shape"])


StreamLike = Stream | Iterable[tuple[Any, Any]] | Callable[[Position | None], Stream]
