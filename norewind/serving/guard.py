"""Who may ask: the right host, no other site's page, and where it is needed the token."""

import hashlib
import hmac
import ipaddress
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from norewind.serving.bodies import Body, body_of
from norewind.serving.prometheus import Requests
from norewind.serving.refusals import Refusal

COOKIE = "norewind"
LOCAL = ("localhost", "127.0.0.1", "::1")
SAFE = [
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
LOGIN = """<!doctype html><html lang="en"><meta charset="utf-8"><title>norewind</title>
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/page.css">
<main class="login"><h1>norewind</h1><form method="post" action="/login"><label>Token
<input type="password" name="token" autocomplete="current-password" autofocus required></label>
<button>Open</button></form></main></html>"""
OPEN = ("/health", "/login", "/page.css")
"""What may be asked for without the token."""


def is_local(host: str) -> bool:
    """Whether an address to listen on can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """An ASGI application in front of another: it lets requests through, or refuses them, and counts all of them.

    Without a token only requests to this machine by its local names are served, since a name
    of somebody else's may lead here too. `quick` are applications by path that answer POST requests
    in place of `app`, whose own way through Starlette takes longer than a prediction.
    """

    def __init__(self, app: Any, token: str | None, requests: Requests, quick: dict[str, Any]):
        self.app, self.requests, self.quick = app, requests, quick
        self.token = token.encode() if token else None
        self.cookie = hashlib.sha256(b"norewind cookie " + token.encode()).hexdigest() if token else ""

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began, status, body, headers = time.perf_counter(), 500, Body(receive), dict(scope["headers"])
        # Who waits for a word before sending the body does not send one that is refused.
        waits = b"expect" in headers

        async def sending(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *SAFE]
            elif status >= 400 and not message.get("more_body") and not waits:
                await body.drain()
            await send(message)

        try:
            await self._answer(scope, headers, body, sending)
        finally:
            self.requests.add(scope["path"], status, time.perf_counter() - began)

    async def _answer(self, scope: dict[str, Any], headers: dict[bytes, bytes], receive: Any, send: Any) -> None:
        response, posts = self._refused(scope, headers), scope["method"] == "POST"
        if response is None and posts and scope["path"] == "/login":
            response = await self._login(scope, receive) if self.token else RedirectResponse("/", 303)
        if response is None:
            scope["trusted"] = self.token is None or self._has_token(headers)
            app = self.quick.get(scope["path"], self.app) if posts else self.app
            return await app(scope, receive, send)
        await response(scope, receive, send)

    def _refused(self, scope: dict[str, Any], headers: dict[bytes, bytes]) -> Response | None:
        host = headers.get(b"host", b"").decode("latin-1")
        if self.token is None and _name(host) not in LOCAL:
            return _error(403, f"requests for the host {host!r} are refused. Use localhost or 127.0.0.1.")
        origin = headers.get(b"origin")
        if origin is not None and _place(origin.decode("latin-1")) != host:
            return _error(403, "requests from pages of other sites are refused.")
        if self.token is None or scope["path"] in OPEN or self._has_token(headers):
            return None
        if scope["method"] == "GET" and scope["path"] == "/":
            return HTMLResponse(LOGIN, 401)
        response = _error(401, "a token is needed: send the header Authorization: Bearer TOKEN.")
        response.headers["www-authenticate"] = "Bearer"
        return response

    def _has_token(self, headers: dict[bytes, bytes]) -> bool:
        assert self.token
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"bearer" and hmac.compare_digest(given.strip(), self.token):
            return True
        cookies = headers.get(b"cookie", b"").decode("latin-1").split(";")
        named = (cookie.strip().partition("=") for cookie in cookies)
        return any(
            name == COOKIE and hmac.compare_digest(value.encode(), self.cookie.encode()) for name, _, value in named
        )

    async def _login(self, scope: dict[str, Any], receive: Any) -> Response:
        try:
            form = parse_qs((await body_of(scope, receive)).decode("utf-8", "replace"))
        except Refusal as refusal:
            return _error(refusal.status, refusal.message)
        given = form.get("token", [""])[0].encode()
        if not hmac.compare_digest(given, self.token or b""):
            return HTMLResponse(LOGIN.replace("<form", "<p>That is not the token.</p><form"), 401)
        response = RedirectResponse("/", 303)
        response.set_cookie(COOKIE, self.cookie, httponly=True, samesite="strict", path="/")
        return response


def _name(host: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _place(origin: str) -> str:
    """The host and the port of an origin."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status)
