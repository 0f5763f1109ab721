"""uvicorn, with limits on connections, headers and patience, and an orderly end."""

import contextlib
from collections.abc import Callable, Iterator
from socket import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_CONNECTIONS = 512
LONGEST_HEAD = 1 << 14
HEAD_SECONDS = 10.0
IDLE_SECONDS = 60
GRACE = 10


class Protocol(HttpToolsProtocol):
    """HTTP whose requests must begin and get through their headers in time and within limits."""

    def connection_made(self, transport: Any) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head, self._hurry = 0, None
        if len(self.connections) > MOST_CONNECTIONS:
            self._refuse(429, b"Too Many Requests", b"too many connections")
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._head += len(data)
        super().data_received(data)
        if self._hurry is not None and self._head > LONGEST_HEAD and not self.transport.is_closing():
            self._refuse(431, b"Request Header Fields Too Large", b"the header is too long")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._hurry is None:
            self._wait_for_head()

    def on_headers_complete(self) -> None:
        self._head_is_there()
        super().on_headers_complete()

    def _wait_for_head(self) -> None:
        self._head = 0
        self._hurry = self.loop.call_later(HEAD_SECONDS, self._refuse, 408, b"Request Timeout", b"too slow")

    def _head_is_there(self) -> None:
        if self._hurry is not None:
            self._hurry.cancel()
            self._hurry = None

    def _refuse(self, status: int, phrase: bytes, words: bytes) -> None:
        body = b'{"error": "%s"}' % words
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\nretry-after: 1\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%s" % (status, phrase, len(body), body)
        )
        self.transport.close()


class Server(uvicorn.Server):
    """A server that says when it is `ready()`, ends when `stop()` returns True, and calls `end()` before it does."""

    def __init__(self, config: uvicorn.Config, stop: Callable[[], bool], ready: Callable, end: Callable):
        super().__init__(config)
        self.stop, self.ready, self.end = stop, ready, end

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:  # type: ignore[override]
        yield  # the caller's business

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.ready()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self.stop()

    async def shutdown(self, sockets: Any = None) -> None:
        self.end()
        await super().shutdown(sockets)


def serve(app: Any, listener: socket, *, stop: Callable[[], bool], ready: Callable, end: Callable) -> None:
    """Serve on a socket that listens, until `stop()`."""
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=GRACE,
    )
    Server(config, stop, ready, end).run([listener])
