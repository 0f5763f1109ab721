"""Counts, bit by bit: against the same arithmetic in plain Python, cut anywhere, in fixed memory, summing to one."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counts_oracle import Oracle

from norewind.checks import ModelError
from norewind.learners.counting import contexts, matching, slots, tree
from norewind.learners.counting.symbol import fresh, planned
from norewind.learners.counts import counts

BYTES = 12  # Megabytes, of which most are the map that corrects the mixture.
TEXT = (
    b"In the beginning God created the heaven and the earth.\nAnd the earth was without form, and void;\n"
    b"and darkness was upon the face of the deep.\nAnd the Spirit of God moved upon the face of the waters.\n"
    b"And God said, Let there be light: and there was light.\nAnd God saw the light, that it was good:\n"
    b"and God divided the light from the darkness.\nAnd God called the light Day, and the darkness he called Night.\n"
)


@pytest.fixture(autouse=True)
def single_precision():
    with jax.enable_x64(False):
        yield


def symbols_of(text=TEXT, symbols=256):
    """A text as symbols: bytes, or a smaller alphabet."""
    code = np.frombuffer(text, np.uint8).astype(np.int32)
    return code if symbols == 256 else np.unique(code, return_inverse=True)[1].astype(np.int32) % symbols


def member_distributions(length, members, symbols, seed=0):
    drawn = np.random.default_rng(seed).normal(size=(length, members, symbols)) * 2
    return np.asarray(jax.nn.log_softmax(jnp.asarray(drawn, jnp.float32)))


@cache
def learner_of(symbols, members, megabytes):
    """Tests share compiled programs where they can."""
    classes = np.arange(symbols) % 9 if symbols == 21 else None
    return counts(symbols, members=members, megabytes=megabytes, classes=classes)


@pytest.fixture
def bytes_learner():
    return learner_of(256, 0, BYTES)


@pytest.mark.parametrize(
    ("symbols", "members", "megabytes"), [(256, 0, BYTES), (21, 2, 0.45), (2, 1, 0.1), (300, 0, 16)]
)
def test_every_loss_is_that_of_plain_python(symbols, members, megabytes):
    stream = symbols_of(symbols=symbols)[:301]
    stream = stream * 7 % symbols if symbols > 256 else stream
    logs = member_distributions(len(stream) - 1, members, symbols)
    learner = learner_of(symbols, members, megabytes)
    _, losses = learner.scan(learner.init(), stream[:-1], stream[1:], members=logs)
    classes = {256: contexts.byte_classes(), 21: np.arange(21) % 9}.get(symbols)
    oracle = Oracle(planned(symbols, members, megabytes, classes))
    expected = [
        oracle.learn(int(x), int(target), np.exp(np.float64(member)).tolist())
        for x, target, member in zip(stream[:-1], stream[1:], logs, strict=True)
    ]
    np.testing.assert_allclose(losses, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("symbols", "members", "megabytes"), [pytest.param(256, 1, BYTES, marks=pytest.mark.slow), (3, 0, 0.1)]
)
def test_the_distribution_sums_to_one_and_gives_every_loss(symbols, members, megabytes):
    stream = symbols_of(symbols=symbols)[:121]
    xs, targets = stream[:-1], stream[1:]
    logs = member_distributions(len(xs), members, symbols)
    learner = counts(symbols, members=members, megabytes=megabytes)
    _, (losses, whole) = learner.scan(learner.init(), xs, targets, members=logs, outputs=True)
    assert whole.shape == (len(xs), symbols)
    np.testing.assert_allclose(np.exp(whole).sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(-whole[np.arange(len(xs)), targets], losses, atol=1e-4)
    _, again = learner.scan(learner.init(), xs, targets, members=logs)
    np.testing.assert_allclose(losses, again, atol=1e-5)

    before, _ = learner.scan(learner.init(), xs, targets, members=logs, count=80)
    later, later_logs = np.roll(xs, -80), np.roll(logs, -80, 0)
    moved, seen = learner.forward(before, later, 1, members=later_logs)
    np.testing.assert_allclose(seen[0], whole[80], atol=1e-4)
    assert not seen[1:].any()
    _, two = learner.forward(before, later, 2, members=later_logs)
    _, second = learner.forward(moved, np.roll(later, -1), 1, members=np.roll(later_logs, -1, 0))
    np.testing.assert_array_equal(two[1], second[0])
    assert moved.table is before.table
    assert moved.memory is before.memory


def test_how_a_stream_is_cut_changes_no_bit(bytes_learner):
    stream = symbols_of()[:301]
    xs, targets = stream[:-1], stream[1:]
    whole_run, whole = bytes_learner.scan(bytes_learner.init(), xs, targets)
    run, pieces = bytes_learner.init(), []
    for start, count in [(0, 0), (0, 1), (1, 130), (131, 169)]:
        run, losses = bytes_learner.scan(run, np.roll(xs, -start), np.roll(targets, -start), count=count)
        assert not losses[count:].any()
        pieces.append(losses[:count])
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    jax.tree.map(np.testing.assert_array_equal, run, whole_run)


def test_chunks_of_one_length_are_compiled_once(bytes_learner):
    stream, compilations = symbols_of()[:300], []
    run, _ = bytes_learner.scan(bytes_learner.init(), stream, stream, count=4)

    def heard(event: str, duration_secs: float, **kwargs: str | int):
        if event.endswith("backend_compile_duration"):
            compilations.append(event)

    jax.monitoring.register_event_duration_secs_listener(heard)
    for count in (300, 0, 3):
        run, _ = bytes_learner.scan(run, stream, stream, count=count)
    jax.monitoring.unregister_event_duration_listener(heard)
    assert compilations == []


def test_nothing_comes_from_the_future(bytes_learner):
    stream = symbols_of()[:301]
    other = stream.copy()
    other[200:] = stream[200:][::-1]
    _, losses = bytes_learner.scan(bytes_learner.init(), stream[:-1], stream[1:])
    _, others = bytes_learner.scan(bytes_learner.init(), other[:-1], other[1:])
    np.testing.assert_array_equal(losses[:199], others[:199])
    assert (losses[199:] != others[199:]).any()


def test_memory_is_fixed_and_the_run_that_goes_in_is_used_up(bytes_learner):
    stream = symbols_of()[:301]
    before = bytes_learner.init()
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), before)
    after, _ = bytes_learner.scan(before, stream[:-1], stream[1:])
    assert shapes == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), after)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(after)) <= BYTES * 1e6
    assert before.table.is_deleted()


@pytest.mark.parametrize("symbols", [2, 3, 100, 256, 1000, 70_000])
@pytest.mark.parametrize("megabytes", [64, 256])
def test_a_run_is_as_large_as_was_asked_for(symbols, megabytes):
    plan = planned(symbols, 3, megabytes, None)
    run = jax.eval_shape(lambda: fresh(plan))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(run)) / 1e6
    assert size <= megabytes
    assert size > megabytes / 3 or symbols <= 3, "short contexts of few symbols need no more"


def test_a_long_repeat_is_found_in_the_ring_and_forgotten_with_it():
    rng = np.random.default_rng(0)
    phrase, noise = rng.integers(0, 16, 60), rng.integers(0, 16, 200)
    # Tables this small forget everything but the match at once.
    learner = counts(16, megabytes=0.15)
    history = len(learner.init().matches.ring)
    near = np.concatenate([noise, phrase, noise[:100], phrase])
    far = np.concatenate([noise, phrase, rng.integers(0, 16, history), phrase])
    length = len(far)
    for stream, remembered in [(near, True), (far, False)]:
        xs, targets = (np.resize(part, length) for part in (stream[:-1], stream[1:]))
        _, losses = learner.scan(learner.init(), xs, targets, count=len(stream) - 1)
        assert (losses[: len(stream) - 1][-40:].mean() < 1.0) == remembered


def test_the_newest_symbols_do_not_match_themselves_around_the_ring():
    plan = planned(256, 0, BYTES, None)._replace(history=64)
    matches, follow = matching.no_matches(plan), jax.jit(matching.followed)
    for i, symbol in enumerate(np.random.default_rng(0).integers(0, 256, 85)):
        # The place where the last symbol looks was written exactly one round earlier.
        matches = follow(matches, jnp.int32(symbol), jnp.uint32(0 if i in (20, 84) else 1 + i % 15))
    assert int(matches.position - matches.pointer) == len(matches.ring)
    assert int(matches.length) == 0


def test_of_two_rows_the_one_used_less_makes_room():
    table = np.zeros((4, slots.WIDTH), np.uint32)
    table[2, :2], table[3, :2] = (7, 5 << 6), (8, 2 << 6)
    places = jnp.array([2, 2, 2, 0])
    where, rows = slots.rows_of(jnp.asarray(table), places, jnp.array([7, 8, 9, 9], jnp.uint32))
    assert where.tolist() == [2, 3, 3, 0]
    assert rows[:, :2].tolist() == [[7, 5 << 6], [8, 2 << 6], [9, 0], [9, 0]]


def test_a_member_that_is_right_is_heard_and_one_that_is_no_number_is_not():
    stream = np.random.default_rng(1).integers(0, 21, 301)
    learner = learner_of(21, 2, 0.45)
    good = np.log(np.where(np.arange(21) == stream[1:, None], 0.9, 0.005))
    logs = np.stack([good, np.full_like(good, np.nan)], 1)
    run, losses = learner.scan(learner.init(), stream[:-1], stream[1:], members=logs)
    assert losses[-100:].mean() < 0.4
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run))


def test_groups_and_paths():
    assert [list(group) for group in tree.groups_of(7)] == [[0, 1, 2, 3], [4, 5, 6]]
    assert [list(group) for group in tree.groups_of(10)] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    probabilities = np.array([0.1, 0.2, 0.3, 0.25, 0.15])
    logits = tree.path_logits(jnp.log(probabilities)[None], jnp.array([3]), 3)[0]
    np.testing.assert_allclose(jax.nn.sigmoid(logits), [0.15, 0.55 / 0.85, 0.25 / 0.55], rtol=1e-5)


def test_what_characters_are():
    classes = contexts.classes_of("aAé\nÉ 1")
    assert classes[0] == classes[1] >= contexts.FIRST_LETTER
    assert classes[2] == classes[4] > classes[0]
    assert classes[[3, 5, 6]].tolist() == [contexts.NEWLINE, contexts.OTHER, contexts.OTHER]


def test_what_does_not_fit_is_refused(bytes_learner):
    run = bytes_learner.init()
    with pytest.raises(ModelError, match="whole numbers from 0 to 255"):
        bytes_learner.scan(run, np.array([1, 256]), np.array([1, 2]))
    with pytest.raises(ModelError, match=r"counts\(members="):
        bytes_learner.scan(run, np.array([1]), np.array([1]), members=np.zeros((1, 1, 256)))
    with pytest.raises(ValueError, match="holds 1 samples"):
        bytes_learner.forward(run, np.array([1]), 2)
    with pytest.raises(ModelError, match="Raise megabytes"):
        counts(megabytes=1)
    with pytest.raises(ModelError, match="there are 3 symbols"):
        counts(3, classes=[0, 1])
    with pytest.raises(ModelError, match="at least 2"):
        counts(1)
