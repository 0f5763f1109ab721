"""Symbols and labels out of range, found in the arrays that a learner is given before the compiled loop runs.

Compiled code cannot raise, and an index beyond the end of an array would read the nearest entry.
"""

from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from norewind.checks import ModelError
from norewind.trees import Tree

_noted: ContextVar[dict[str, set[int]] | None] = ContextVar("noted", default=None)
INPUT, TARGET = "input", "target"
ADVICE = {INPUT: "Make the cell with more inputs.", TARGET: "Give the model more outputs."}


class Ranges(NamedTuple):
    """How many input symbols and labels a model knows; None where that cannot be told."""

    inputs: int | None
    targets: int | None


def note(what: str, symbol: Any, size: int) -> None:
    """A model with this many symbols reads one: refuse it if it is known and out of range, else record the size."""
    if not isinstance(symbol, Tracer):
        check(what, symbol, size)
    elif (noted := _noted.get()) is not None:
        noted[what].add(size)


def check(what: str, symbols: Any, size: int, where: str = "") -> None:
    values = np.asarray(symbols)
    low, high = (values.min(), values.max()) if values.size else (0, 0)
    if low < 0 or high >= size:
        found = low if low < 0 else high
        raise ModelError(
            f"{where}there is the {what} {found}, but the model knows {size}: 0 to {size - 1}. {ADVICE[what]}"
        )


class Symbols:
    """The symbols and labels of one model, found once for each kind of input."""

    def __init__(self, model: Any):
        self._model = model
        self._ranges: dict[Any, Ranges] = {}

    def check(self, what: str, run: Any, xs: Tree, targets: Tree = None, count: int | None = None) -> Ranges:
        """Refuse those that the model does not know, in arrays with an entry for each of `count` steps."""
        ranges = self._known(run, [_type_of(part, count) for part in (xs, targets) if part is not None])
        for kind, size, part in zip((INPUT, TARGET), ranges, (xs, targets), strict=True):
            # One symbol is looked at without NumPy's functions, which take longer than the call itself.
            if size is not None and not (np.ndim(part) == 0 and 0 <= int(part) < size):
                check(kind, np.asarray(part)[:count] if np.ndim(part) else part, size, what)
        return ranges

    def _known(self, run: Any, kinds: list[Any]) -> Ranges:
        if None in kinds:
            return Ranges(None, None)
        key = tuple(kinds)
        if key not in self._ranges:
            examples = [jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(dtype)) for dtype, shape in kinds]
            self._ranges[key] = ranges_of(self._model, run.params, run.state, *(*examples, None)[:2])
        return self._ranges[key]


def _type_of(part: Any, count: int | None) -> Any:
    """The type and shape of an array for one step; None if its numbers cannot be looked at."""
    if type(part) is int:
        return np.dtype(int), ()
    if isinstance(part, Tracer) or not hasattr(part, "dtype"):
        return None
    return part.dtype, part.shape if count is None else part.shape[1:]


def ranges_of(model: Any, params: Tree, state: Tree, x: Tree, target: Tree) -> Ranges:
    """What our own cells and losses note while shapes are evaluated. Other models may do anything with x and target."""
    noted: dict[str, set[int]] = {INPUT: set(), TARGET: set()}
    if model is not None and _is_ours(model.transition) and _is_ours(model.loss):
        token = _noted.set(noted)
        try:
            # New functions, as JAX does not evaluate the shapes of one that it knows again.
            _, output = jax.eval_shape(lambda *inputs: model.transition(*inputs), params, state, x)
            if target is not None:
                jax.eval_shape(lambda *inputs: model.loss(*inputs), output, target)
        finally:
            _noted.reset(token)
    found = (sizes.pop() if len(sizes) == 1 else None for sizes in (noted[INPUT], noted[TARGET]))
    return Ranges(*(size if _are_symbols(part) else None for size, part in zip(found, (x, target), strict=True)))


def _is_ours(function: Any) -> bool:
    """Whether a transition or a loss is one of ours, perhaps in windows or for many streams."""
    inner = getattr(function, "inner", None) or getattr(function, "transition", None)
    if inner is not None:
        return _is_ours(inner)
    return getattr(function, "__module__", "").startswith(("norewind.cells.", "norewind.losses"))


def _are_symbols(part: Tree) -> bool:
    return hasattr(part, "dtype") and jnp.issubdtype(part.dtype, jnp.integer)
