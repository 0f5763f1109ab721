"""The texts have the entropies of their formulas, are endless and reproducible, and can start anywhere."""

from itertools import islice, product

import numpy as np
import pytest

from norewind.tasks import anbn, distant_brackets


def chain_entropies(chain):
    """Entropy rate and unigram entropy of a language given as state -> [(probability, symbol, next state)].

    Every state must be known from the past text; then the rate is the mean entropy of the next symbol.
    """
    number = {state: i for i, state in enumerate(chain)}
    step = np.zeros((len(chain), len(chain)))
    uncertainty, symbols = np.zeros(len(chain)), {}
    for state, moves in chain.items():
        for probability, symbol, after in moves:
            step[number[state], number[after]] += probability
            uncertainty[number[state]] -= probability * np.log2(probability)
            symbols.setdefault(symbol, np.zeros(len(chain)))[number[state]] += probability
    # The stationary distribution; the last equation is that it sums to one.
    equations = np.vstack([step.T - np.eye(len(chain)), np.ones(len(chain))])
    stationary = np.linalg.lstsq(equations, np.append(np.zeros(len(chain)), 1), rcond=None)[0]
    frequencies = np.array([stationary @ p for p in symbols.values()])
    return stationary @ uncertainty, -frequencies @ np.log2(frequencies)


def count_chain(k, l, counting):  # noqa: E741
    """aⁿbⁿ as a chain; without counting, the number of b's is drawn again."""

    def more(phase, seen, letter, done):
        stop = 1 / (l - seen + 1) if seen >= k else 0.0
        moves = [(stop, "\n", done), (1 - stop, letter, (phase, seen + 1))]
        return [move for move in moves if move[0] > 0]

    chain = {}
    for seen in range(1, l + 1):
        chain["a", seen] = more("a", seen, "a", ("b left", seen) if counting else ("b", 0))
    if counting:
        for left in range(1, l + 1):
            chain["b left", left] = [(1.0, "b", ("b left", left - 1))]
        chain["b left", 0] = [(1.0, "\n", ("a", 0))]
    else:
        for seen in range(1, l + 1):
            chain["b", seen] = more("b", seen, "b", ("a", 0))
        chain["b", 0] = [(1.0, "b", ("b", 1))]
    chain["a", 0] = [(1.0, "a", ("a", 1))]
    return reachable(chain, ("a", 0))


def brackets_chain(s, k, a, remembering):
    """Distant brackets as a chain over the place in the line and the letters to remember."""
    plan = ["[", *["first"] * s, "]", *["free"] * k, "[", *["again"] * s, "]", "\n"]
    chain = {}

    def build(state):
        if state in chain:
            return
        place, remembered = state
        kind, after = plan[place], (place + 1) % len(plan)
        letters = range(a)
        if kind == "first":
            moves = [(1 / a, x, (after, (*remembered, x) if remembering else ())) for x in letters]
        elif kind == "again" and remembering:
            moves = [(1.0, remembered[0], (after, remembered[1:]))]
        elif kind in ("free", "again"):
            moves = [(1 / a, x, (after, remembered)) for x in letters]
        else:
            moves = [(1.0, kind, (after, remembered))]
        chain[state] = moves
        for _, _, following in moves:
            build(following)

    build((0, ()))
    return chain


def reachable(chain, start):
    seen, todo = {}, [start]
    while todo:
        state = todo.pop()
        if state not in seen:
            seen[state] = chain[state]
            todo += [after for _, _, after in chain[state]]
    return seen


@pytest.mark.parametrize(("k", "l"), [(1, 32), (1, 2), (3, 9), (4, 4)])
def test_the_entropies_of_anbn_are_those_of_its_chain(k, l):  # noqa: E741
    task = anbn(k, l)
    rate, unigram = chain_entropies(count_chain(k, l, counting=True))
    memoryless, _ = chain_entropies(count_chain(k, l, counting=False))
    assert (task.floor, task.memoryless, task.unigram) == pytest.approx((rate, memoryless, unigram), abs=1e-12)


@pytest.mark.parametrize(("s", "k", "a"), [(1, 5, 10), (2, 0, 3), (2, 3, 4), (1, 1, 1)])
def test_the_entropies_of_the_brackets_are_those_of_their_chain(s, k, a):
    task = distant_brackets(s, k, a)
    rate, unigram = chain_entropies(brackets_chain(s, k, a, remembering=True))
    memoryless, _ = chain_entropies(brackets_chain(s, k, a, remembering=False))
    assert (task.floor, task.memoryless, task.unigram) == pytest.approx((rate, memoryless, unigram), abs=1e-12)


def test_the_entropies_of_the_paper():
    assert anbn(1, 32).floor == pytest.approx(0.143, abs=5e-4)
    assert anbn(1, 32).memoryless == pytest.approx(0.286, abs=5e-4)
    assert distant_brackets(1, 5, 10).floor == pytest.approx(1.661, abs=5e-4)
    assert distant_brackets(1, 5, 10).memoryless == pytest.approx(1.938, abs=5e-4)


@pytest.mark.parametrize(("s", "k", "a"), [(1, 5, 10), (3, 2, 4), (2, 0, 30)])
def test_lines_of_brackets_look_like_the_papers(s, k, a):
    task = distant_brackets(s, k, a)
    lines = task.decode(next(task.chunks(0, (2 * s + k + 5) * 200))).splitlines()
    assert len(lines) == 200
    for line in lines:
        first, between, again = line[1 : 1 + s], line[s + 2 : s + 2 + k], line[s + k + 3 : -1]
        assert line == f"[{first}]{between}[{again}]"
        assert first == again
        assert set(first + between) <= set(task.alphabet[:a])


@pytest.mark.parametrize("task", [anbn(1, 32), distant_brackets(2, 5, 10)])
def test_unpredictable_characters_are_uniform_and_independent(task):
    """Pearson's statistic over neighbouring draws; its mean is the degrees of freedom, its variance twice that."""
    text = task.decode(next(task.chunks(7, 400_000)))
    lines = text.splitlines()[:-1]
    if "[" in text:
        draws = [ord(letter) - ord("a") for line in lines for letter in line[1:3] + line[4:9]]
        options = 10
    else:
        draws = [len(line) - 1 for line in lines[::2]]
        options = 32
    pairs = np.zeros((options, options))
    np.add.at(pairs, (draws[:-1:2], draws[1::2]), 1)
    expected = pairs.sum() / options**2
    freedom = options**2 - 1
    assert abs(((pairs - expected) ** 2 / expected).sum() - freedom) < 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("task", [anbn(1, 32), anbn(3, 3), distant_brackets(1, 5, 10)], ids=lambda task: task.name)
@pytest.mark.parametrize("start", [0, 1, 999, 30_011])
def test_a_text_can_start_at_any_character(task, start):
    whole = next(task.chunks(3, 40_000))
    pieces = np.concatenate(list(islice(task.chunks(3, 77, start=start), 20)))
    np.testing.assert_array_equal(pieces, whole[start : start + 77 * 20])
    x, target = next(task.pairs(3, 50, start=start))
    np.testing.assert_array_equal(x, whole[start : start + 50])
    np.testing.assert_array_equal(target, whole[start + 1 : start + 51])


def test_seeds_give_different_texts():
    task = distant_brackets()
    texts = [tuple(next(task.chunks(seed, 120))) for seed in range(5)]
    assert len(set(texts)) == 5
    assert texts[2] == tuple(next(task.chunks(2, 120)))


def test_bad_parameters_are_rejected():
    for s, k, a in [(0, 5, 10), (1, -1, 10), (1, 5, 0), (1, 5, 53)]:
        with pytest.raises(ValueError, match="distant_brackets needs"):
            distant_brackets(s, k, a)
    for size, start in product((0, 10), (-1,)):
        with pytest.raises(ValueError, match="size >= 1 and start >= 0"):
            next(anbn().chunks(0, size, start))
