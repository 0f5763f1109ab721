"""The memory of `norewind train` does not grow with what it has seen; `make memory` does the same at full length."""

import pytest

from tools.memory import ALLOWED, KINDS, growth, looks


def test_growth_is_that_of_the_highest():
    assert growth([1, 100, 50, 101]) == pytest.approx(0.01)
    assert growth([100, 110, 100, 100]) < 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bytes"])
def test_memory_is_flat(kind):
    assert growth(looks(kind, 20_000_000, 0)) <= ALLOWED
