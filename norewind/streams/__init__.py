"""Streams: samples from files, pipes, topics and tasks, in one pass and in constant memory.

Importing this package does not import JAX.
"""

from norewind.streams.position import restart_position
from norewind.streams.source import Source
from norewind.streams.stream import Samples, Stream, StreamError
from norewind.streams.table.formats import ReadOptions
from norewind.streams.table.keyed_stream import KeyedStream
from norewind.streams.table.row_stream import RowStream
from norewind.streams.text.symbols import ByteStream, CharacterStream, TaskStream

__all__ = [
    "ByteStream", "CharacterStream", "KeyedStream", "ReadOptions", "RowStream", "Samples", "Source", "Stream",
    "StreamError", "TaskStream", "restart_position",
]  # fmt: skip
