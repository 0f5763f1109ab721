"""The HTTP interface of the service, and of the page alone."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from norewind.serving.bodies import BROKEN, Refusal, body_of, busy, error_response, json_of, lines_of, rows_of
from norewind.serving.feed import TICK, Feed
from norewind.serving.guard import Guard
from norewind.serving.prometheus import Requests
from norewind.serving.service import Service

MOST_STREAMS = 64
MOST_VIEWERS = 32
# Lines of one stream that may wait for their answers; then its sender has to wait.
AHEAD = 256
PAGE = {"/": "html", "/page.js": "javascript", "/page.css": "css"}


def application(feed: Feed, token: str | None = None, service: Service | None = None) -> Guard:
    """The page of a run, and with a `service` everything else that it offers."""
    guard = Guard(token)
    routes = [Route("/events", partial(events, feed)), Route("/login", guard.login, methods=["POST"])]
    routes.append(Route("/health", partial(health, service.status if service else feed.present)))
    if service:
        posts = {"/predict": predict, "/learn": learn, "/stream": stream}
        routes += [Route(path, partial(answer, service), methods=["POST"]) for path, answer in posts.items()]
        routes.append(Route("/metrics", partial(metrics, service, guard.requests)))
    folder = resources.files("norewind.serving") / "page"
    for path, kind in PAGE.items():
        content = (folder / (path.strip("/") or "page.html")).read_bytes()
        routes.append(Route(path, Response(content, media_type=f"text/{kind}"), methods=["GET"]))

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if service:
            service.loop = asyncio.get_running_loop()
        ticking = asyncio.create_task(feed.run())
        yield
        ticking.cancel()
        if service:
            await service.stop()

    handlers: Any = {Refusal: _refuse, HTTPException: _not_there, 500: lambda *_: error_response(500, BROKEN)}
    guard.app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    return guard


async def predict(service: Service, request: Request) -> Response:
    rows, ids, single = rows_of(await body_of(request))
    answers = await service.predict(rows, ids)
    return JSONResponse(answers[0] if single else {"rows": answers})


async def learn(service: Service, request: Request) -> Response:
    rows, ids, _ = rows_of(await body_of(request))
    last = service.learn(rows, ids)
    if request.query_params.get("wait") in ("1", "true", "learned"):
        await service.until_learned(last)
    return JSONResponse({"first": last - len(rows) + 1, "last": last, **service.standing()}, 202)


async def health(status_of: Callable[[], dict[str, Any]], request: Request) -> Response:
    status = status_of()
    word, code = ("not learning", 503) if status.get("diverged") else ("ok", 200)
    return JSONResponse({"status": word, **(status if request.scope["trusted"] else {})}, code)


async def metrics(service: Service, requests: Requests, _: Request) -> Response:
    newest = service.feed.metrics[-1] if service.feed.metrics else {}
    return PlainTextResponse(requests.text(newest | service.status()), media_type="text/plain; version=0.0.4")


def _refuse(_: Request, refusal: Refusal) -> Response:
    return JSONResponse(refusal.answer, refusal.status, {"retry-after": "1"} if refusal.status == 429 else None)


def _not_there(request: Request, error: HTTPException) -> Response:
    path, other = request.url.path, f"{request.method} is not allowed for {request.url.path}."
    words = f"there is nothing at {json.dumps(path)}." if error.status_code == 404 else other
    return error_response(error.status_code, words)


class Streamed(StreamingResponse):
    """The parts of a generator, which itself reads the body or notices that the client is gone."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with contextlib.aclosing(self.body_iterator):  # type: ignore[type-var]
            await self.stream_response(send)


async def stream(service: Service, request: Request) -> Streamed:
    """`POST /stream`: one answer for every line, in order. A line that is rejected is answered with an error."""
    if len(service.streams) >= MOST_STREAMS:
        raise busy(f"{MOST_STREAMS} streams are open")
    return Streamed(_answer_lines(service, request), 200, {"x-accel-buffering": "no"}, "application/x-ndjson")


async def _answer_lines(service: Service, request: Request) -> AsyncIterator[bytes]:
    answers: asyncio.Queue = asyncio.Queue(AHEAD)
    reading = asyncio.create_task(_read_lines(service, request, answers))
    service.streams.add(reading)
    ready = b""
    try:
        while (answer := await answers.get()) is not None:
            # What is ready goes out in one piece, and does not wait for what is not.
            if ready and isinstance(answer, asyncio.Future) and not answer.done():
                yield ready
                ready = b""
            try:
                entry = await answer if isinstance(answer, asyncio.Future) else answer
            except asyncio.CancelledError:
                entry = {"error": "learning ended before this row was learned from."}
            ready += json.dumps(entry, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
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
        async for line in lines_of(request):
            number += 1
            if not line.strip():
                continue
            try:
                row = json_of(line)
                if not isinstance(row, dict):
                    raise Refusal(400, 'a line must be an object such as {"name": 1.5}.')
                await answers.put(await service.follow(row))
            except Refusal as refusal:
                await answers.put({**refusal.answer, "line": number})
                if refusal.status == 503:
                    break
    except Refusal as refusal:
        await answers.put({**refusal.answer, "line": number + 1})
    except (asyncio.CancelledError, ClientDisconnect):
        pass
    except Exception:
        await answers.put({"error": BROKEN, "line": number})
        raise
    finally:
        await answers.put(None)


async def events(feed: Feed, request: Request) -> Streamed:
    """`GET /events`: what the page shows, as server-sent events."""
    if feed.viewers >= MOST_VIEWERS:
        raise busy(f"{MOST_VIEWERS} pages are open")
    return Streamed(_tell(feed, request), 200, {"x-accel-buffering": "no"}, "text/event-stream")


async def _tell(feed: Feed, request: Request) -> AsyncIterator[bytes]:
    feed.viewers += 1
    told = None
    try:
        while not feed.ended and not await request.is_disconnected():
            told, event, content = feed.news(told)
            # JSON has no line breaks of its own.
            text = f"event: {event}\ndata: {json.dumps(content, ensure_ascii=False)}\n\n"
            yield text.encode("utf-8", "replace")
            await asyncio.sleep(TICK)
    finally:
        feed.viewers -= 1
