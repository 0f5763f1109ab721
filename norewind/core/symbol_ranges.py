"""Symbols and labels out of range, detected in the arrays that a learner is given before the compiled loop runs.

Compiled code cannot raise, and an index beyond the end of an array would read the nearest entry.
"""

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from norewind.core import checks, losses
from norewind.core.combinators import StreamsLoss, WindowLoss
from norewind.core.estimator import Loss, Model
from norewind.core.structure import structure_of
from norewind.core.trees import Tree


class Symbols:
    """A check of symbols and labels against the sizes that a model's cell declares, and against its loss.

    Args:
        model: the model that reads them.
    """

    def __init__(self, model: Model):
        sizes = structure_of(model.transition).sizes
        self._inputs, outputs = sizes or (None, None)
        self._targets = outputs if _one_sample_loss(model.loss) is losses.cross_entropy else None

    def check(self, what: str, xs: Tree, targets: Tree = None, count: int | None = None) -> tuple[int | None, ...]:
        """Reject symbols and labels out of range.

        Args:
            what: the name of the function that was called, for the message.
            xs: one input or an array of inputs.
            targets: one target or an array of targets.
            count: check only the first `count` entries of an array; None for all.

        Returns:
            The number of input symbols and of labels that the model knows; None for anything that is not an integer or
            an array of integers.

        Raises:
            ModelError: a symbol or a label is out of range.
        """
        sizes = []
        for kind, size, part in ((checks.INPUT, self._inputs, xs), (checks.TARGET, self._targets, targets)):
            size = size if _are_symbols(part) else None
            # A single symbol is checked without NumPy's functions, which take longer than the call itself.
            if size is not None and not (np.ndim(part) == 0 and 0 <= int(part) < size):
                checks.in_range(kind, np.asarray(part)[:count] if np.ndim(part) else part, size, what)
            sizes.append(size)
        return tuple(sizes)


def _are_symbols(part: Tree) -> bool:
    if isinstance(part, Tracer):
        return False
    return type(part) is int or (hasattr(part, "dtype") and jnp.issubdtype(part.dtype, jnp.integer))


def _one_sample_loss(loss: Loss) -> Loss:
    """Return the loss of one sample inside the loss of a window or of many streams."""
    while isinstance(loss, StreamsLoss | WindowLoss):
        loss = loss.loss
    return loss
