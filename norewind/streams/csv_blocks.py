"""Many lines of CSV at a time, as long as nothing about them is unusual.

The loop reads lines of plain fields. At the first line that it does not understand, such as
one with quotes or with a wrong number of fields, it stops: that line is read by `RowReader`,
row by row, which is the reference. What it does read, it reads as the reference does.
"""

import json
import math
from typing import Any, NamedTuple

import numpy as np

from norewind.kernels import kernel
from norewind.streams.clock import REMEMBERED
from norewind.streams.columns import LARGEST, number_of
from norewind.streams.conversion import Conversion, Rows, converted

KEY = 64
"""Bytes of the longest key that is read here, with its quotes."""
EXACT = 10.0 ** np.arange(23)
"""Powers of ten that are exact, so that one product or quotient with them is rounded once."""
NEWLINE, RETURN, SPACE, TAB, QUOTE, BACKSLASH, PLUS, MINUS, POINT, ZERO = map(ord, '\n\r \t"\\+-.0')
E, SMALL, TILDE, LAST_ASCII = ord("e"), ord("a") - ord("A"), ord("~"), 127
# What became of a field: a number, one with more digits than are exact here, or something else.
READ, LONG, ODD = range(3)


class Wanted(NamedTuple):
    """What to read of the columns of a file.

    Attributes:
        delimiter: the byte between fields.
        numbers: for each column of the file the place of its number; -1 if it is not read as a number.
        texts: likewise the place of its text.
        key: the column with the keys, or -1.
    """

    delimiter: int
    numbers: np.ndarray
    texts: np.ndarray
    key: int


class CsvBlocks:
    """Reads blocks of lines.

    Args:
        columns: the names of the columns.
        delimiter: the character between fields.
        conversion: how rows become numbers.
    """

    def __init__(self, columns: list[str], delimiter: str, conversion: Conversion):
        self._conversion = conversion
        place = {name: number for number, name in enumerate(columns)}
        numbers, texts = np.full((2, len(columns)), -1)
        others = [*conversion.copied, conversion.clock]
        for number, (name, read) in enumerate(conversion.used):
            numbers[place[name]] = number if read is number_of else -1
            others += [name] if read is not number_of else []
        self._texts = list(dict.fromkeys(name for name in others if name is not None))
        for number, name in enumerate(self._texts):
            texts[place[name]] = number
        key = -1 if conversion.key is None else place[conversion.key.column]
        self._wanted = Wanted(ord(delimiter), numbers, texts, key)
        self._block, self._bytes, self._valid = b"", np.empty(0, np.uint8), True

    def read(self, block: bytes, at: int, count: int, line: int) -> tuple[Rows, np.ndarray]:
        """Read up to `count` rows from byte `at` of a block on, up to the first line that is unusual.

        Returns:
            The rows, and how many bytes further each of their lines ends.
        """
        if block is not self._block:
            self._block, self._bytes, self._valid = block, np.frombuffer(block, np.uint8), _is_text(block)
        # A line of n fields has n bytes at least, and one of a single field two.
        files, texts = len(self._wanted.numbers), len(self._texts)
        most = min(count, (len(block) - at) // max(2, files))
        values = np.full((most, self._conversion.columns), np.nan)
        places, spans = np.empty((2, most), np.int64), np.empty((most, texts, 2), np.int64)
        keys = np.empty((most if self._wanted.key >= 0 else 0, KEY), np.uint8)
        hard = np.empty((most * min(files, values.shape[1]), 5), np.int64)
        room = (values, places, spans, keys, hard)
        rows, hards = read_lines(self._bytes, at, line, self._valid, self._wanted, room)
        values = self._with_hard(block, values[:rows], hard[:hards])
        fields = {name: spans[:, place].tolist() for place, name in enumerate(self._texts)}

        def text(name: str, rows: slice = slice(None)) -> list[str]:
            return [block[start:stop].decode() for start, stop in fields[name][: len(values)][rows]]

        used = {place: name for place, (name, read) in enumerate(self._conversion.used) if read is not number_of}
        values = self._conversion.fill(values, {place: text(name) for place, name in used.items()})
        clock, copied = self._conversion.clock, self._conversion.copied
        copies = zip(*map(text, copied), strict=True)
        found = Rows(
            values.copy(),  # not to keep the room for many if there are few
            places[0, : len(values)].copy(),
            [json.dumps(dict(zip(copied, row, strict=True))) for row in copies],
            () if clock is None else text(clock, slice(-REMEMBERED, None)),
            keys[: len(values)].view(f"S{KEY}")[:, 0].tolist() if len(keys) else (),
        )
        return found, places[1, : len(values)] - at

    def _with_hard(self, block: bytes, values: np.ndarray, hard: np.ndarray) -> np.ndarray:
        """Numbers that the loop has left to Python; returns the rows before the first bad one."""
        if not len(hard):
            return values
        row, place, start, stop, kind = hard.T
        texts: Any = (block[a:b] for a, b in zip(start.tolist(), stop.tolist(), strict=True))
        if (kind == LONG).all():
            found = np.fromiter(map(float, texts), np.float64, len(hard))
            if (np.abs(found) <= LARGEST).all():
                values[row, place] = found
                return values
            texts = (block[a:b] for a, b in zip(start.tolist(), stop.tolist(), strict=True))
        good = converted(lambda text: number_of(text.decode()), texts)
        values[row[: len(good)], place[: len(good)]] = good
        return values if len(good) == len(hard) else values[: row[len(good)]]


def _is_text(block: bytes) -> bool:
    try:
        return block.isascii() or bool(block.decode())
    except UnicodeDecodeError:
        return False


@kernel
def read_lines(data, at, line, valid, wanted, room):
    """Read lines until there is no more room, or a line is unusual.

    Args:
        data: a block of bytes that ends with a newline.
        at: where the next line begins.
        line: its number.
        valid: whether the block is valid UTF-8. If not, a line with bytes other than ASCII is unusual.
        wanted: see `Wanted`.
        room: where to write the numbers of rows; their lines and ends; the beginnings and ends of texts; keys;
            and the row, place, beginning, end and kind of the numbers that are left to Python.

    Returns:
        How many rows there are, and how many numbers are left to Python.
    """
    values, places, spans, keys, hard = room
    row, hards = 0, 0
    while row < len(values) and at < len(data):
        if data[at] == NEWLINE or (data[at] == RETURN and data[at + 1] == NEWLINE):
            at += 1 if data[at] == NEWLINE else 2  # a blank line
            line += 1
            continue
        column, start, place, left = 0, at, at, hards
        while True:
            byte = data[place]
            if byte == wanted.delimiter or byte == NEWLINE:
                stop = place
                if byte == NEWLINE and place > start and data[place - 1] == RETURN:
                    stop -= 1
                if column == len(wanted.numbers):
                    return row, hards
                if wanted.numbers[column] >= 0:
                    values[row, wanted.numbers[column]], kind = number(data, start, stop)
                    if kind != READ:
                        hard[left, 0], hard[left, 1], hard[left, 2] = row, wanted.numbers[column], start
                        hard[left, 3], hard[left, 4] = stop, kind
                        left += 1
                if wanted.texts[column] >= 0:
                    spans[row, wanted.texts[column], 0], spans[row, wanted.texts[column], 1] = start, stop
                if column == wanted.key and not write_key(data, start, stop, keys[row]):
                    return row, hards
                column, start = column + 1, place + 1
                if byte == NEWLINE:
                    break
            elif byte == QUOTE or (byte > LAST_ASCII and not valid):
                return row, hards
            place += 1
        if column != len(wanted.numbers):
            return row, hards
        at, hards = place + 1, left
        places[0, row], places[1, row] = line, at
        row, line = row + 1, line + 1
    return row, hards


@kernel
def write_key(data, start, stop, key):
    """Write the JSON text of a key, if it is plain and fits."""
    size = stop - start
    if size < 1 or size + 2 > len(key):
        return False
    key[0], key[size + 1] = QUOTE, QUOTE
    for place in range(size):
        byte = data[start + place]
        if byte < SPACE or byte > TILDE or byte == BACKSLASH:
            return False
        key[1 + place] = byte
    for place in range(size + 2, len(key)):
        key[place] = 0
    return True


@kernel
def digits(data, place, stop, number):
    """Read digits as the next ones of a number; one with too many to be held comes out as large as can be."""
    while place < stop and ZERO <= data[place] <= ZERO + 9:
        number = number * 10 + (data[place] - ZERO) if number < 10**17 else 10**18
        place += 1
    return number, place


@kernel
def number(data, start, stop):
    """A decimal number, if Python would read the same, and nothing has to be rounded twice."""
    while start < stop and (data[start] == SPACE or data[start] == TAB):
        start += 1
    while start < stop and (data[stop - 1] == SPACE or data[stop - 1] == TAB):
        stop -= 1
    if start == stop:
        return math.nan, READ
    negative = data[start] == MINUS
    start += negative or data[start] == PLUS
    mantissa, place = digits(data, start, stop, 0)
    count, power = place - start, 0
    if place < stop and data[place] == POINT:
        mantissa, end = digits(data, place + 1, stop, mantissa)
        power = place + 1 - end
        count, place = count - power, end
    if count == 0:
        return math.nan, ODD
    if place < stop and data[place] | SMALL == E:
        place += 1
        below = place < stop and data[place] == MINUS
        place += place < stop and (below or data[place] == PLUS)
        exponent, end = digits(data, place, stop, 0)
        if end == place:
            return math.nan, ODD
        power += -exponent if below else exponent
        place = end
    if place < stop:
        return math.nan, ODD
    if mantissa > 2**53 or not -22 <= power <= 22:
        return math.nan, LONG
    value = mantissa / EXACT[-power] if power < 0 else mantissa * EXACT[power]
    return -value if negative else value, READ
