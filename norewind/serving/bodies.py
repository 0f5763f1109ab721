"""Bodies of requests: bounded in size and time, and checked before use; and how the service says no."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

MOST_BYTES = 1 << 20
MOST_ROWS = 256
LONGEST_LINE = 1 << 16
LONGEST_ID = 200
BODY_SECONDS = 10.0
# How long a stream may send nothing. A blank line keeps it open.
IDLE_SECONDS = 300.0
ROWS = "rows", "ids"
ROW = "row", "id"
BROKEN = "something went wrong here; the log of the service says more."


class Refusal(Exception):
    """An answer with an HTTP status and a message for the caller; `details` say more, as JSON."""

    def __init__(self, status: int, message: str, **details: Any):
        super().__init__(message)
        self.status, self.answer = status, {"error": message, **details}


def busy(what: str) -> Refusal:
    """The service has as much to do as it takes on."""
    return Refusal(429, f"too busy: {what}. Try again in a second.", retry=1)


def error_response(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": message}, status, headers)


async def body_of(request: Request) -> bytes:
    """Read the whole body, if it is short enough and arrives soon enough."""
    too_large = Refusal(413, f"the body is larger than {MOST_BYTES} bytes. Send fewer rows at a time, or use /stream.")
    if int(request.headers.get("content-length", 0)) > MOST_BYTES:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BYTES:
                    raise too_large
    except TimeoutError:
        raise Refusal(408, f"the body did not come within {BODY_SECONDS:g} seconds.") from None
    except ClientDisconnect:
        raise Refusal(400, "the connection ended before the body did.") from None
    return bytes(body)


async def lines_of(request: Request) -> AsyncIterator[bytes]:
    """The lines of a body of any length, as they arrive; the last one may lack its newline."""
    rest, parts = b"", request.stream()
    while True:
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                rest += await anext(parts)
        except TimeoutError:
            words = f"nothing came for {IDLE_SECONDS:g} seconds. A blank line keeps a stream open."
            raise Refusal(408, words) from None
        except StopAsyncIteration:
            break
        *lines, rest = rest.split(b"\n")
        for line in lines:
            yield line
        if len(rest) > LONGEST_LINE:
            raise Refusal(413, f"a line is longer than {LONGEST_LINE} bytes.")
    if rest:
        yield rest


def json_of(body: bytes) -> Any:
    """Decode JSON. Errors say where the mistake is."""
    try:
        return json.loads(body.decode())
    except UnicodeDecodeError as error:
        raise Refusal(400, f"the body is not valid UTF-8, at byte {error.start}.", byte=error.start) from None
    except json.JSONDecodeError as error:
        place = {"line": error.lineno, "column": error.colno, "character": error.pos + 1}
        words = f"the body is not valid JSON: {error.msg} in line {error.lineno}, column {error.colno}."
        raise Refusal(400, words, **place) from None
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the JSON of the body cannot be read: {error}.") from None


def rows_of(body: bytes) -> tuple[list[dict[str, Any]], list[str | None], bool]:
    """The rows of a body, the id of each, and whether it is a single row."""
    content = json_of(body)
    if not isinstance(content, dict) or ("row" in content) == ("rows" in content):
        raise Refusal(400, 'the body must be {"row": {...}} or {"rows": [{...}, ...]}, with "id" or "ids" if you like.')
    single = "row" in content
    known = ROW if single else ROWS
    if unknown := content.keys() - set(known):
        raise Refusal(400, f"the body has {min(unknown)!r}, but only {' and '.join(sorted(known))} mean something.")
    rows: Any
    ids: Any
    rows, ids = ([content.get(name)] if single else content.get(name) for name in known)
    if not isinstance(rows, list) or not 1 <= len(rows) <= MOST_ROWS:
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
