"""Answers that do not end: lines in and lines out, and events for the page."""

import asyncio
import json
from typing import Any

import msgspec

from norewind.serving.bodies import json_of, lines_of
from norewind.serving.feed import Feed
from norewind.serving.refusals import BROKEN, Refusal, busy
from norewind.serving.service import Service

MOST_STREAMS = 64
AHEAD = 256
"""Lines of one stream that may wait for their answers; then its sender has to wait."""
SEND_SECONDS = 30.0
ALIVE_SECONDS = 15.0


class Stream:
    """`POST /stream`: one answer for every line, in order. A line that is refused is answered with an error."""

    def __init__(self, service: Service):
        self.service = service
        self.reading: set[asyncio.Task] = set()
        service.at_end.append(self.end)

    def end(self) -> None:
        """Read no more. What was read is still answered."""
        for task in self.reading:
            task.cancel()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if len(self.reading) >= MOST_STREAMS:
            raise busy(f"{MOST_STREAMS} streams are open")
        answers: asyncio.Queue = asyncio.Queue(AHEAD)
        reading = asyncio.create_task(self._read(receive, answers))
        self.reading.add(reading)
        try:
            await _start(send, b"application/x-ndjson")
            ready = b""
            while (answer := await answers.get()) is not None:
                # What is ready goes out in one piece, and does not wait for what is not.
                if ready and isinstance(answer, asyncio.Future) and not answer.done():
                    await _send(send, ready)
                    ready = b""
                ready += await _line(answer)
                if answers.empty():
                    await _send(send, ready)
                    ready = b""
            await _send(send, ready, more=False)
        except (TimeoutError, OSError):
            pass  # the other side is gone
        finally:
            self.reading.discard(reading)
            reading.cancel()

    async def _read(self, receive: Any, answers: asyncio.Queue) -> None:
        number = 0
        try:
            async for line in lines_of(receive):
                number += 1
                if not line.strip():
                    continue
                try:
                    row = json_of(line)
                    if not isinstance(row, dict):
                        raise Refusal(400, 'a line must be an object such as {"name": 1.5}.')
                    await answers.put(await self.service.follow(row))
                except Refusal as refusal:
                    await answers.put({**refusal.answer(), "line": number})
                    if refusal.status == 503:
                        break
        except Refusal as refusal:
            await answers.put({**refusal.answer(), "line": number + 1})
        except asyncio.CancelledError:
            pass
        except Exception:
            await answers.put({"error": BROKEN, "line": number})
            raise
        finally:
            await answers.put(None)


async def _line(answer: Any) -> bytes:
    try:
        entry = await answer if isinstance(answer, asyncio.Future) else answer
    except asyncio.CancelledError:
        entry = {"error": "learning ended before this row was learned from."}
    return json.dumps(entry, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


class Events:
    """`GET /events`: what the page shows, as server-sent events."""

    def __init__(self, feed: Feed):
        self.feed = feed

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        queue = self.feed.join()
        gone = asyncio.create_task(_gone(receive))
        try:
            await _start(send, b"text/event-stream")
            while not gone.done():
                try:
                    message = await asyncio.wait_for(queue.get(), ALIVE_SECONDS)
                except TimeoutError:
                    message = b": still here\n\n"
                if message is None:
                    break
                await _send(send, message)
            await _send(send, b"", more=False)
        except (TimeoutError, OSError):
            pass
        finally:
            gone.cancel()
            self.feed.leave(queue)


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_json(send: Any, content: Any) -> None:
    """A whole answer."""
    body = msgspec.json.encode(content)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _start(send: Any, kind: bytes) -> None:
    headers = [(b"content-type", kind), (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _send(send: Any, body: bytes, *, more: bool = True) -> None:
    message = {"type": "http.response.body", "body": body, "more_body": more}
    await asyncio.wait_for(send(message), SEND_SECONDS)
