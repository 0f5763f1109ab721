"""Access control: the Host header, requests from other sites, and the token."""

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import re
import time
from importlib import resources
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from norewind.serving.bodies import RequestError, read_body
from norewind.serving.prometheus import RequestCounts

COOKIE_NAME = "norewind"
LOCAL_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", re.IGNORECASE)
LINGER_SECONDS = 2.0
LOGIN_PAGE = (resources.files("norewind.serving") / "page" / "login.html").read_text()
# The largest form that is read without the token (in bytes): reading larger ones would keep the service busy.
MAX_LOGIN_BYTES = 1 << 14
# Paths that are served without the token.
PUBLIC_PATHS = ("/health", "/login", "/page.css")


def is_local(host: str) -> bool:
    """Return whether a listening address can be reached only from this machine."""
    with contextlib.suppress(ValueError):
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    return False


class AccessControl:
    """ASGI middleware that rejects requests or passes them on to `app`, and counts them.

    Without a token, only requests whose Host header is a local name are served, since any
    domain name may resolve to this machine (DNS rebinding).

    Args:
        token: the token that requests must send; None if none is required.
    """

    app: ASGIApp

    def __init__(self, token: str | None):
        self.token = token
        self.counts = RequestCounts()
        self.cookie = hashlib.sha256(f"norewind cookie {token}".encode()).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began = time.perf_counter()
        request = Request(scope)
        status = 500
        body_ended = False

        async def receive_part() -> Message:
            nonlocal body_ended
            message = await receive()
            body_ended = not message.get("more_body", False)  # also if the client has disconnected
            return message

        async def send_part(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            # Read the rest of the body first: a client whose connection is closed while it sends may never see the
            # answer. A client that waits for permission to send (Expect) is not given it.
            if status >= 400 and "body" in message and "expect" not in request.headers:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LINGER_SECONDS):
                        while not body_ended:
                            await receive_part()
            await send(message)

        try:
            await (self._rejection(request) or self.app)(scope, receive_part, send_part)
        finally:
            self.counts.add(scope["path"], status, time.perf_counter() - began)

    def _rejection(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        path = request.scope["path"]
        if self.token is None and not LOCAL_HOST.fullmatch(host):
            return RequestError(
                403, f"requests for the host {host!r} are rejected. Use localhost or 127.0.0.1."
            ).response
        if _is_from_another_site(request, host):
            return RequestError(403, "requests from pages of other sites are rejected.").response
        request.scope["trusted"] = self.token is None or self._has_token(request)
        if request.scope["trusted"] or path in PUBLIC_PATHS:
            return None
        if request.method == "GET" and path == "/":
            return HTMLResponse(LOGIN_PAGE, 401)
        return RequestError(401, "a token is required: send the header Authorization: Bearer TOKEN.").response

    def _has_token(self, request: Request) -> bool:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        cookie = request.cookies.get(COOKIE_NAME, "")
        return (kind.lower() == "bearer" and _same(given.strip(), self.token)) or _same(cookie, self.cookie)

    async def login(self, request: Request) -> Response:
        """`POST /login`: set a cookie for a browser that sends the token.

        Args:
            request: the submitted form.
        """
        if self.token is not None:
            form = parse_qs((await read_body(request, MAX_LOGIN_BYTES)).decode("utf-8", "replace"))
            if not _same(form.get("token", [""])[0], self.token):
                return HTMLResponse(LOGIN_PAGE.replace("<form", "<p>Wrong token.</p><form"), 401)
        response = RedirectResponse("/", 303)
        response.set_cookie(COOKIE_NAME, self.cookie, httponly=True, samesite="strict", path="/")
        return response


def _is_from_another_site(request: Request, host: str) -> bool:
    """Return whether a page of another site made a request. A link to our page from there is harmless."""
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        return True
    # Browsers send no Origin with a GET for an image or a script, but they do say where it comes from.
    follows_link = request.headers.get("sec-fetch-mode") == "navigate" and request.method == "GET"
    if follows_link and request.scope["path"] == "/":
        return False
    return request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def _same(given: str, expected: str | None) -> bool:
    return hmac.compare_digest(given.encode(), (expected or "").encode())
