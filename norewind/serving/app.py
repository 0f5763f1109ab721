"""The HTTP interface of the service, and of the page alone."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from functools import partial
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from norewind.serving.bodies import body_of, rows_of
from norewind.serving.feed import Feed
from norewind.serving.guard import Guard
from norewind.serving.prometheus import Requests
from norewind.serving.refusals import BROKEN, Refusal, error_response
from norewind.serving.service import Service
from norewind.serving.streaming import events, stream

PAGE = {"/": "html", "/page.js": "javascript", "/page.css": "css"}


def service_app(service: Service, token: str | None = None) -> Guard:
    """The service and its page."""
    requests = Requests()

    async def predict(request: Request) -> Response:
        rows, ids, single = rows_of(await body_of(request))
        answers = await service.predict(rows, ids)
        return JSONResponse(answers[0] if single else {"rows": answers})

    async def learn(request: Request) -> Response:
        rows, ids, _ = rows_of(await body_of(request))
        last = service.learn(rows, ids)
        if request.query_params.get("wait") in ("1", "true", "learned"):
            await service.until_learned(last)
        return JSONResponse({"first": last - len(rows) + 1, "last": last, **service.standing()}, 202)

    async def health(request: Request) -> Response:
        status = service.status()
        answer = {"status": "not learning" if status["diverged"] else "ok"}
        return JSONResponse(answer | (status if request.scope["trusted"] else {}), 503 if status["diverged"] else 200)

    async def metrics(_: Request) -> Response:
        newest = service.feed.metrics[-1] if service.feed.metrics else {}
        return PlainTextResponse(requests.text(newest | service.status()), media_type="text/plain; version=0.0.4")

    posts = {"/predict": predict, "/learn": learn, "/stream": partial(stream, service)}
    routes = [Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()]
    return _guarded(
        service.feed, [*routes, Route("/health", health), Route("/metrics", metrics)], token, requests, service
    )


def watch_app(feed: Feed, token: str | None = None) -> Guard:
    """The page alone."""

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", **(feed.present() if request.scope["trusted"] else {})})

    return _guarded(feed, [Route("/health", health)], token, Requests())


def _guarded(
    feed: Feed, routes: list[Route], token: str | None, requests: Requests, service: Service | None = None
) -> Guard:
    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if service:
            service.loop = asyncio.get_running_loop()
        ticking = asyncio.create_task(feed.run())
        yield
        ticking.cancel()
        if service:
            await service.stop()

    guard = Guard(token, requests)
    folder = resources.files("norewind.serving") / "page"
    for path, kind in PAGE.items():
        content = (folder / (path.strip("/") or "page.html")).read_bytes()
        routes.append(Route(path, Response(content, media_type=f"text/{kind}"), methods=["GET"]))
    routes += [Route("/events", partial(events, feed)), Route("/login", guard.login, methods=["POST"])]
    handlers: dict[Any, Any] = {Refusal: _refuse, HTTPException: _not_there, 500: _broken}
    guard.app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    return guard


def _refuse(_: Request, refusal: Refusal) -> Response:
    return JSONResponse(refusal.answer, refusal.status, {"retry-after": "1"} if refusal.status == 429 else None)


def _not_there(request: Request, error: HTTPException) -> Response:
    path, other = request.url.path, f"{request.method} is not allowed for {request.url.path}."
    words = f"there is nothing at {json.dumps(path)}." if error.status_code == 404 else other
    return error_response(error.status_code, words)


def _broken(_: Request, __: Exception) -> Response:
    return error_response(500, BROKEN)
