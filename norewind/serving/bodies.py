"""Bodies of requests: bounded in size and time, and read with care."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import msgspec

from norewind.serving.refusals import Refusal

MOST_BYTES = 1 << 20
MOST_ROWS = 256
LONGEST_LINE = 1 << 16
LONGEST_ID = 200
BODY_SECONDS = 10.0
LINGER_SECONDS = 2.0
MOST_DRAINED = 1 << 24
"""What is read of a body that is not wanted."""
IDLE_SECONDS = 300.0
"""How long a stream may send nothing. A blank line keeps it open."""


async def body_of(scope: MutableMapping[str, Any], receive: Any) -> bytes:
    """The whole body, if it is short enough and comes soon enough."""
    announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if announced.isdigit() and int(announced) > MOST_BYTES:
        raise Refusal(413, f"the body is larger than {MOST_BYTES} bytes. Send fewer rows at a time, or use /stream.")
    parts, size, more = [], 0, True
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(400, "the connection ended before the body did.")
                parts.append(message.get("body", b""))
                size, more = size + len(parts[-1]), message.get("more_body", False)
                if size > MOST_BYTES:
                    raise Refusal(413, f"the body is larger than {MOST_BYTES} bytes.")
    except TimeoutError:
        raise Refusal(408, f"the body did not come within {BODY_SECONDS:g} seconds.") from None
    return b"".join(parts)


class Body:
    """The messages of a body, in place of `receive`; notes whether it has ended."""

    def __init__(self, receive: Any):
        self._receive, self.ended = receive, False

    async def __call__(self) -> Any:
        message = await self._receive()
        self.ended = not message.get("more_body", False)  # nor does more come when the client is gone
        return message

    async def drain(self) -> None:
        """Let a client finish sending: one whose connection is closed meanwhile may never see the answer."""
        left = MOST_DRAINED
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while left > 0 and not self.ended:
                    left -= len((await self()).get("body", b""))


async def lines_of(receive: Any) -> AsyncIterator[bytes]:
    """The lines of a body of any length, as they come; the last one may lack its newline."""
    rest, more = b"", True
    while more:
        try:
            message = await asyncio.wait_for(receive(), IDLE_SECONDS)
        except TimeoutError:
            raise Refusal(
                408, f"nothing came for {IDLE_SECONDS:g} seconds. A blank line keeps a stream open."
            ) from None
        if message["type"] == "http.disconnect":
            return
        rest, more = rest + message.get("body", b""), message.get("more_body", False)
        *lines, rest = rest.split(b"\n")
        for line in lines:
            yield line
        if len(rest) > LONGEST_LINE:
            raise Refusal(413, f"a line is longer than {LONGEST_LINE} bytes.")
    if rest:
        yield rest


def json_of(body: bytes) -> Any:
    """The JSON in a body. What is wrong with it is said with its place."""
    with contextlib.suppress(msgspec.DecodeError, ValueError, RecursionError):
        return msgspec.json.decode(body)
    # Slower: takes numbers that are not finite, which msgspec refuses, and knows the place of a mistake.
    try:
        return json.loads(body.decode())
    except UnicodeDecodeError as error:
        raise Refusal(400, f"the body is not valid UTF-8, at byte {error.start}.", byte=error.start) from None
    except json.JSONDecodeError as error:
        place = {"line": error.lineno, "column": error.colno, "character": error.pos + 1}
        raise Refusal(
            400, f"the body is not valid JSON: {error.msg} in line {error.lineno}, column {error.colno}.", **place
        ) from None
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the JSON of the body cannot be read: {error}.") from None


def rows_of(body: bytes) -> tuple[list[dict[str, Any]], list[str | None], bool]:
    """The rows of a body, the id of each, and whether it is a single row."""
    content = json_of(body)
    if not isinstance(content, dict) or ("row" in content) == ("rows" in content):
        raise Refusal(400, 'the body must be {"row": {...}} or {"rows": [{...}, ...]}, with "id" or "ids" if you like.')
    known = {"row", "id"} if "row" in content else {"rows", "ids"}
    if unknown := content.keys() - known:
        raise Refusal(400, f"the body has {min(unknown)!r}, but only {' and '.join(sorted(known))} mean something.")
    single = "row" in content
    rows = [content["row"]] if single else content["rows"]
    ids: Any = [content.get("id")] if single else content.get("ids")
    if not isinstance(rows, list) or not rows or len(rows) > MOST_ROWS:
        raise Refusal(400, f'"rows" must be a list of 1 to {MOST_ROWS} rows. Use /stream for more.')
    ids = [None] * len(rows) if ids is None else ids
    if not isinstance(ids, list) or len(ids) != len(rows):
        raise Refusal(400, '"ids" must be a list with one id for each of the rows.')
    for place, (row, id) in enumerate(zip(rows, ids, strict=True), 1):
        where = "" if single else f" {place}"
        if not isinstance(row, dict):
            raise Refusal(400, f'row{where} must be an object such as {{"name": 1.5}}.', row=place)
        if id is not None and not (isinstance(id, str) and 0 < len(id) <= LONGEST_ID):
            raise Refusal(400, f"the id of row{where} must be a text of 1 to {LONGEST_ID} characters.", row=place)
    return rows, ids, single
