"""Entropies in bits."""

from collections.abc import Iterable
from math import log2


def entropy(counts: Iterable[float]) -> float:
    """The entropy of a distribution given by its weights, in bits.

    >>> entropy([1, 1, 2])
    1.5
    """
    weights = [count for count in counts if count > 0]
    total = sum(weights)
    return sum(weight / total * log2(total / weight) for weight in weights)
