"""The aⁿbⁿ texts are endless and reproducible, and their floor is their entropy rate."""

from itertools import islice

import numpy as np
import pytest

from norewind.tasks import anbn


def text(task, seed, characters, size=1000):
    return np.concatenate(list(islice(task.chunks(seed, size), characters // size)))


def test_every_line_has_as_many_b_as_a():
    task = anbn(1, 32)
    lines = task.decode(text(task, 0, 20_000)).split("\n")[:-2]
    for a_line, b_line in zip(lines[::2], lines[1::2], strict=False):
        assert set(a_line) == {"a"}
        assert b_line == "b" * len(a_line)
    lengths = [len(line) for line in lines[::2]]
    assert set(lengths) == set(range(1, 33))


def test_the_text_does_not_depend_on_how_it_is_cut():
    task = anbn(2, 7)
    np.testing.assert_array_equal(text(task, 3, 6000, 1000), text(task, 3, 6000, 150))
    assert not np.array_equal(text(task, 3, 6000), text(task, 4, 6000))


def test_pairs_are_inputs_and_what_follows():
    task = anbn()
    whole = text(task, 5, 1000, 10)
    pairs = list(islice(task.pairs(5, 10), 50))
    assert all(x.shape == target.shape == (10,) for x, target in pairs)
    np.testing.assert_array_equal(np.concatenate([x for x, _ in pairs]), whole[:500])
    np.testing.assert_array_equal(np.concatenate([target for _, target in pairs]), whole[1:501])


@pytest.mark.parametrize(("k", "l"), [(1, 32), (1, 4), (3, 3), (5, 9)])
def test_the_floor_is_the_entropy_rate(k, l):  # noqa: E741
    """Compute the mean surprise of the ideal predictor, character by character."""
    task = anbn(k, l)
    if k == l:
        assert task.floor == 0
    bits = characters = 0
    for n in range(k, l + 1):
        for seen in range(1, n + 1):  # another a, or the line break?
            stop = 1 / (l - seen + 1) if seen >= k else 0.0
            bits -= np.log2(stop if seen == n else 1 - stop)
        characters += 2 * n + 2
    assert task.floor == pytest.approx(bits / characters)


def test_bad_sizes_are_rejected():
    with pytest.raises(ValueError, match="1 <= k <= l"):
        anbn(4, 2)
