"""Counts, bit by bit: against the same arithmetic in plain Python, cut anywhere, in fixed memory, summing to one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counts_oracle import Oracle

from norewind.checks import ModelError
from norewind.learners import contexts, tree
from norewind.learners.counts import counts
from norewind.learners.plan import planned

SMALL = {"tables": 1 << 18, "history": 1 << 9}
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


@pytest.fixture(scope="module")
def bytes_learner():
    return counts(**SMALL)


@pytest.mark.parametrize(("symbols", "members", "text"), [(256, 0, True), (21, 2, True), (3, 1, False)])
def test_every_loss_is_that_of_plain_python(symbols, members, text):
    stream = symbols_of(symbols=symbols)[:300]
    classes = contexts.byte_classes() if symbols == 256 else np.arange(symbols) % 9
    logs = member_distributions(len(stream) - 1, members, symbols)
    learner = counts(symbols, members=members, text=text, **SMALL)
    _, losses = learner.scan(learner.init(classes=classes), stream[:-1], stream[1:], logs)
    oracle = Oracle(planned(symbols, members, SMALL["tables"], text), classes.tolist(), SMALL["history"])
    expected = [
        oracle.learn(int(x), int(target), np.exp(np.float64(member)).tolist())
        for x, target, member in zip(stream[:-1], stream[1:], logs, strict=True)
    ]
    np.testing.assert_allclose(losses, expected, atol=ORACLE_TOLERANCE, rtol=ORACLE_TOLERANCE)


ORACLE_TOLERANCE = 2e-4


@pytest.mark.parametrize(("symbols", "members"), [(256, 1), (21, 0), (2, 0)])
def test_the_distribution_sums_to_one_and_gives_every_loss(symbols, members):
    stream = symbols_of(symbols=symbols)[:120]
    logs = member_distributions(len(stream) - 1, members, symbols)
    learner = counts(symbols, members=members, **SMALL)
    run, (losses, whole) = learner.scan(learner.init(), stream[:-1], stream[1:], logs, outputs=True)
    assert whole.shape == (len(stream) - 1, symbols)
    np.testing.assert_allclose(np.exp(whole).sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(-whole[np.arange(len(losses)), stream[1:]], losses, atol=1e-4)

    again, _ = learner.scan(learner.init(), stream[:-1], stream[1:], logs, count=80)
    np.testing.assert_allclose(learner.distribution(again, stream[80], logs[80]), whole[80], atol=1e-4)
    jax.tree.map(np.testing.assert_array_equal, learner.scan(again, stream[80:-1], stream[81:], logs[80:])[0], run)


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
    assert after.table.nbytes <= SMALL["tables"]
    assert before.table.is_deleted()


def test_a_long_repeat_is_found_beyond_the_ring_and_forgotten_with_it():
    rng = np.random.default_rng(0)
    phrase, noise = rng.integers(0, 256, 60), rng.integers(0, 256, 200)
    near = np.concatenate([noise, phrase, noise[:100], phrase])
    far = np.concatenate([noise, phrase, rng.integers(0, 256, 600), phrase])
    # Tables this small forget everything but the match at once.
    learner = counts(tables=1 << 11, history=1 << 9)
    for stream, remembered in [(near, True), (far, False)]:
        _, losses = learner.scan(learner.init(), stream[:-1], stream[1:])
        assert (losses[-40:].mean() < 1.5) == remembered


def test_groups_and_paths():
    assert [list(group) for group in tree.groups_of(7)] == [[0, 1, 2, 3], [4, 5, 6]]
    assert [list(group) for group in tree.groups_of(10)] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    probabilities = np.array([0.1, 0.2, 0.3, 0.25, 0.15])
    logits = tree.path_logits(jnp.log(probabilities)[None], jnp.array([3]), 3)[0]
    np.testing.assert_allclose(jax.nn.sigmoid(logits), [0.15, 0.55 / 0.85, 0.25 / 0.55], rtol=1e-5)


def test_what_does_not_fit_is_refused(bytes_learner):
    run = bytes_learner.init()
    with pytest.raises(ModelError, match="whole numbers from 0 to 255"):
        bytes_learner.scan(run, np.array([1, 256]), np.array([1, 2]))
    with pytest.raises(ModelError, match=r"counts\(members="):
        bytes_learner.scan(run, np.array([1]), np.array([1]), np.zeros((1, 1, 256)))
    with pytest.raises(ModelError, match="power of two"):
        counts(history=1000)
    with pytest.raises(ValueError, match="need at least"):
        counts(tables=100)
    with pytest.raises(ModelError, match="at least 2"):
        counts(1)
