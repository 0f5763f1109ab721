"""Streams divided into windows of samples."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from norewind.core.trees import Tree, concatenate_trees
from norewind.scoring.score import Outputs
from norewind.streams.position import damaged_position_error
from norewind.streams.stream import Keyed, Position, Samples, Stream
from norewind.streams.table.row_stream import RowStream
from norewind.training.checkpoint_schema import damaged_checkpoint, is_text
from norewind.training.folder import SavedRun


class WindowedStream:
    """A stream whose samples are returned in whole windows.

    Learning from a window affects only the outputs after it, so samples can be predicted
    before their window is full.

    Args:
        stream: where the samples come from.
        window: the number of samples in a window.
        saved: the checkpoint at whose position the stream is; None at the start.

    Attributes:
        predicted: the number of samples that have been predicted.
        partial_window: the latest samples, which do not fill a window yet; None if there are none.
        predicted_early: how many samples of the partial window have been predicted.

    Raises:
        DamagedError: the partial window in the checkpoint cannot be from this stream.
    """

    def __init__(self, stream: Stream, window: int, saved: SavedRun | None = None):
        self.stream = stream
        self.window = window
        self.predicted = self.predicted_early = 0
        self.partial_window: Samples | None = None
        if saved:
            entries = saved.entries
            self.predicted_early, parts = entries["predicted_early"], entries["position"]["partial_window"]
            self.predicted = entries["tally"]["samples"] + self.predicted_early
            if parts is not None:
                self.partial_window = Samples(*(np.array(part, object) if is_text(part) else part for part in parts))
                self._check_partial_window(saved.path, self.partial_window)

    @property
    def rows(self) -> RowStream:
        """The stream, which must be one of rows."""
        assert isinstance(self.stream, RowStream)
        return self.stream

    def _check_partial_window(self, path: Path, samples: Samples) -> None:
        if (held := sample_count(samples)) >= self.window:
            raise damaged_checkpoint(path, f"{held} samples wait for a window of {self.window}")
        if isinstance(self.stream, RowStream) and (inputs := samples.xs.shape[1]) != self.stream.width:
            problem = f"the rows that wait for their window have {inputs} inputs, not {self.stream.width}"
            raise damaged_checkpoint(path, problem)

    def take(self, windows: int, timeout: float | None = None) -> Samples | None:
        """Return the samples of the next windows, in order; None at the end of the stream.

        Args:
            windows: the maximum number of windows.
            timeout: how many seconds to wait; None to wait indefinitely.

        Raises:
            StreamError: the input is bad, or the partial window differs in kind from the samples that follow.
        """
        held, wanted = sample_count(self.partial_window), windows * self.window
        # Without a pause, an idle stream would be polled continuously.
        timeout = None if timeout is None else max(timeout, 0.01)
        new = self.stream.take(wanted - held, timeout) if held < wanted else None
        if new is None and held < self.window:
            return None
        parts = [part for part in (self.partial_window, new) if part is not None]
        if len({_kind_of(part) for part in parts}) > 1:
            raise damaged_position_error("the samples that wait for their window differ in kind from those that follow")
        samples = concatenate_trees(parts)
        usable = min(sample_count(samples) // self.window * self.window, wanted)
        is_rest = usable < sample_count(samples)
        self.partial_window = jax.tree.map(lambda leaf: leaf[usable:], samples) if is_rest else None
        return jax.tree.map(lambda leaf: leaf[:usable], samples)

    def as_windows(self, samples: Samples, windows: int) -> tuple[Tree | Keyed, Tree]:
        """Return x and target of the samples, one entry per window, padded with zeros.

        Samples of many keys are returned with their keys and without padding, since a fleet takes any number.

        Args:
            samples: the samples, in whole windows except perhaps the last.
            windows: the number of windows to pad to.
        """
        if samples.keys is not None:
            return Keyed(samples.keys, samples.xs), samples.targets

        def shaped(leaf):
            leaf = np.asarray(leaf)
            padding = np.zeros((windows * self.window - len(leaf), *leaf.shape[1:]), leaf.dtype)
            full = np.concatenate([leaf, padding]) if len(padding) else leaf
            return full if self.window == 1 else full.reshape(windows, self.window, *leaf.shape[1:])

        return jax.tree.map(shaped, samples.xs), jax.tree.map(shaped, samples.targets)

    def by_sample(self, outputs: Tree, samples: int) -> Tree:
        """Return the outputs of a chunk of windows as one output per sample, without the padding.

        Args:
            outputs: the outputs, one entry per window.
            samples: the number of samples.
        """

        def unshaped(leaf):
            leaf = np.asarray(leaf)
            return (leaf if self.window == 1 else leaf.reshape(-1, *leaf.shape[2:]))[:samples]

        return jax.tree.map(unshaped, outputs)

    def position(self) -> Position:
        """Return the position of the stream and the partial window, as a checkpoint saves them."""
        # Text is saved as lists, since the arrays of a checkpoint cannot hold it.
        parts: Iterable[Any] = self.partial_window or ()
        saved = [part.tolist() if isinstance(part, np.ndarray) and part.dtype.hasobject else part for part in parts]
        return {"stream": self.stream.position(), "partial_window": saved or None}

    def predict_partial_window(self, outputs_of: Callable[[Samples], Tree]) -> tuple[int, Samples, Outputs] | None:
        """Predict the samples of the partial window that have not been predicted yet.

        Args:
            outputs_of: a function from the samples of a partial window to their outputs.

        Returns:
            The number of the first sample, the samples and their outputs; None if there are none.
        """
        samples = self.partial_window
        if samples is None or (count := sample_count(samples)) == self.predicted_early:
            return None
        new = self.not_predicted_early(samples, self.by_sample(outputs_of(samples), count))
        self.predicted_early = count
        return new

    def not_predicted_early(self, samples: Samples, outputs: Tree) -> tuple[int, Samples, Outputs]:
        """Return the samples of whole windows that have not been predicted early.

        Args:
            samples: the samples of the windows, which start with those of the partial window.
            outputs: their outputs.

        Returns:
            The number of the first sample, the samples and their outputs.
        """
        number = self.predicted + 1
        early = self.predicted_early
        self.predicted_early = 0
        self.predicted += sample_count(samples) - early
        return number, *jax.tree.map(lambda leaf: leaf[early:], (samples, outputs))


def sample_count(samples: Samples | None) -> int:
    """Return the number of samples; 0 for None."""
    return 0 if samples is None else len(jax.tree.leaves(samples.xs)[0])


def _kind_of(samples: Samples) -> tuple:
    leaves, structure = jax.tree.flatten(tuple(samples))
    return structure, *((leaf.dtype, leaf.shape[1:]) for leaf in map(np.asarray, leaves))
