"""Responses that do not end by themselves: lines in and lines out, and events for the page."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse

from norewind.serving.bodies import json_of, lines_of
from norewind.serving.feed import TICK, Feed
from norewind.serving.refusals import BROKEN, Refusal, busy
from norewind.serving.service import Service

MOST_STREAMS = 64
MOST_VIEWERS = 32
AHEAD = 256
"""Lines of one stream that may wait for their answers; then its sender has to wait."""


class Streamed(StreamingResponse):
    """The parts of a generator, which itself reads the body or notices that the client is gone."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with aclosing(self.body_iterator):  # type: ignore[type-var]
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
