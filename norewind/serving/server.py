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
# How long a connection stays open after a response, waiting for the headers of the next request.
KEEP_ALIVE_SECONDS = 60.0
# How long a client may leave a response unread.
SEND_SECONDS = 30.0
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
    """HTTP/1.1 with limits that uvicorn lacks: on connections, on the size and duration of headers, and on idling.

    A connection without an open request has one timer, which only the headers of a request stop. Other bytes, such as
    blank lines, do not extend it.
    """

    def connection_made(self, transport: Any) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._in_head = True
        self._head_bytes = 0
        self._set_timer(HEAD_SECONDS, self._reject_slow)
        if len(self.connections) > MAX_CONNECTIONS:
            self._reject(429, b"too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._reject(431, b"the header is too long")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._in_head:  # a request after the first one
            self._in_head = True
            self._head_bytes = 0
            self._set_timer(HEAD_SECONDS, self._reject_slow)

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._in_head = False
        # Of headers that arrive in one piece, `data_received` sees the size only afterwards.
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            self._reject(431, b"the header is too long")
        if not self.transport.is_closing():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.transport.is_closing():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # Our timer replaces that of uvicorn, which any byte would stop.
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            self._close()
        elif self._timer is None and self.cycle.response_complete:
            self._set_timer(KEEP_ALIVE_SECONDS, self._close)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._send_timer = self.loop.call_later(SEND_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._send_timer:
            self._send_timer.cancel()

    def _set_timer(self, seconds: float, then: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, then)

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = None

    def _reject_slow(self) -> None:
        self._reject(408, b"too slow")

    def _reject(self, status: int, message: bytes) -> None:
        body = b'{"error": "%s"}' % message
        self.transport.write(
            b"%scontent-type: application/json\r\nretry-after: 1\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (STATUS_LINE[status], len(body), body)
        )
        self._close()

    def _close(self) -> None:
        """Close the connection, even if the client does not read what was sent to it."""
        self.transport.close()
        self.loop.call_later(SEND_SECONDS, self.transport.abort)


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
