"""A binary arithmetic coder: bits become bytes, and bytes the same bits again."""

import numpy as np

from norewind.kernels import kernel
from norewind.learners.counting.logistic import ONE

# The interval that the bits so far have left; when decoding, where the code lies; the bytes written or read.
LOW, HIGH, VALUE, PLACE, MODE, NUMBERS = range(6)
SILENT, ENCODE, DECODE = range(3)
_ALL, _TOP, _UNIT = 0xFFFFFFFF, 0xFF000000, ONE.bit_length() - 1


def fresh_coder(mode: int) -> np.ndarray:
    """The state of a coder that encodes, decodes, or (`SILENT`) does nothing."""
    return np.array([0, _ALL, 0, 0, mode], np.int64)


@kernel
def coded(coder, data, one, bit):
    """Write the bit to `data`, or read it from there and return it; `one` is the probability of a one."""
    if coder[MODE] == SILENT:
        return bit
    width = coder[HIGH] - coder[LOW]
    middle = coder[LOW] + (width >> _UNIT) * one + (((width & (ONE - 1)) * one) >> _UNIT)
    if coder[MODE] == DECODE:
        bit = 1 if coder[VALUE] <= middle else 0
    if bit == 1:
        coder[HIGH] = middle
    else:
        coder[LOW] = middle + 1
    while (coder[LOW] ^ coder[HIGH]) & _TOP == 0:
        if coder[MODE] == ENCODE:
            data[coder[PLACE]] = coder[HIGH] >> 24
        else:
            byte = data[coder[PLACE]] if coder[PLACE] < len(data) else 0
            coder[VALUE] = (coder[VALUE] << 8 & _ALL) | byte
        coder[PLACE] += 1
        coder[LOW] = coder[LOW] << 8 & _ALL
        coder[HIGH] = (coder[HIGH] << 8 & _ALL) | 255
    return bit
