"""Streams divided into steps: windows of samples, from readers or from any iterable."""

import json
import zlib
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import jax
import numpy as np

from norewind import checks
from norewind.checks import ModelError
from norewind.learners.protocol import Learner
from norewind.streams.position import damaged
from norewind.streams.stream import Keyed, Samples, Stream

Position = dict[str, Any]
StreamLike = Stream | Iterable[tuple[Any, Any]] | Callable[[Position | None], Stream]


def as_steps(stream: Any, window: int, position: Position | None, learned: int = 0, answered: int = 0) -> "Steps":
    """Windows from a stream at the position, from a function that opens one there, or from an iterable."""
    position = position or {}
    if callable(stream):
        stream = stream(position.get("stream"))
    if not is_stream(stream):
        stream = IteratedStream(stream, window, position.get("stream"))
    elif position and fingerprint(stream.position()) != fingerprint(position["stream"]):
        raise ValueError(
            "fit: the folder holds a checkpoint, but the stream is not at its position. Pass a function that opens the "
            "stream at a position, e.g. lambda position: ByteStream(Source(path), position=position)."
        )
    return Steps(stream, window, position.get("left"), learned, answered)


def check_arguments(stream: Any, learner: Any, run: Any, window: int, samples: int | None) -> None:
    """Refuse what `fit` cannot use, in words, before anything is computed."""
    if not isinstance(learner, Learner):
        raise ModelError(f"fit: the learner is a {type(learner).__name__}. Call fit(stream, learner, run).")
    if not is_stream(stream) and not callable(stream) and not isinstance(stream, Iterable):
        raise ModelError(f"fit: the stream is a {type(stream).__name__}, not an iterable of pairs (x, target).")
    if hasattr(run, "unpack"):
        raise ModelError("fit: the run is packed, for single calls. Call its unpack().")
    checks.at_least_one("fit: window", window)
    if samples is not None and (not hasattr(samples, "__index__") or samples < 0):
        raise ModelError(f"fit: samples must be a whole number, 0 or more, not {samples!r}.")


def is_stream(stream: Any) -> bool:
    return hasattr(stream, "take") and hasattr(stream, "position")  # an array has the first


class Steps:
    """A stream, returned in whole windows. Samples that do not fill a window yet wait.

    What is learned from a window shows only in the outputs after it, so that samples can be
    predicted before their window is full. `predicted` counts all samples that have been
    predicted, and `answered` those of them that still wait for their window.

    Args:
        stream: the stream.
        window: the samples in a window.
        left: the samples that were waiting when the position was saved.
        learned: the number of samples before these.
        answered: how many of the waiting samples have been predicted.
    """

    def __init__(self, stream: Stream, window: int, left: list | None = None, learned: int = 0, answered: int = 0):
        self.stream, self.window = stream, window
        self.predicted, self.answered = learned + answered, answered
        self.waiting = None
        if left is not None:
            # Texts and keys are saved as lists, since no array of a checkpoint can hold them.
            self.waiting = Samples(*(np.array(part, object) if _is_text(part) else part for part in left))
            if self.waiting.keys is not None:
                keys = np.array([key.encode("latin-1") for key in self.waiting.keys], object)
                self.waiting = self.waiting._replace(keys=keys)

    def take(self, steps: int, patience: float | None = None) -> Samples | None:
        """The samples of up to `steps` windows, in order; None at the end of the stream."""
        waiting = 0 if self.waiting is None else count_of(self.waiting)
        wanted = steps * self.window
        # Without any pause, an idle stream would be polled all the time.
        patience = None if patience is None else max(patience, 0.01)
        new = self.stream.take(wanted - waiting, patience) if waiting < wanted else None
        if new is None and (self.waiting is None or waiting < self.window):
            return None
        parts = [part for part in (self.waiting, new) if part is not None]
        if len({_kind_of(part) for part in parts}) > 1:
            raise damaged("the samples that wait for their window are not like those that follow")
        whole = jax.tree.map(lambda *parts: np.concatenate(parts), *parts)
        usable = min(count_of(whole) // self.window * self.window, wanted)
        self.waiting = None if usable == count_of(whole) else jax.tree.map(lambda leaf: leaf[usable:], whole)
        return jax.tree.map(lambda leaf: leaf[:usable], whole)

    def windows(self, samples: Samples, steps: int) -> tuple[Any, Any]:
        """x and target of the samples, one entry per step, padded with zeros to `steps` steps.

        Samples of many keys are for a fleet, which takes any number, with their keys.
        """
        if samples.keys is not None:
            return Keyed(samples.keys, samples.xs), samples.targets

        def shaped(leaf):
            leaf = np.asarray(leaf)
            padding = np.zeros((steps * self.window - len(leaf), *leaf.shape[1:]), leaf.dtype)
            full = np.concatenate([leaf, padding]) if len(padding) else leaf
            return full if self.window == 1 else full.reshape(steps, self.window, *leaf.shape[1:])

        return jax.tree.map(shaped, samples.xs), jax.tree.map(shaped, samples.targets)

    def flat(self, outputs: Any, samples: int, *, keyed: bool = False) -> Any:
        """Outputs of a chunk of steps, one per sample, without the padding. With keys they come one by one."""

        def unshaped(leaf):
            leaf = np.asarray(leaf)
            return (leaf if keyed or self.window == 1 else leaf.reshape(-1, *leaf.shape[2:]))[:samples]

        return jax.tree.map(unshaped, outputs)

    def position(self) -> Position:
        def as_saved(part: Any) -> Any:
            if not isinstance(part, np.ndarray) or part.dtype != np.dtype(object):
                return part
            # Keys are bytes: as text, each byte is a character.
            return [one.decode("latin-1") if isinstance(one, bytes) else one for one in part]

        left = None if self.waiting is None else [as_saved(part) for part in self.waiting]
        return {"stream": self.stream.position(), "left": left}

    def early(self, outputs_of: Callable[[Samples], Any]) -> tuple[int, Samples, Any] | None:
        """The waiting samples that were not predicted yet: the number of the first, the samples, their outputs."""
        if self.waiting is None or (count := count_of(self.waiting)) == self.answered:
            return None
        new = self.rest(self.waiting, self.flat(outputs_of(self.waiting), count))
        self.answered = count
        return new

    def rest(self, samples: Samples, outputs: Any) -> tuple[int, Samples, Any]:
        """The same for whole windows, which start with the samples that were waiting."""
        number, answered, self.answered = self.predicted + 1, self.answered, 0
        self.predicted += count_of(samples) - answered
        return number, *jax.tree.map(lambda leaf: leaf[answered:], (samples, outputs))


class IteratedStream(Stream):
    """Samples from an iterable of (x, target) pairs, each a number, an array, or a pytree of them.

    At a position, it goes through the pairs before it again without using them.
    """

    def __init__(self, pairs: Iterable[tuple[Any, Any]], window: int = 1, position: Position | None = None):
        self._window = window
        self._items: Any = position.get("items") if position else 0
        if position and (len(position) != 1 or type(self._items) is not int or not 0 <= self._items < 2**63):
            raise damaged(f"it is {position!r}, but should be a number of items")
        self._pairs = islice(iter(pairs), self._items, None)

    def take(self, count: int, patience: float | None = None) -> Samples | None:
        pairs = list(islice(self._pairs, count))
        pairs = pairs[: len(pairs) // self._window * self._window]
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
        shapes = None
        for number, pair in enumerate(pairs, self._items + 1):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                kind = type(pair).__name__
                return ValueError(f"fit: item {number} of the stream is not a pair (x, target), but a {kind}.")
            before, shapes = shapes, jax.tree.map(np.shape, tuple(pair))
            if before not in (None, shapes):
                differ = f"item {number} of the stream has the shapes {shapes}, but the previous one has {before}"
                return ValueError(f"fit: {differ}. All pairs must have the same structure and shapes.")
        return ValueError(f"fit: the pairs after item {self._items} of the stream cannot be stacked: {error}")

    def position(self) -> Position:
        return {"items": self._items}


def _is_text(part: Any) -> bool:
    return isinstance(part, list) and bool(part) and isinstance(part[0], str)


def count_of(samples: Samples) -> int:
    return len(jax.tree.leaves(samples.xs)[0])


def _kind_of(samples: Samples) -> tuple:
    leaves, structure = jax.tree.flatten(tuple(samples))
    return structure, *((leaf.dtype, leaf.shape[1:]) for leaf in map(np.asarray, leaves))


def _stacked(entries: tuple) -> Any:
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *entries)


def fingerprint(position: Position | None) -> str:
    """A position as text, with checksums of its arrays."""
    return json.dumps(position, default=lambda array: [str(array.dtype), array.shape, zlib.crc32(array.tobytes())])


def check_fits(learner: Learner, horizon: int, window: int) -> None:
    """Refuse a learner made for another horizon or window."""
    if learner.horizon != horizon:
        needed = "norewind.Ahead(learner, loss, steps=stream.steps)" if horizon else "one without norewind.Ahead"
        differ = f"the learner forecasts {learner.horizon} rows ahead, but the horizon of the stream is {horizon}"
        raise ValueError(f"fit: {differ}: use {needed}.")
    if learner.window not in (0, window):
        raise ValueError(f"fit: window is {window}, but the learner takes windows of {learner.window}.")
