"""Running a model with another function in place of one that it calls, or finding out what it calls it with."""

from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from norewind.core.checks import ModelError

# Functions that are called in place of others, innermost last: pairs of the original and its replacement.
_replacements: ContextVar[tuple[tuple[Callable, Callable], ...]] = ContextVar("replacements", default=())


def call(original: Callable, function: Callable, *arguments: Any) -> Any:
    """Call a function, or what `with_replacement` puts in its place.

    Args:
        original: the object under which a replacement is looked up.
        function: the function to call if there is no replacement.
        *arguments: its arguments.
    """
    pairs = _replacements.get()
    if not pairs:
        return function(*arguments)
    return next((new for old, new in reversed(pairs) if old is original), function)(*arguments)


@contextmanager
def _replaced(original: Callable, replacement: Callable):
    """Use a replacement for a function, which must be called."""
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return replacement(*arguments)

    token = _replacements.set((*_replacements.get(), (original, counted)))
    try:
        yield calls
    finally:
        _replacements.reset(token)
    if len(calls) != 1:
        raise ModelError(
            f"declare: the transition calls `like` {len(calls)} times in a step, but must call it once, and not "
            "through its own jax.jit. Pass the very transition that it calls, or declare its structure without `like`."
        )


def with_replacement(outer: Callable, original: Callable, replacement: Callable) -> Callable:
    """Return a function that does what `outer` does, but calls `replacement` in place of `original`.

    Args:
        outer: the function that calls `original` once.
        original: the function that it calls.
        replacement: the function to call instead.
    """

    def function(*arguments):
        with _replaced(original, replacement):
            return outer(*arguments)

    return function


def calls_of(outer: Callable, original: Callable, *arguments: Any) -> tuple[Any, ...]:
    """Return the arguments with which one function calls another.

    Args:
        outer: the function that calls `original` once.
        original: the function that it calls.
        *arguments: the arguments of `outer`.
    """
    # The replacement is looked up again inside: only the outer one is counted.
    with _replaced(original, getattr(original, "transition", original)) as calls:
        outer(*arguments)
    return calls[0]
