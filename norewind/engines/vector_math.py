"""Arithmetic on whole vectors that LLVM would not vectorise by itself, using IEEE-754 operations only.

Results are the same on every processor: they depend neither on the width of its vectors
nor on its library of elementary functions.
"""

from collections.abc import Callable, Iterator
from math import factorial
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from norewind.engines.kernels import kernel

# Vectors for `dot` are padded with zeros to a multiple of this length.
VECTOR_WIDTH = 8
# The number of vectors that `dots` and `add_each_other_in_turn` take together; a divisor of `VECTOR_WIDTH`.
SIDE_BY_SIDE = 4
LOG2_E = 1 / np.log(2)
# The logarithm of 2 without its last 32 bits, so that products with integers are exact; and the rest.
LN2_LARGE = 0.6931471803691238
LN2_SMALL = 1.9082149292705877e-10
# Adding it to a number leaves the nearest integer in the last bits.
ROUNDING = 1.5 * 2**52
ROUNDING_BITS = int(np.float64(ROUNDING).view(np.int64))
ROOT_HALF_BITS = int(np.sqrt(0.5).view(np.int64))
EXP_SERIES = tuple(1 / factorial(power) for power in range(11, -1, -1))
ARTANH_SERIES = tuple(1 / power for power in range(19, 1, -2))


def _for_llvm(function: Callable) -> Any:
    """Let kernels call a function that, given the types of its arguments, generates LLVM code."""
    return intrinsic(function)


def padded(length: int) -> int:
    """Return the next multiple of `VECTOR_WIDTH`."""
    return -(-length // VECTOR_WIDTH) * VECTOR_WIDTH


@_for_llvm
def dot(typingctx, a, i, b, j, length):
    """Compute Σ a[i + k] b[j + k] for k < length.

    LLVM code is generated directly, as eight parallel sums that are added in a fixed order:
    a loop would be compiled to one sum, term by term, which is five times slower.

    Args:
        typingctx: Numba's typing context, which callers do not pass.
        a: a contiguous array of float64.
        i: the index of its first number.
        b: another such array.
        j: the index of its first number.
        length: the number of terms, a multiple of `VECTOR_WIDTH`.
    """

    def generate(context, builder, signature, arguments):
        sums = cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, None))
        for x, y in _blocks(context, builder, signature.args, arguments):
            product = builder.fmul(builder.load(x, align=8), builder.load(y, align=8))
            builder.store(builder.fadd(builder.load(sums), product), sums)
        return _sum_of(builder, sums)

    return types.float64(_contiguous(a), types.intp, _contiguous(b), types.intp, types.intp), generate


@_for_llvm
def add_scaled(typingctx, a, i, b, j, length, factor):
    """Add factor × b[j + k] to a[i + k], for k < length.

    Args:
        typingctx: Numba's typing context, which callers do not pass.
        a: a contiguous array of float64, changed in place.
        i: the index of its first number.
        b: another such array.
        j: the index of its first number.
        length: the number of terms, a multiple of `VECTOR_WIDTH`.
        factor: the factor.
    """
    index = types.intp
    return types.void(_contiguous(a), index, _contiguous(b), index, index, types.float64), _additions


@_for_llvm
def add_each_other(typingctx, a, i, b, j, length, to_a, to_b):
    """Add to_a × b[j + k] to a[i + k], and to_b × the old a[i + k] to b[j + k], for k < length.

    Args:
        typingctx: Numba's typing context, which callers do not pass.
        a: a contiguous array of float64, changed in place.
        i: the index of its first number.
        b: another such array, also changed in place; the two must not overlap.
        j: the index of its first number.
        length: the number of terms, a multiple of `VECTOR_WIDTH`.
        to_a: the factor of the numbers that are added to `a`.
        to_b: the factor of the numbers that are added to `b`.
    """
    index, number = types.intp, types.float64
    return types.void(_contiguous(a), index, _contiguous(b), index, index, number, number), _additions


@_for_llvm
def dots(typingctx, sums, a, i, b, j, length):
    """Compute `dot` for `SIDE_BY_SIDE` vectors that follow each other in `a`, each with the same numbers of `b`.

    The results are those of `dot`, bit for bit. It is faster because the sums do not wait for each other.

    Args:
        typingctx: Numba's typing context, which callers do not pass.
        sums: where to write the results.
        a: a contiguous array of float64.
        i: the index of the first number of the first vector.
        b: another such array.
        j: the index of its first number.
        length: the length of a vector, a multiple of `VECTOR_WIDTH`.
    """

    def generate(context, builder, signature, arguments):
        totals = [cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, None)) for _ in range(SIDE_BY_SIDE)]
        kinds, places = signature.args[1:], arguments[1:]
        for *xs, y in _blocks(context, builder, kinds, places, SIDE_BY_SIDE):
            other = builder.load(y, align=8)
            for x, total in zip(xs, totals, strict=True):
                product = builder.fmul(builder.load(x, align=8), other)
                builder.store(builder.fadd(builder.load(total), product), total)
        out = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        for place, total in enumerate(totals):
            builder.store(_sum_of(builder, total), builder.gep(out, [context.get_constant(types.intp, place)]))
        return context.get_dummy_value()

    index = types.intp
    return types.void(_contiguous(sums), _contiguous(a), index, _contiguous(b), index, index), generate


@_for_llvm
def add_each_other_in_turn(typingctx, a, i, b, j, length, to_a, to_b):
    """Do `add_each_other` for `SIDE_BY_SIDE` vectors that follow each other in `a`, each in turn with the same of `b`.

    The results are the same, bit for bit. It is faster because `b` is read and written once.

    Args:
        typingctx: Numba's typing context, which callers do not pass.
        a: a contiguous array of float64, changed in place.
        i: the index of the first number of the first vector.
        b: another such array, also changed in place; the two must not overlap.
        j: the index of its first number.
        length: the length of a vector, a multiple of `VECTOR_WIDTH`.
        to_a: for each vector, the factor of the numbers that are added to it.
        to_b: for each vector, the factor of its numbers when they are added to `b`.
    """

    def generate(context, builder, signature, arguments):
        factors = []
        for kind, argument in zip(signature.args[5:], arguments[5:], strict=True):
            data = context.make_array(kind)(context, builder, argument).data
            places = [context.get_constant(types.intp, place) for place in range(SIDE_BY_SIDE)]
            factors.append([_in_every_place(builder, builder.load(builder.gep(data, [place]))) for place in places])
        for *xs, y in _blocks(context, builder, signature.args, arguments, SIDE_BY_SIDE):
            other = builder.load(y, align=8)
            for x, to_x, to_y in zip(xs, *factors, strict=True):
                own = builder.load(x, align=8)
                builder.store(builder.fadd(own, builder.fmul(other, to_x)), x, align=8)
                other = builder.fadd(other, builder.fmul(own, to_y))
            builder.store(other, y, align=8)
        return context.get_dummy_value()

    index, numbers = types.intp, _contiguous
    return types.void(numbers(a), index, numbers(b), index, index, numbers(to_a), numbers(to_b)), generate


_VECTOR = ir.VectorType(ir.DoubleType(), VECTOR_WIDTH)


def _additions(context, builder, signature, arguments):
    """Generate the loop of `add_scaled` (one factor) or `add_each_other` (two)."""
    factors = [_in_every_place(builder, number) for number in arguments[5:]]
    for pointers in _blocks(context, builder, signature.args, arguments):
        old = [builder.load(pointer, align=8) for pointer in pointers]
        for pointer, own, other, factor in zip(pointers, old, reversed(old), factors, strict=False):
            builder.store(builder.fadd(own, builder.fmul(other, factor)), pointer, align=8)
    return context.get_dummy_value()


def _sum_of(builder, sums):
    """Generate the sum of the numbers of a vector in memory, in a fixed order."""
    whole = builder.load(sums)
    parts = [builder.extract_element(whole, ir.Constant(ir.IntType(32), lane)) for lane in range(VECTOR_WIDTH)]
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [builder.fadd(x, y) for x, y in zip(parts[:half], parts[half:], strict=True)]
    return parts[0]


def _in_every_place(builder, number):
    """Generate a vector of equal numbers."""
    integer, undefined = ir.IntType(32), ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(integer, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(integer, VECTOR_WIDTH), None))


def _contiguous(array: Any) -> Any:
    if not isinstance(array, types.Array) or array.layout != "C" or array.dtype != types.float64:
        raise TypingError("dot: both arrays must be contiguous and of float64.")
    return array


def _blocks(context, builder, kinds, arguments, vectors: int = 1) -> Iterator[list]:
    """Generate a loop, and yield pointers to the next `VECTOR_WIDTH` numbers of both arrays.

    The first array may hold several vectors, one after the other, each with its own pointer.
    """
    length, starts = arguments[4], []
    for array, count in ((0, vectors), (2, 1)):
        data = context.make_array(kinds[array])(context, builder, arguments[array]).data
        first = arguments[array + 1]
        for vector in range(count):
            before = builder.mul(length, context.get_constant(types.intp, vector))
            starts.append(builder.gep(data, [builder.add(first, before)]))
    start, step = (context.get_constant(types.intp, value) for value in (0, VECTOR_WIDTH))
    with cgutils.for_range_slice(builder, start, length, step) as (k, _):
        yield [builder.bitcast(builder.gep(pointer, [k]), _VECTOR.as_pointer()) for pointer in starts]


@kernel
def exp_each(values, scratch):
    """Replace each number by its exponential.

    Args:
        values: numbers from -700 to 700, changed in place.
        scratch: an array of the same length, which is overwritten.
    """
    for i in range(len(values)):
        shifted = values[i] * LOG2_E + ROUNDING
        whole = shifted - ROUNDING
        rest = (values[i] - whole * LN2_LARGE) - whole * LN2_SMALL
        # Taylor's series: |rest| is at most half of log 2.
        power = 0.0
        for factor in EXP_SERIES:
            power = power * rest + factor
        values[i] = power
        scratch[i] = shifted
    bits, exponents = values.view(np.int64), scratch.view(np.int64)
    for i in range(len(values)):
        bits[i] += exponents[i] << 52


@kernel
def log_each(values, scratch):
    """Replace each number by its logarithm.

    Args:
        values: positive normal numbers, changed in place.
        scratch: an array of the same length, which is overwritten.
    """
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
        series = 0.0
        for factor in ARTANH_SERIES:
            series = series * square + factor
        values[i] = exponent * LN2_LARGE + (2 * (ratio + ratio * square * series) + exponent * LN2_SMALL)
