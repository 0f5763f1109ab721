"""Conversion of decoded JSON to types."""

from typing import Any, TypeVar

import msgspec

Kind = TypeVar("Kind")


def as_kind(found: Any, kind: type[Kind]) -> Kind:
    """Convert decoded JSON to a type, as `msgspec.convert` does.

    Args:
        found: the decoded JSON. It may contain an unpaired surrogate ("\\ud800"), which UTF-8 cannot encode.
        kind: the type.

    Returns:
        A value of the type.

    Raises:
        msgspec.ValidationError: it is something else.

    >>> as_kind([1, 2], tuple[int, int])
    (1, 2)
    """
    try:
        return msgspec.convert(found, kind)
    except UnicodeEncodeError as error:
        raise msgspec.ValidationError(f"it contains an unpaired surrogate, {error.object!r}") from None
