"""A binary arithmetic coder: encodes bits as bytes, and decodes them again."""

import numpy as np

from norewind.engines.kernels import kernel
from norewind.learners.counting.logistic import ONE

# The remaining interval; when decoding, the position of the code in it; the number of bytes written or read; the mode.
LOW, HIGH, VALUE, PLACE, MODE, NUMBERS = range(6)
SILENT, ENCODE, DECODE = range(3)
_ALL, _TOP, _UNIT = 0xFFFFFFFF, 0xFF000000, ONE.bit_length() - 1


def init_coder(mode: int) -> np.ndarray:
    """Create the state of a coder.

    Args:
        mode: `ENCODE`, `DECODE`, or `SILENT` to do nothing.
    """
    return np.array([0, _ALL, 0, 0, mode], np.int64)


@kernel
def code_bit(coder, data, one, bit):
    """Encode a bit, or decode the next one.

    Args:
        coder: the state of the coder, changed in place.
        data: the bytes to write or read.
        one: the probability of a one.
        bit: the bit to encode; unused when decoding.

    Returns:
        The bit.
    """
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
