"""Gzip files, unpacked while they are read."""

import zlib
from typing import Any

from norewind.streams.stream import StreamError

PACKED_BLOCK_BYTES = 1 << 16
GZIP = 31  # the argument of zlib that stands for gzip, with the largest window


class Unpacked:
    """The unpacked bytes of a gzip file, in place of the file.

    The file may consist of several parts, as after `cat a.gz b.gz`.

    Args:
        file: the packed file, open for reading.
        name: its name in messages.
    """

    def __init__(self, file: Any, name: str):
        self._file, self._name = file, name
        self._packed = b""
        self._unpacker: Any = None  # of the current part; None before the first and between two parts

    def fileno(self) -> int:
        """Return the descriptor of the packed file."""
        return self._file.fileno()

    def close(self) -> None:
        """Close the packed file."""
        self._file.close()

    def read(self, size: int) -> bytes | None:
        """Return the next bytes; none at the end, and None if they are not ready.

        Args:
            size: the maximum number of bytes.

        Raises:
            StreamError: the file is damaged, or ends inside a part.
        """
        while True:
            if self._unpacker is not None and (data := self._unpack(size)):
                return data
            if not self._packed:
                packed = self._file.read(PACKED_BLOCK_BYTES)
                if packed == b"" and self._unpacker is not None:
                    problem = "ends in the middle of its packed data: it is still being written, or was cut off"
                    raise StreamError(f"{self._name} {problem}. Resume the run when it is complete.")
                if not packed:
                    return packed
                self._packed = packed
            if self._unpacker is None:
                self._packed = self._packed.lstrip(b"\0")  # parts may be padded
                self._unpacker = zlib.decompressobj(GZIP) if self._packed else None

    def _unpack(self, size: int) -> bytes:
        """Return the next bytes of the current part, as far as they have been read."""
        try:
            data = self._unpacker.decompress(self._packed, size)
        except zlib.error as error:
            raise StreamError(f"{self._name} is not valid gzip data: {error}.") from None
        at_end = self._unpacker.eof
        self._packed = self._unpacker.unused_data if at_end else self._unpacker.unconsumed_tail
        if at_end:
            self._unpacker = None
        return data
