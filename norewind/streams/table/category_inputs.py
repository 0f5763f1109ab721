"""The inputs of a category: a fixed number of them for any number of categories."""

import math

from norewind.engines.kernels import kernel


@kernel
def write_category(value, size, x, place):
    """Write the inputs of a category: 1 at its number, or for large numbers ±√½ at two places that depend on it.

    So any number of categories can be told apart, the first ones best.

    Args:
        value: the number of the category; NaN if it is missing.
        size: the number of inputs.
        x: the inputs to write.
        place: the first of the inputs of this category.
    """
    for k in range(size):
        x[place + k] = 1.0 if value == k else 0.0
    if value >= size:
        code = int(value) - size
        first, second = code % size, code // size % (size - 1)
        code //= size * (size - 1)
        x[place + first] = math.sqrt(0.5) * (1 - 2 * (code % 2))
        x[place + second + (second >= first)] = math.sqrt(0.5) * (1 - 2 * (code // 2 % 2))
