"""`Counts` equals the same arithmetic in plain Python; its probabilities add up to one, and its memory is fixed."""

import zlib
from functools import cache

import numpy as np
import pytest
from counts_oracle import Oracle

from norewind.core.checks import ModelError
from norewind.core.trees import copy_arrays
from norewind.learners.counting import bits, contexts, logistic
from norewind.learners.counting.counts import Counts
from norewind.learners.counting.plan import make_plan
from norewind.learners.counting.table import WIDTH, find_rows, seek_pairs
from norewind.testing import check_learner

# Checksums of the tables that compressed files depend on.
CHECKSUMS = {"stretched": 413670705, "squashed": 2720574776, "map": 630566270}
BYTES = 24  # megabytes, of which most are the weights and the map
TEXT = (
    b"In the beginning God created the heaven and the earth.\nAnd the earth was without form, and void;\n"
    b"and darkness was upon the face of the deep.\nAnd the Spirit of God moved upon the face of the waters.\n"
    b"And God output, Let there be light: and there was light.\nAnd God saw the light, that it was good:\n"
    b"and God divided the light from the darkness.\nAnd God called the light Day, and the darkness he called Night.\n"
)


def symbols_of(text=TEXT, symbols=256):
    """Return a text as symbols: bytes, or a smaller alphabet."""
    code = np.frombuffer(text, np.uint8).astype(np.int32)
    return code if symbols == 256 else np.unique(code, return_inverse=True)[1].astype(np.int32) % symbols


def member_distributions(length, members, symbols, seed=0):
    drawn = np.random.default_rng(seed).normal(size=(length, members, symbols)) * 2
    return (drawn - np.log(np.exp(drawn).sum(-1, keepdims=True))).astype(np.float32)


@cache
def learner_of(symbols, members=0, megabytes=BYTES):
    classes = np.arange(symbols) % 9 if symbols == 21 else None
    return Counts(symbols, experts=members, megabytes=megabytes, classes=classes)


@pytest.fixture
def bytes_learner():
    return learner_of(256)


@pytest.mark.parametrize(
    ("symbols", "members", "megabytes"), [(256, 0, BYTES), (21, 2, 4), (17, 0, 4), (2, 1, 0.1), (300, 0, BYTES)]
)
def test_every_loss_is_that_of_plain_python(symbols, members, megabytes):
    stream = symbols_of(symbols=symbols)[:301]
    stream = stream * 7 % symbols if symbols > 256 else stream
    logs = member_distributions(len(stream) - 1, members, symbols)
    check_losses(learner_of(symbols, members, megabytes), stream, logs)


def check_losses(learner, stream, logs):
    run, losses, _ = learner.scan(learner.init(), stream[:-1], stream[1:], expert_log_probabilities=logs)
    oracle = Oracle(learner.plan, logs.shape[1], run.places.shape[1])
    expected = [
        oracle.learn(int(x), int(target), np.exp(member).astype(np.float64))
        for x, target, member in zip(stream[:-1], stream[1:], logs, strict=True)
    ]
    np.testing.assert_array_equal(losses, expected)
    return run


def test_every_loss_in_binary_data_is_that_of_plain_python(bytes_learner):
    """Records of 37 bytes between two texts, so that both kinds of contexts are used, and the length is found."""
    rng = np.random.default_rng(0)
    records = (np.arange(37) * 5 + rng.integers(0, 3, (14, 37))) % 256
    records[:, ::3] = rng.integers(0, 8, records[:, ::3].shape)
    stream = np.concatenate([symbols_of()[:40], records.ravel(), symbols_of()[:40]]).astype(np.int32)
    run = check_losses(bytes_learner, stream, member_distributions(len(stream) - 1, 0, 256))
    assert run.past[contexts.PERIOD] == 37
    assert contexts.is_binary(run.past)


def test_texts_are_not_binary(bytes_learner):
    """Escapes of terminals, bytes beyond ASCII, and a few zeros are parts of texts."""
    for text in (
        TEXT,
        b"\x1b[0m ok\x1b[1m\r\n" * 20,
        "Grüße, señor\n".encode("latin-1") * 20,
        b"name\0value of it\n" * 20,
    ):
        stream = symbols_of(text)
        run, _, _ = bytes_learner.scan(bytes_learner.init(), stream[:-1], stream[1:])
        assert not contexts.is_binary(run.past)


def test_matches_of_every_class_of_lengths_are_those_of_plain_python():
    noise = np.random.default_rng(0).integers(0, 2, 300)
    stream = np.concatenate([noise, noise[:45], 1 - noise[40:60], noise, noise[:9]]).astype(np.int32)
    check_losses(learner_of(2, 0, 0.1), stream, member_distributions(len(stream) - 1, 0, 2))
    lengths = [16, 20, 24, 28, 32, 48, 208]
    classes = [bits._bucket(length) for length in lengths]
    assert classes == [16, 17, 18, 19, 20, 21, 31] == [bits._bucket(length - 1) + 1 for length in lengths]


@pytest.mark.parametrize(("symbols", "members", "megabytes"), [(256, 1, BYTES), (3, 0, 0.2), (21, 2, 4)])
def test_the_distribution_sums_to_one_and_gives_every_loss(symbols, members, megabytes):
    stream = symbols_of(symbols=symbols)[:241]
    xs, targets = stream[:-1], stream[1:]
    logs = member_distributions(len(xs), members, symbols)
    learner = learner_of(symbols, members, megabytes)
    _, losses, whole = learner.scan(learner.init(), xs, targets, expert_log_probabilities=logs, outputs=True)
    assert whole.shape == (len(xs), symbols)
    np.testing.assert_allclose(np.exp(np.float64(whole)).sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(-whole[np.arange(len(xs)), targets], losses, rtol=1e-6)
    _, again, _ = learner.scan(learner.init(), xs, targets, expert_log_probabilities=logs)
    np.testing.assert_array_equal(losses, again)

    before, _, _ = learner.scan(learner.init(), xs, targets, expert_log_probabilities=logs, count=80)
    kept = copy_arrays(before)
    later, later_logs = np.roll(xs, -80), np.roll(logs, -80, 0)
    moved, seen = learner.forward(before, later, count=1, expert_log_probabilities=later_logs)
    np.testing.assert_array_equal(seen[0], whole[80])
    assert not seen[1:].any()
    _, two = learner.forward(before, later, count=2, expert_log_probabilities=later_logs)
    _, second = learner.forward(moved, np.roll(later, -1), count=1, expert_log_probabilities=np.roll(later_logs, -1, 0))
    np.testing.assert_array_equal(two[1], second[0])
    assert moved.table is before.table
    learner.forward(before, later, expert_log_probabilities=later_logs)
    for was, stayed in zip(kept, before, strict=True):
        np.testing.assert_array_equal(was, stayed)


@pytest.mark.parametrize("symbols", [3, 60_000])
def test_alphabets_of_any_size(symbols):
    stream = np.tile(np.random.default_rng(0).integers(0, symbols, 40), 8)
    learner = Counts(symbols, megabytes=32)
    run, losses, _ = learner.scan(learner.init(), stream[:-1], stream[1:])
    assert losses[-100:].mean() < losses[:39].mean() / 4
    _, whole = learner.forward(run, stream[-1:])
    assert whole.shape == (1, symbols)
    assert np.exp(np.float64(whole)).sum() == pytest.approx(1, abs=1e-4)
    assert whole[0].argmax() == stream[0]


def test_dividing_a_stream_changes_no_bit(bytes_learner):
    stream = symbols_of()[:301]
    xs, targets = stream[:-1], stream[1:]
    whole_run, whole, _ = bytes_learner.scan(bytes_learner.init(), xs, targets)
    for cuts in ([(0, 0), (0, 1), (1, 130), (131, 169)], [(start, 1) for start in range(300)]):
        run, pieces = bytes_learner.init(), []
        for start, count in cuts:
            run, losses, _ = bytes_learner.scan(run, np.roll(xs, -start), np.roll(targets, -start), count=count)
            assert not losses[count:].any()
            pieces.append(losses[:count])
        np.testing.assert_array_equal(np.concatenate(pieces), whole)
        for one, other in zip(run, whole_run, strict=True):
            np.testing.assert_array_equal(one, other)


def test_nothing_comes_from_the_future(bytes_learner):
    stream = symbols_of()[:301]
    other = stream.copy()
    other[200:] = stream[200:][::-1]
    _, losses, _ = bytes_learner.scan(bytes_learner.init(), stream[:-1], stream[1:])
    _, others, _ = bytes_learner.scan(bytes_learner.init(), other[:-1], other[1:])
    np.testing.assert_array_equal(losses[:199], others[:199])
    assert (losses[199:] != others[199:]).any()


def test_memory_is_fixed_and_changed_in_place(bytes_learner):
    stream = symbols_of()[:301]
    before = bytes_learner.init()
    shapes = [(leaf.shape, leaf.dtype) for leaf in before]
    after, _, _ = bytes_learner.scan(before, stream[:-1], stream[1:])
    assert shapes == [(leaf.shape, leaf.dtype) for leaf in after]
    assert sum(leaf.nbytes for leaf in after) <= BYTES * 1e6
    assert all(one is other for one, other in zip(before, after, strict=True))


def test_restored_tables_are_put_where_their_rows_are_lines_of_the_cache(bytes_learner):
    stream = symbols_of()[:301]
    run, _, _ = bytes_learner.scan(bytes_learner.init(), stream[:-1], stream[1:])

    def elsewhere(table):
        words = np.zeros(table.size + 1, table.dtype)[1:]
        assert words.ctypes.data % 64, "a table where rows are not lines"
        words[:] = table.ravel()
        return words.reshape(table.shape)

    tables = {name: elsewhere(getattr(run, name)) for name in ("table", "maps")}
    again, losses, _ = bytes_learner.scan(run._replace(**copy_arrays(run._asdict()) | tables), stream[:-1], stream[1:])
    assert again.table.ctypes.data % 64 == again.maps.ctypes.data % 64 == 0
    np.testing.assert_array_equal(losses, bytes_learner.scan(run, stream[:-1], stream[1:])[1])


@pytest.mark.parametrize("symbols", [2, 3, 100, 256, 1000, 70_000])
@pytest.mark.parametrize("megabytes", [64, 256])
def test_a_run_has_the_requested_size(symbols, megabytes):
    plan, rest = make_plan(symbols, 3, megabytes, None)
    rows = 2 * plan.pairs.sum() + 2
    size = (rows * 4 * WIDTH + sum(leaf.nbytes for leaf in rest)) / 1e6
    assert size <= megabytes
    assert size > megabytes / 2 or symbols <= 3, "short contexts of few symbols need no more"


def test_regions_do_not_overlap():
    plan, _ = make_plan(256, 0, 64, contexts.byte_classes())
    starts, pairs = plan.starts.ravel(), plan.pairs.ravel()
    assert starts[0] == 0
    np.testing.assert_array_equal(starts[1:], starts[:-1] + 2 * pairs[:-1])


def test_a_long_repeat_is_found_in_the_ring_and_forgotten_with_it():
    rng = np.random.default_rng(0)
    phrase, noise = rng.integers(0, 16, 60), rng.integers(0, 16, 200)
    # Tables this small forget everything except the match immediately.
    learner = Counts(16, megabytes=0.5)
    history = len(learner.init().ring)
    near = np.concatenate([noise, phrase, noise[:100], phrase])
    far = np.concatenate([noise, phrase, rng.integers(0, 16, history), phrase])
    for stream, remembered in [(near, True), (far, False)]:
        _, losses, _ = learner.scan(learner.init(), stream[:-1], stream[1:])
        assert (losses[-40:].mean() < 1.0) == remembered


@pytest.mark.parametrize(("nearer", "found"), [(contexts.RECENT_SYMBOLS + 1, True), (0, False)])
def test_a_match_whose_symbols_the_ring_has_overwritten_is_not_used(nearer, found):
    """At the distance of the whole ring, the latest symbols would be compared with themselves."""
    learner = Counts(16, megabytes=0.5)
    run = learner.init()
    phrase = np.arange(1, 6)
    zeros = np.zeros(len(run.ring) - nearer - len(phrase), int)
    stream = np.concatenate([zeros[:50], phrase, zeros, phrase])
    run, _, _ = learner.scan(run, stream, np.roll(stream, -1))
    assert (run.past[contexts.LENGTH] > 0) == found


def test_the_less_used_of_two_rows_is_replaced():
    """The table has a single pair of rows."""
    table, checks = np.zeros((3, WIDTH), np.uint32), np.zeros(1, np.uint32)
    where, firsts, rows = np.zeros((1, 1), np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)

    def found(context, learn=True):
        seek_pairs(table, where, where + 1, 0, 1, np.array([context], np.uint32), checks, firsts)
        find_rows(table, checks, firsts, learn, rows)
        return int(rows[0])

    first = found(7)
    table[first, 1] = 5 << 10
    second = found(8)
    table[second, 1] = 2 << 10
    assert {first, second} == {0, 1}
    assert (found(7), found(8)) == (first, second)
    assert found(9, learn=False) == 2
    assert found(9) == second
    assert not table[second, 1:].any()
    assert (found(7), found(9)) == (first, second)
    assert not table[2].any()


def test_a_good_expert_gets_weight_and_nan_is_ignored():
    stream = np.random.default_rng(1).integers(0, 21, 301)
    learner = learner_of(21, 2, 4)
    good = np.log(np.where(np.arange(21) == stream[1:, None], 0.9, 0.005))
    logs = np.stack([good, np.full_like(good, np.nan)], 1)
    _, losses, _ = learner.scan(learner.init(), stream[:-1], stream[1:], expert_log_probabilities=logs)
    assert losses[-100:].mean() < 0.4
    assert np.isfinite(losses).all()


def test_it_is_a_learner():
    stream = symbols_of(symbols=21)[:201]
    learner = Counts(21, megabytes=1)
    check_learner(learner, learner.init(), stream[:-1], stream[1:])


def test_a_new_text_begins_without_a_past(bytes_learner):
    stream = symbols_of()
    run, _, _ = bytes_learner.scan(bytes_learner.init(), stream[:-1], stream[1:])
    other, _ = bytes_learner.forward(run, stream[100:150])
    seen = [bytes_learner.forward(bytes_learner.reset(one), stream[:1])[1] for one in (run, other)]
    np.testing.assert_array_equal(*seen)
    _, new = bytes_learner.forward(bytes_learner.init(), stream[:1])
    assert not np.array_equal(seen[0], new)  # what was learned stays


def test_classes_of_characters():
    classes = contexts.classes_of("aAé\nÉ 1")
    assert classes[0] == classes[1] >= contexts.FIRST_LETTER
    assert classes[2] == classes[4] > classes[0]
    assert classes[[3, 5, 6]].tolist() == [contexts.NEWLINE, contexts.OTHER, contexts.OTHER]


def test_bad_arguments_raise_errors(bytes_learner):
    run = bytes_learner.init()
    with pytest.raises(ModelError, match="scan: input 256 is out of range: .* 0 to 255.*more symbols"):
        bytes_learner.scan(run, np.array([1, 256]), np.array([1, 2]))
    with pytest.raises(ModelError, match="scan: every target must be a whole number, not a float64"):
        bytes_learner.scan(run, np.array([1]), np.array([1.0]))
    with pytest.raises(ModelError, match=r"Counts\(experts="):
        bytes_learner.scan(run, np.array([1]), np.array([1]), expert_log_probabilities=np.zeros((1, 1, 256)))
    with pytest.raises(ValueError, match="forward: count is 2, but the length of the chunk is 1"):
        bytes_learner.forward(run, np.array([1]), count=2)
    with pytest.raises(ModelError, match="Raise megabytes"):
        Counts(megabytes=1)
    with pytest.raises(ModelError, match="there are 3 symbols"):
        Counts(3, classes=[0, 1])
    with pytest.raises(ModelError, match="at least 2"):
        Counts(1)


def test_a_forged_past_is_never_read_from_outside_of_an_array():
    """Compiled loops check no bounds, so indices from a checkpoint are brought into range first."""
    learner = Counts(5, megabytes=4)
    text = np.random.default_rng(0).integers(0, 5, 200).astype(np.int32)
    for value in (-(2**62), -1, 2**40):
        run, _, _ = learner.scan(learner.init(), text[:100], text[1:101])
        run.past[:] = value
        run.places[:] = 2**32 - 1
        run, losses, _ = learner.scan(run, text[100:-1], text[101:])
        assert np.isfinite(losses).all()
        _, made = learner.forward(run, text[:5])
        np.testing.assert_allclose(np.exp(made).sum(axis=1), 1, rtol=1e-6)


def test_the_tables_of_the_compressed_format_are_the_same_on_every_processor():
    # `exp` and `log` are right to 12 digits everywhere, so no entry can be rounded to another number.
    points = (np.arange(2 * logistic.MAX_LOGIT // 32 + 2) * 32 - logistic.MAX_LOGIT) / logistic.LOGIT
    middles = (np.arange(4096) + 0.5) / 4096
    exact = {
        "stretched": (np.log(middles) - np.log(1 - middles)) * logistic.INPUT,
        "squashed": logistic.probabilities(points) * (logistic.ONE << 6),
        "map": logistic.probabilities(np.arange(bits.KNOTS) - 7.5) * (logistic.ONE << 6),
    }
    tables = {"stretched": logistic._STRETCHED, "squashed": logistic._SQUASHED, "map": bits.INITIAL_MAP}
    for name, entries in exact.items():
        assert np.abs(entries - np.floor(entries) - 0.5).min() > 1e-5, name
        np.testing.assert_array_equal(tables[name], np.rint(entries))
    checksums = {name: zlib.crc32(table.astype("<i4").tobytes()) for name, table in tables.items()}
    assert checksums == CHECKSUMS
