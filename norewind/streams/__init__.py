"""Streams: samples from files, pipes and tasks, in one pass and in constant memory.

Importing this does not import JAX.
"""

from norewind.streams.characters import CharacterStream
from norewind.streams.place import afresh
from norewind.streams.rows import RowStream
from norewind.streams.source import Source
from norewind.streams.stream import Samples, Stream, StreamError
from norewind.streams.symbols import ByteStream
from norewind.streams.task import TaskStream

__all__ = [
    "ByteStream",
    "CharacterStream",
    "RowStream",
    "Samples",
    "Source",
    "Stream",
    "StreamError",
    "TaskStream",
    "afresh",
]
