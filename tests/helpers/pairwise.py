"""Cases in which every two values of different factors occur together, by a greedy search."""

import random
from collections.abc import Callable, Sequence
from itertools import combinations, product
from typing import Any

Case = dict[str, Any]


def pairs_of(case: Case) -> set[tuple[str, Any, str, Any]]:
    """Return all pairs of values in a case."""
    return {(*one, *other) for one, other in combinations(sorted(case.items()), 2)}


def all_pairs(
    factors: dict[str, Sequence[Any]], seed: int, allows: Callable[[Case], bool] = lambda case: True, tries: int = 30
) -> list[Case]:
    """Return cases in which each pair of values occurs that occurs in any allowed case.

    Args:
        factors: the values of each factor.
        seed: the seed of the search; equal seeds give equal cases.
        allows: whether a case is possible.
        tries: the number of random cases from which each one is chosen.
    """
    draw = random.Random(seed)
    left = {
        (a, one, b, other)
        for a, b in combinations(sorted(factors), 2)
        for one, other in product(factors[a], factors[b])
    }
    cases = []
    while left:
        a, one, b, other = wanted = min(left, key=repr)
        found = [
            {**{name: draw.choice(values) for name, values in factors.items()}, a: one, b: other} for _ in range(tries)
        ]
        found = [case for case in found if allows(case)]
        if not found:
            left.discard(wanted)  # impossible, or too rare
            continue
        best = max(found, key=lambda case: len(pairs_of(case) & left))
        left -= pairs_of(best)
        cases.append(best)
    return cases
