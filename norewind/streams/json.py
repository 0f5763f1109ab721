"""Rows as JSON objects, one per line."""

import json
from typing import Any

from norewind.streams.numbers import BadRow


def object_of(text: str) -> dict[str, Any]:
    """The object that a line holds."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadRow(f"it is not valid JSON ({error.msg} at character {error.pos + 1})") from None
    except (ValueError, RecursionError) as error:
        # Numbers of thousands of digits, brackets nested thousands deep.
        raise BadRow(f"its JSON cannot be read ({error})") from None
    if not isinstance(value, dict):
        raise BadRow(f'it is a JSON {type(value).__name__}, not an object such as {{"name": 1.5}}')
    return value
