"""Access to the service: the right host, no page of another site, and the token where one is needed."""

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import time
from importlib import resources
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from norewind.serving.bodies import body_of, error_response
from norewind.serving.prometheus import Requests

COOKIE = "norewind"
LOCAL = ("localhost", "127.0.0.1", "::1")
LINGER_SECONDS = 2.0
SEND_SECONDS = 30.0
LOGIN = (resources.files("norewind.serving") / "page" / "login.html").read_text()
# Paths that are answered without the token.
OPEN = ("/health", "/login", "/page.css")


def is_local(host: str) -> bool:
    """Whether an address to listen on can be reached from this machine only."""
    with contextlib.suppress(ValueError):
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    return False


class Guard:
    """An ASGI application in front of another (`app`): it rejects requests or lets them through, and counts them.

    Without a token, only requests to this machine by its local names are served, since
    anybody's domain name may lead here too.
    """

    app: Any

    def __init__(self, token: str | None):
        self.token, self.requests = token, Requests()
        self.cookie = hashlib.sha256(f"norewind cookie {token}".encode()).hexdigest()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began, status, body_ended, request = time.perf_counter(), 500, False, Request(scope)

        async def receiving() -> Any:
            nonlocal body_ended
            message = await receive()
            body_ended = not message.get("more_body", False)  # also if the client is gone
            return message

        async def sending(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            # A client whose connection is closed while it sends may never see the answer. One that waits for
            # permission to send (Expect) does not get it.
            if status >= 400 and "body" in message and "expect" not in request.headers:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LINGER_SECONDS):
                        while not body_ended:
                            await receiving()
            async with asyncio.timeout(SEND_SECONDS):
                await send(message)

        try:
            await (self._rejection(request) or self.app)(scope, receiving, sending)
        except TimeoutError:
            pass  # the client does not read
        finally:
            self.requests.add(scope["path"], status, time.perf_counter() - began)

    def _rejection(self, request: Request) -> Response | None:
        host, origin, path = request.headers.get("host", ""), request.headers.get("origin"), request.scope["path"]
        if self.token is None and _split(f"//{host}").hostname not in LOCAL:
            return error_response(403, f"requests for the host {host!r} are refused. Use localhost or 127.0.0.1.")
        if origin is not None and _split(origin).netloc != host:
            return error_response(403, "requests from pages of other sites are refused.")
        request.scope["trusted"] = self.token is None or self._has_token(request)
        if request.scope["trusted"] or path in OPEN:
            return None
        if request.method == "GET" and path == "/":
            return HTMLResponse(LOGIN, 401)
        words = "a token is needed: send the header Authorization: Bearer TOKEN."
        return error_response(401, words, headers={"www-authenticate": "Bearer"})

    def _has_token(self, request: Request) -> bool:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        cookie = request.cookies.get(COOKIE, "")
        return (kind.lower() == "bearer" and _same(given.strip(), self.token)) or _same(cookie, self.cookie)

    async def login(self, request: Request) -> Response:
        """`POST /login`: give the browser of somebody who knows the token a cookie."""
        if self.token is not None:
            form = parse_qs((await body_of(request)).decode("utf-8", "replace"))
            if not _same(form.get("token", [""])[0], self.token):
                return HTMLResponse(LOGIN.replace("<form", "<p>That is not the token.</p><form"), 401)
        response = RedirectResponse("/", 303)
        response.set_cookie(COOKIE, self.cookie, httponly=True, samesite="strict", path="/")
        return response


def _same(given: str, expected: str | None) -> bool:
    return hmac.compare_digest(given.encode(), (expected or "").encode())


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")
