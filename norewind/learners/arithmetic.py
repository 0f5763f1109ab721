"""Arithmetic on whole vectors that LLVM would not vectorise by itself, from IEEE-754 operations only.

Results are the same on every processor: nothing depends on the width of its vectors,
nor on its library of elementary functions.
"""

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from norewind.kernels import kernel

LANES = 8
"""Vectors for `dot` have a multiple of this length, with zeros at their end."""
LOG2_E = 1 / np.log(2)
LN2_LARGE = 0.6931471803691238
"""The logarithm of 2, but for its last 32 bits: products with whole numbers are exact."""
LN2_SMALL = 1.9082149292705877e-10
ROUNDING = 1.5 * 2**52
"""Added to a number, it leaves the nearest integer in its last bits."""
ROUNDING_BITS = int(np.float64(ROUNDING).view(np.int64))
ROOT_HALF_BITS = int(np.sqrt(0.5).view(np.int64))


def padded(length: int) -> int:
    """The next multiple of `LANES`."""
    return -(-length // LANES) * LANES


@intrinsic
def dot(typingctx, a, b, length):
    """Σ a[i] b[i] over the first `length` numbers of two contiguous vectors, a multiple of `LANES`.

    Written for LLVM by hand, as eight sums side by side that are added in a fixed order:
    a loop would be compiled to one sum, term by term, which is five times slower.
    """
    if not a.layout == b.layout == "C":
        raise TypingError("dot: both vectors must be contiguous.")
    vector, number = ir.VectorType(ir.DoubleType(), LANES), types.intp

    def generate(context, builder, signature, arguments):
        data = [context.make_array(kind)(context, builder, array).data for kind, array in zip((a, b), arguments)]
        sums = cgutils.alloca_once_value(builder, ir.Constant(vector, None))
        start, step = (context.get_constant(number, value) for value in (0, LANES))
        with cgutils.for_range_slice(builder, start, arguments[2], step) as (i, _):
            places = [builder.bitcast(builder.gep(pointer, [i]), vector.as_pointer()) for pointer in data]
            x, y = (builder.load(place, align=8) for place in places)
            builder.store(builder.fadd(builder.load(sums), builder.fmul(x, y)), sums)
        whole = builder.load(sums)
        parts = [builder.extract_element(whole, ir.Constant(ir.IntType(32), lane)) for lane in range(LANES)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [builder.fadd(x, y) for x, y in zip(parts[:half], parts[half:], strict=True)]
        return parts[0]

    return types.float64(a, b, number), generate


@kernel
def exp_each(values, scratch):
    """Replace each number by its exponential, for numbers from -700 to 700. `scratch` is as long."""
    for i in range(len(values)):
        shifted = values[i] * LOG2_E + ROUNDING
        whole = shifted - ROUNDING
        rest = (values[i] - whole * LN2_LARGE) - whole * LN2_SMALL
        # Taylor's series: |rest| is at most half of log 2.
        power = 1 / 39916800.0
        power = power * rest + 1 / 3628800.0
        power = power * rest + 1 / 362880.0
        power = power * rest + 1 / 40320.0
        power = power * rest + 1 / 5040.0
        power = power * rest + 1 / 720.0
        power = power * rest + 1 / 120.0
        power = power * rest + 1 / 24.0
        power = power * rest + 1 / 6.0
        power = power * rest + 0.5
        power = power * rest + 1.0
        values[i] = power * rest + 1.0
        scratch[i] = shifted
    bits, exponents = values.view(np.int64), scratch.view(np.int64)
    for i in range(len(values)):
        bits[i] += exponents[i] << 52


@kernel
def log_each(values, scratch):
    """Replace each number by its logarithm, for normal numbers above 0. `scratch` is as long."""
    bits, exponents = values.view(np.int64), scratch.view(np.int64)
    for i in range(len(values)):
        # The power of two that leaves a factor from √½ to √2.
        exponent = (bits[i] - ROOT_HALF_BITS) >> 52
        bits[i] -= exponent << 52
        exponents[i] = exponent + ROUNDING_BITS
    for i in range(len(values)):
        exponent = scratch[i] - ROUNDING
        ratio = (values[i] - 1) / (values[i] + 1)
        square = ratio * ratio
        # log x = 2 artanh((x - 1)/(x + 1)), as a series.
        series = 1 / 19.0
        series = series * square + 1 / 17.0
        series = series * square + 1 / 15.0
        series = series * square + 1 / 13.0
        series = series * square + 1 / 11.0
        series = series * square + 1 / 9.0
        series = series * square + 1 / 7.0
        series = series * square + 1 / 5.0
        series = series * square + 1 / 3.0
        values[i] = exponent * LN2_LARGE + (2 * (ratio + ratio * square * series) + exponent * LN2_SMALL)
