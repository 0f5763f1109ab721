"""The uvicorn server with limits on connections and headers, and a graceful shutdown."""

import asyncio
import contextlib
from collections.abc import Callable
from socket import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

MAX_CONNECTIONS = 512
MAX_HEAD_BYTES = 1 << 14
HEAD_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 60
GRACE_SECONDS = 10
CONTENT_POLICY = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
# Headers of every response.
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class LimitedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with limits that uvicorn lacks: on connections, and on the size and duration of a request's headers."""

    def connection_made(self, transport: Any) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()
        if len(self.connections) > MAX_CONNECTIONS:
            self._reject(429, b"too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._received += len(data)
        super().data_received(data)
        in_head = not self._deadline.cancelled() and not self.transport.is_closing()
        if in_head and self._received > MAX_HEAD_BYTES:
            self._reject(431, b"the header is too long")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._deadline.cancelled():  # a later request on the same connection
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._deadline.cancel()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        self._received = 0
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._reject, 408, b"too slow")

    def _reject(self, status: int, message: bytes) -> None:
        body = b'{"error": "%s"}' % message
        self.transport.write(
            b"%scontent-type: application/json\r\nretry-after: 1\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (STATUS_LINE[status], len(body), body)
        )
        self.transport.close()


def serve(app: Any, listener: socket, *, stop: Callable[[], bool], end: Callable[[], None]) -> None:
    """Serve an application until `stop()` returns True.

    Args:
        app: the ASGI application.
        listener: a listening socket.
        stop: called ten times a second. Signals are left to the caller.
        end: called before the server waits for open requests, to end those that would not end on their own.
    """
    config = uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        headers=list(SECURITY_HEADERS.items()),
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]

    async def run() -> None:
        serving = asyncio.create_task(server.serve([listener]))
        while not stop() and not serving.done():
            await asyncio.sleep(0.1)
        end()
        server.should_exit = True
        await serving

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(run())
