"""Streams: samples from files, pipes and tasks, in one pass and in constant memory.

Importing this does not import JAX.
"""

from norewind.streams.parsing import Dialect
from norewind.streams.position import afresh
from norewind.streams.reading import Source
from norewind.streams.rows import KeyedStream, RowStream
from norewind.streams.stream import Samples, Stream, StreamError
from norewind.streams.symbols import ByteStream, CharacterStream, TaskStream

__all__ = [
    "ByteStream",
    "CharacterStream",
    "Dialect",
    "KeyedStream",
    "RowStream",
    "Samples",
    "Source",
    "Stream",
    "StreamError",
    "TaskStream",
    "afresh",
]
