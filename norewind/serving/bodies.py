"""Request bodies, limited in size and time and checked before use, and error responses."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

MAX_BODY = 1 << 20
MAX_ROWS = 256
MAX_STREAM_LINE_BYTES = 1 << 16
MAX_ID_LENGTH = 200
BODY_SECONDS = 10.0
# How long a stream may send nothing. A blank line keeps it open.
IDLE_SECONDS = 300.0
# Headers of error responses, by status.
ERROR_HEADERS = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}}
INTERNAL_ERROR = "internal error: see the log of the service."
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_LENGTH)]


class OneRow(msgspec.Struct, forbid_unknown_fields=True):
    """The body `{"row": {...}}`."""

    row: dict[str, Any]
    id: Id | None = None


class ManyRows(msgspec.Struct, forbid_unknown_fields=True):
    """The body `{"rows": [{...}, ...]}`."""

    rows: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1, max_length=MAX_ROWS)]
    ids: list[Id | None] | None = None


class ForecastBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body `{"steps": 24, "known_future": [{...}, ...]}`."""

    steps: int | None = None
    key: str | None = None
    known_future: list[dict[str, Any]] | None = None


class JsonAnswer(JSONResponse):
    """A JSON response. Text from the client may contain an unpaired surrogate, which UTF-8 cannot encode."""

    def render(self, content: Any) -> bytes:
        return encode_json(content)


def encode_json(content: Any) -> bytes:
    """Encode JSON, with a question mark in place of an unpaired surrogate."""
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")


class RequestError(Exception):
    """An error response.

    Args:
        status: the HTTP status.
        message: the problem, as the client sees it.
        details: further entries of the JSON response.
    """

    def __init__(self, status: int, message: str, **details: Any):
        super().__init__(message)
        self.status = status
        self.answer = {"error": message, **details}

    @property
    def response(self) -> JsonAnswer:
        """The response."""
        return JsonAnswer(self.answer, self.status, ERROR_HEADERS.get(self.status))


def busy_error(what: str) -> RequestError:
    """Return the error response to a request beyond a limit."""
    return RequestError(429, f"too busy: {what}. Try again in a second.", retry=1)


async def read_body(request: Request, most: int = MAX_BODY) -> bytes:
    """Read the whole body.

    Args:
        request: the request.
        most: the largest number of bytes.

    Raises:
        RequestError: it is too large, too slow or incomplete.
    """
    remedy = " Send fewer rows at a time, or use /stream." if most == MAX_BODY else ""
    too_large = RequestError(413, f"the body is larger than {most} bytes.{remedy}")
    if int(request.headers.get("content-length", 0)) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        raise RequestError(408, f"the body did not arrive within {BODY_SECONDS:g} seconds.") from None
    except ClientDisconnect:
        raise RequestError(400, "the connection was closed before the end of the body.") from None
    return bytes(body)


async def read_lines(request: Request) -> AsyncIterator[bytes]:
    """Iterate over the lines of a body of any length as they arrive. The last one may lack its newline.

    Raises:
        RequestError: a line is too long, or nothing arrived for too long.
    """
    rest, parts = b"", request.stream()
    while True:
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                rest += await anext(parts)
        except TimeoutError:
            message = f"nothing arrived for {IDLE_SECONDS:g} seconds. Send blank lines to keep a stream open."
            raise RequestError(408, message) from None
        except StopAsyncIteration:
            break
        *lines, rest = rest.split(b"\n")
        for line in lines:
            _check_length(line)
            yield line
        _check_length(rest)
    if rest:
        yield rest


def _check_length(line: bytes) -> None:
    if len(line) > MAX_STREAM_LINE_BYTES:
        raise RequestError(413, f"a line is longer than {MAX_STREAM_LINE_BYTES} bytes.")


def decode_json(body: bytes) -> Any:
    """Decode JSON.

    Raises:
        RequestError: the JSON is malformed; the message says where.
    """
    try:
        return json.loads(body.decode())
    except UnicodeDecodeError as error:
        raise RequestError(400, f"the body is not valid UTF-8, at byte {error.start}.", byte=error.start) from None
    except json.JSONDecodeError as error:
        place = {"line": error.lineno, "column": error.colno, "character": error.pos + 1}
        message = f"the body is not valid JSON: {error.msg} in line {error.lineno}, column {error.colno}."
        raise RequestError(400, message, **place) from None
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the JSON of the body cannot be read: {error}.") from None


def decode_rows(body: bytes) -> tuple[Sequence[dict[str, Any]], Sequence[str | None], bool]:
    """Decode the body of `/predict` and `/learn`.

    Returns:
        The rows, the id of each row or None, and whether the body has the form for a single row.

    Raises:
        RequestError: the body has another form.
    """
    content = decode_json(body)
    single = not isinstance(content, dict) or "rows" not in content
    try:
        if single:
            one = msgspec.convert(content, OneRow)
            _check_ids([one.id])
            return [one.row], [one.id], single
        many = msgspec.convert(content, ManyRows)
    except msgspec.ValidationError as error:
        form = '{"row": {...}} or {"rows": [{...}, ...]}, with "id" or "ids" if needed'
        raise RequestError(400, f"the body must be {form}, with at most {MAX_ROWS} rows. {error}.") from None
    except UnicodeEncodeError:
        raise RequestError(400, "a name in the body has an unpaired surrogate, which UTF-8 cannot encode.") from None
    ids = [None] * len(many.rows) if many.ids is None else many.ids
    if len(ids) != len(many.rows):
        raise RequestError(400, '"ids" must have one id for each of the rows.')
    _check_ids(ids)
    return many.rows, ids, single


def decode_forecast(body: bytes) -> ForecastBody:
    """Decode the body of `/forecast`.

    Raises:
        RequestError: the body has another form.
    """
    try:
        return msgspec.convert(decode_json(body), ForecastBody)
    except msgspec.ValidationError as error:
        form = '{"steps": 24}, with "key" or "known_future": [{...}, ...] if needed'
        raise RequestError(400, f"the body must be {form}. {error}.") from None


def _check_ids(ids: Sequence[str | None]) -> None:
    for id in ids:
        try:
            (id or "").encode()
        except UnicodeEncodeError:
            raise RequestError(400, f"the id {id!r} has an unpaired surrogate, which UTF-8 cannot encode.") from None
