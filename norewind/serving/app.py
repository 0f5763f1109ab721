"""The HTTP interface of the service, or of the live page without a service."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from norewind.serving.access import AccessControl
from norewind.serving.bodies import (
    INTERNAL_ERROR,
    JsonAnswer,
    RequestError,
    busy_error,
    decode_forecast,
    decode_json,
    decode_rows,
    encode_json,
    read_body,
    read_lines,
)
from norewind.serving.forecast_requests import ForecastRequest
from norewind.serving.page_content import TICK_SECONDS, PageContent
from norewind.serving.prometheus import RequestCounts
from norewind.serving.service import Service

MAX_STREAMS = 64
MAX_VIEWERS = 32
# When this many lines of a stream wait for their answers, no more are read.
MAX_UNANSWERED = 256
PAGE_TYPES = {"/": "html", "/page.js": "javascript", "/page.css": "css"}
UNBUFFERED = {"x-accel-buffering": "no"}


def application(page: PageContent, token: str | None = None, service: Service | None = None) -> AccessControl:
    """Build the ASGI application.

    Args:
        page: the content of the live page.
        token: the token that requests must send; None if none is required.
        service: the service that answers and learns; None to serve the page alone.

    Returns:
        The application, behind its access control.
    """
    access = AccessControl(token)
    routes = [Route("/events", partial(events, page)), Route("/login", access.login, methods=["POST"])]
    routes.append(Route("/health", partial(health, service.status if service else page.snapshot)))
    if service:
        posts = {"/predict": predict, "/learn": learn, "/stream": stream}
        routes += [Route(path, partial(answer, service), methods=["POST"]) for path, answer in posts.items()]
        routes.append(Route("/forecast", partial(forecast, service), methods=["GET", "POST"]))
        routes.append(Route("/explain", partial(explain, service)))
        routes.append(Route("/metrics", partial(metrics, service, access.counts)))
    folder = resources.files("norewind.serving") / "page"
    for path, kind in PAGE_TYPES.items():
        content = (folder / (path.strip("/") or "page.html")).read_bytes()
        routes.append(Route(path, Response(content, media_type=f"text/{kind}"), methods=["GET"]))

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(page.run())]
        if service:
            service.loop = asyncio.get_running_loop()
            tasks.append(asyncio.create_task(service.save_labels()))
        yield
        for task in tasks:
            task.cancel()
        if service:
            await service.stop()

    handlers = dict.fromkeys((RequestError, HTTPException, 500), error_response)
    access.app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    return access


async def error_response(request: Request, error: Exception) -> Response:
    """Answer a request that failed.

    Args:
        request: named in the message if there is no such path or method.
        error: why it failed.
    """
    if isinstance(error, HTTPException):
        error = RequestError(error.status_code, f"{error.detail}: {request.method} {request.url.path}")
    return (error if isinstance(error, RequestError) else RequestError(500, INTERNAL_ERROR)).response


async def predict(service: Service, request: Request) -> Response:
    """`POST /predict`: predict rows without learning from them.

    Args:
        service: makes the predictions.
        request: one row or several, with optional ids.
    """
    rows, ids, single = decode_rows(await read_body(request))
    answers = await service.predict(rows, ids)
    return JsonAnswer(answers[0] if single else {"rows": answers})


async def forecast(service: Service, request: Request) -> Response:
    """`GET /forecast?steps=24`: forecast the next rows, of one key with `&key=...`.

    `POST /forecast` takes the same as JSON, and with `known_future` what is known in advance about these rows.

    Args:
        service: makes the forecast.
        request: the number of rows, by default the horizon, and the key.

    Raises:
        RequestError: the number is not one, or the body has another form.
    """
    if request.method == "POST":
        body = decode_forecast(await read_body(request))
        wanted = ForecastRequest(body.steps, body.key, body.known_future)
    else:
        wanted = ForecastRequest(number_in(request, "steps"), request.query_params.get("key"))
    return JsonAnswer({"rows": await service.forecast(wanted)})


async def explain(service: Service, request: Request) -> Response:
    """`GET /explain?step=24`: explain the latest forecast, by default that of the nearest step.

    Args:
        service: explains it.
        request: how many rows ahead the forecast is.
    """
    return JsonAnswer(await service.explain(number_in(request, "step")))


def number_in(request: Request, name: str) -> int | None:
    """Return a number in the query of a request; None if there is none.

    Args:
        request: the request.
        name: the name of the number.

    Raises:
        RequestError: it is not a whole number.
    """
    text = request.query_params.get(name)
    if text is not None and not (text.isascii() and text.isdigit() and len(text) < 10):
        raise RequestError(400, f"{name} must be a whole number.")
    return None if text is None else int(text)


async def learn(service: Service, request: Request) -> Response:
    """`POST /learn`: accept rows to learn from.

    Args:
        service: queues the rows for the learning thread.
        request: one row or several, with optional ids; with `?wait=1`, the response is sent after learning.
    """
    rows, ids, _ = decode_rows(await read_body(request))
    last = service.learn(rows, ids)
    if request.query_params.get("wait") in ("1", "true", "learned"):
        await service.wait_until_learned(last)
    return JsonAnswer({"first": last - len(rows) + 1, "last": last, **service.row_counts()}, 202)


async def health(status_of: Callable[[], dict[str, Any]], request: Request) -> Response:
    """`GET /health`: 200, or 503 if the run no longer learns.

    Args:
        status_of: returns the status of the run.
        request: the request; details are included only if it is trusted.
    """
    status = status_of()
    word, code = ("not learning", 503) if status.get("diverged") else ("ok", 200)
    return JsonAnswer({"status": word, **(status if request.scope["trusted"] else {})}, code)


async def metrics(service: Service, counts: RequestCounts, _: Request) -> Response:
    """`GET /metrics`: the status and the latest metrics in the Prometheus format.

    Args:
        service: the source of the status and the latest line of metrics.
        counts: the requests so far.
        _: the request.
    """
    latest = service.page.metrics[-1] if service.page.metrics else {}
    return PlainTextResponse(counts.text(latest | service.status()), media_type="text/plain; version=0.0.4")


class Streamed(StreamingResponse):
    """A streaming response whose generator itself reads the body or notices that the client has disconnected."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self.body_iterator):  # type: ignore[type-var]
            await self.stream_response(send)


async def stream(service: Service, request: Request) -> Streamed:
    """`POST /stream`: learn from lines as they arrive, with one answer per line, in order.

    A bad line is answered with an error.

    Args:
        service: learns from the lines.
        request: a body of JSON lines, of any length.

    Raises:
        RequestError: too many streams are open.
    """
    if len(service.streams) >= MAX_STREAMS:
        raise busy_error(f"{MAX_STREAMS} streams are open")
    return Streamed(_answer_lines(service, request), 200, UNBUFFERED, "application/x-ndjson")


async def _answer_lines(service: Service, request: Request) -> AsyncIterator[bytes]:
    answers: asyncio.Queue[asyncio.Future | dict[str, Any] | None] = asyncio.Queue(MAX_UNANSWERED)
    reading = asyncio.create_task(_read_lines(service, request, answers))
    service.streams.add(reading)
    ready = b""
    try:
        while (answer := await answers.get()) is not None:
            if isinstance(answer, asyncio.Future):
                if ready and not answer.done():
                    yield ready
                    ready = b""
                answer = await asyncio.shield(answer)  # others may wait for it too
            ready += encode_json(answer) + b"\n"
            # Answers that are ready are sent together: sending them one by one takes the server twice as long.
            if answers.empty():
                yield ready
                ready = b""
        yield ready
    finally:
        service.streams.discard(reading)
        reading.cancel()


async def _read_lines(service: Service, request: Request, answers: asyncio.Queue) -> None:
    number = 0
    try:
        async for line in read_lines(request):
            number += 1
            if not line.strip():
                continue
            try:
                row = decode_json(line)
                if not isinstance(row, dict):
                    raise RequestError(400, 'a line must be an object such as {"name": 1.5}.')
                await answers.put(await service.follow(row))
            except RequestError as error:
                await answers.put({**error.answer, "line": number})
                if error.status == 503:
                    break
    except RequestError as error:
        await answers.put({**error.answer, "line": number + 1})
    except (asyncio.CancelledError, ClientDisconnect):
        pass
    except Exception:
        await answers.put({"error": INTERNAL_ERROR, "line": number})
        raise
    finally:
        await answers.put(None)


async def events(page: PageContent, request: Request) -> Streamed:
    """`GET /events`: the content of the page as server-sent events.

    Args:
        page: the content of the live page.
        request: the request of a viewer, whose connection stays open.

    Raises:
        RequestError: too many pages are open.
    """
    if page.viewers >= MAX_VIEWERS:
        raise busy_error(f"{MAX_VIEWERS} pages are open")
    return Streamed(_send_news(page, request), 200, UNBUFFERED, "text/event-stream")


async def _send_news(page: PageContent, request: Request) -> AsyncIterator[bytes]:
    page.viewers += 1
    sent = None
    try:
        while not page.ended and not await request.is_disconnected():
            sent, event, content = page.next_event(sent)
            yield f"event: {event}\ndata: ".encode() + encode_json(content) + b"\n\n"  # JSON has no line breaks
            await asyncio.sleep(TICK_SECONDS)
    finally:
        page.viewers -= 1
