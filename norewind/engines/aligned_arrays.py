"""Arrays aligned to the lines of the processor's cache."""

from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

# The bytes in a line of the processor's cache. XLA uses arrays at multiples of it without a copy.
ALIGNMENT = 64


def aligned_array(allocate: Callable, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Allocate an array whose address is a multiple of `ALIGNMENT`.

    Args:
        allocate: `np.zeros` or `np.empty`.
        shape: the shape of the array.
        dtype: its dtype.
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = allocate(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """Return an array at a multiple of `ALIGNMENT`: the same one if it is there already, or a copy."""
    if array.ctypes.data % ALIGNMENT == 0:
        return array
    copy = aligned_array(np.empty, array.shape, array.dtype)
    copy[...] = array
    return copy
