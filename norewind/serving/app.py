"""The HTTP interface of the service, and of the page alone."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from norewind.serving.bodies import body_of, rows_of
from norewind.serving.feed import Feed
from norewind.serving.guard import Guard
from norewind.serving.prometheus import Requests
from norewind.serving.refusals import BROKEN, Refusal
from norewind.serving.service import Service
from norewind.serving.streaming import Events, Stream, send_json

PAGE = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}


def service_app(service: Service, token: str | None = None) -> Guard:
    """The service and its page."""
    requests = Requests()

    async def predict(scope: dict[str, Any], receive: Any, send: Any) -> None:
        try:
            rows, ids, single = rows_of(await body_of(scope, receive))
            answers = await service.predict(rows, ids)
        except Refusal as refusal:
            return await _refuse(None, refusal)(scope, receive, send)
        except Exception:
            await _broken(None, None)(scope, receive, send)
            raise
        await send_json(send, answers[0] if single else {"rows": answers})

    async def learn(request: Request) -> Response:
        rows, ids, _ = rows_of(await body_of(request.scope, request.receive))
        last = service.learn(rows, ids)
        if request.query_params.get("wait") in ("1", "true", "learned"):
            await service.until_learned(last)
        return JSONResponse({"first": last - len(rows) + 1, "last": last, **service.standing()}, 202)

    async def health(request: Request) -> Response:
        status = service.status()
        word = "not learning" if status["diverged"] else "ok"
        answer = {"status": word, **(status if request.scope["trusted"] else {})}
        return JSONResponse(answer, 503 if status["diverged"] else 200)

    async def metrics(_: Request) -> Response:
        newest = service.feed.metrics[-1] if service.feed.metrics else {}
        return PlainTextResponse(requests.text(service.status(), newest), media_type="text/plain; version=0.0.4")

    routes = [
        Route("/predict", _posted, methods=["POST"]),
        Route("/learn", learn, methods=["POST"]),
        Route("/stream", Stream(service), methods=["POST"]),
        Route("/health", health),
        Route("/metrics", metrics),
    ]
    quick = {"/predict": predict}
    return Guard(_application(service.feed, routes, service.start, service.stop), token, requests, quick)


def watch_app(feed: Feed, token: str | None = None) -> Guard:
    """The page alone."""

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", **(feed.present() if request.scope["trusted"] else {})})

    async def nothing() -> None:
        pass

    return Guard(_application(feed, [Route("/health", health)], nothing, nothing), token, Requests(), {})


def _application(feed: Feed, routes: list[Route], start: Callable, stop: Callable) -> Starlette:
    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await start()
        ticking = asyncio.create_task(feed.run())
        try:
            yield
        finally:
            ticking.cancel()
            await stop()

    pages = [_page(path, *content) for path, content in PAGE.items()]
    return Starlette(
        routes=[*routes, *pages, Route("/events", Events(feed))],
        lifespan=lifespan,
        exception_handlers={Refusal: _refuse, 404: _nowhere, 405: _wrong_method, 500: _broken},
    )


def _page(path: str, name: str, kind: str) -> Route:
    content = (resources.files("norewind.serving") / "page" / name).read_bytes()

    async def page(_: Request) -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8")

    return Route(path, page)


async def _posted(_: Request) -> Response:
    """A route that is answered before it is found, so that other methods are answered with 405."""
    raise NotImplementedError


def _refuse(_: Any, refusal: Any) -> Response:
    headers = {"retry-after": "1"} if refusal.status == 429 else None
    return JSONResponse(refusal.answer(), refusal.status, headers)


def _nowhere(request: Request, _: Exception) -> Response:
    return JSONResponse({"error": f"there is nothing at {json.dumps(request.url.path)}."}, 404)


def _wrong_method(request: Request, _: Exception) -> Response:
    return JSONResponse({"error": f"{request.method} is not allowed for {request.url.path}."}, 405)


def _broken(_: Any, __: Any) -> Response:
    return JSONResponse({"error": BROKEN}, 500)
