"""Arithmetic on vectors side by side, compared bit for bit with the same arithmetic on one vector at a time."""

import numpy as np
import pytest

from norewind.core.trees import align_arrays
from norewind.engines.aligned_arrays import ALIGNMENT
from norewind.engines.kernels import kernel
from norewind.engines.vector_math import (
    SIDE_BY_SIDE,
    VECTOR_WIDTH,
    add_each_other,
    add_each_other_in_turn,
    dot,
    dots,
)


@kernel
def _one_by_one(columns, x, length, to_x, to_columns, sums):
    for k in range(len(sums)):
        sums[k] = dot(columns, k * length, x, 0, length)
    for k in range(len(sums)):
        add_each_other(columns, k * length, x, 0, length, to_columns[k], to_x[k])


@kernel
def _side_by_side(columns, x, length, to_x, to_columns, sums):
    dots(sums, columns, 0, x, 0, length)
    add_each_other_in_turn(columns, 0, x, 0, length, to_columns, to_x)


@pytest.mark.parametrize("blocks", [1, 5])
def test_vectors_side_by_side_give_the_same_bits_as_one_by_one(blocks):
    draw, length = np.random.default_rng(0), blocks * VECTOR_WIDTH
    columns, x = draw.normal(size=SIDE_BY_SIDE * length), draw.normal(size=length)
    factors = draw.normal(size=(2, SIDE_BY_SIDE))
    found = []
    for compute in (_one_by_one, _side_by_side):
        arrays = columns.copy(), x.copy(), np.zeros(SIDE_BY_SIDE)
        compute(*arrays[:2], length, *factors, arrays[2])
        found.append([part.tobytes() for part in arrays])
    assert found[0] == found[1]


def test_arrays_of_a_restored_run_are_aligned():
    memory = np.arange(1001, dtype=np.float64)
    tree = {"whole": memory, "shifted": memory[1:], "number": np.array(3.0), "none": np.zeros((0, 2))}
    aligned = align_arrays(tree)
    assert all(leaf.ctypes.data % ALIGNMENT == 0 for name, leaf in aligned.items() if name != "none")
    assert all(np.array_equal(aligned[name], leaf) for name, leaf in tree.items())
    assert align_arrays(aligned)["shifted"] is aligned["shifted"]
