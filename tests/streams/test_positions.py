"""Samples and positions do not depend on how a stream is divided, delivered or resumed, whatever it contains."""

import math
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy
from stream_pipes import Pipe, drain, loaded, policies, quick, row_stream, saved

from norewind import tasks
from norewind.streams import (
    ByteStream,
    CharacterStream,
    ReadOptions,
    RowStream,
    Source,
    StreamError,
    TaskStream,
    restart_position,
)


def check_every_way(make, data, counts, sizes):
    """Check that samples and positions do not depend on how a stream is divided, delivered or resumed."""
    with Pipe(data) as source:
        try:
            stream = make(source)
        except StreamError:
            return  # rejected before anything is read
        samples, positions, end = drain(stream)
    with Pipe(data, sizes) as source:
        in_pieces = drain(make(source), counts, timeout=0)
    with Pipe(data) as source:
        in_chunks = drain(make(source), counts)
    for others, cuts, other_end in (in_pieces, in_chunks):
        assert others == samples
        assert cuts.items() <= positions.items()
        assert other_end == end
    for taken, position in positions.items():
        with Pipe(data, sizes) as source:
            rest, _, rest_end = drain(make(source, position=loaded(position)), counts)
        assert rest == samples[taken:]
        assert rest_end == end


counts = st.lists(st.integers(1, 7), min_size=1, max_size=4)
sizes = st.lists(st.integers(1, 9), min_size=1, max_size=4)
texts = st.text("ab\nä€😀x", max_size=30).map(str.encode)
spoiled = st.lists(st.one_of(texts, st.binary(max_size=3)), max_size=6).map(b"".join)


@quick
@given(st.binary(max_size=20), counts, sizes)
def test_bytes_are_the_same_every_way(data, counts, sizes):
    check_every_way(ByteStream, data, counts, sizes)


@quick
@given(st.one_of(texts, spoiled), counts, sizes, st.sampled_from([None, "abä\n", "b€😀"]), st.integers(1, 5), policies)
def test_characters_are_the_same_every_way(data, counts, sizes, alphabet, size, bad):
    def make(source, position=None):
        return CharacterStream(source, alphabet, size=size, bad=bad, position=position)

    check_every_way(make, data, counts, sizes)


numbers = st.sampled_from(["1", "-2.5", "3e2", " 4", "0", "1e-9", "7", "8", "9"])
odd = st.sampled_from(["", "NA", "nan", "null", "x", "inf", "1e999", '"5"', '"', "1_0", "é", "true"])
field = st.one_of(numbers, numbers, numbers, numbers, numbers, odd)
csv_line = st.one_of(st.tuples(field, field).map(",".join), st.lists(field, max_size=3).map(",".join))
json_line = st.one_of(
    st.tuples(numbers, field).map(lambda pair: f'{{"a": {pair[0]}, "b": {pair[1] or "{}"}}}'),
    st.sampled_from(["", "{", '{"a": 1}', '{"a": [1]}', '{"b": "2", "a": true}', "[1]", '{"a": "3", "b": NaN}']),
)
ends = st.sampled_from(["", "\n", "\r\n", "\xff"])


def row_options():
    return st.fixed_dictionaries(
        {
            "horizon": st.integers(0, 3),
            "missing": st.sampled_from(["last", "mean", "stop", "skip"]),
            "bad": policies,
            "standardise": st.booleans(),
        }
    ).map(lambda options: {"inputs": ["a"], "targets": ["b"], **options} if options["horizon"] == 0 else options)


@quick
@given(st.lists(csv_line, max_size=25), ends, row_options(), counts, sizes)
def test_csv_is_the_same_every_way(lines, end, options, counts, sizes):
    def make(source, position=None):
        return row_stream(source, position=position, **options)

    check_every_way(make, "\n".join(["a,b", "1,2", *lines]).encode() + end.encode("latin-1"), counts, sizes)


@quick
@given(st.lists(json_line, max_size=25), ends, row_options(), counts, sizes)
def test_json_lines_are_the_same_every_way(lines, end, options, counts, sizes):
    def make(source, position=None):
        return row_stream(source, read_options=ReadOptions("jsonl"), position=position, **options)

    check_every_way(make, "\n".join(['{"b": 1, "a": 2}', *lines]).encode() + end.encode("latin-1"), counts, sizes)


@quick
@given(counts, st.sampled_from([tasks.anbn(1, 4), tasks.distant_brackets()]))
def test_a_task_is_the_same_every_way(counts, text):
    stream, whole = TaskStream(text, 3), next(text.chunks(3, 5002))
    taken = 0
    for count in [*counts, 4090, *counts]:
        position = saved(stream.position())
        for again in (stream, TaskStream(text, 3, position=loaded(position))):
            samples = again.take(count)
            np.testing.assert_array_equal(samples.xs, whole[taken : taken + count])
            np.testing.assert_array_equal(samples.targets, whole[taken + 1 : taken + count + 1])
        taken += count


# Resuming.


def test_a_run_continues_when_its_file_has_grown(tmp_path):
    path = tmp_path / "rows.csv"
    lines = [f"{3 * i},{i * i % 7}\n" for i in range(40)]
    path.write_text("a,b\n" + "".join(lines))
    whole, *_ = drain(RowStream(Source(path), horizon=3))
    path.write_text("a,b\n" + "".join(lines[:17]))
    first, _, (position, _) = drain(RowStream(Source(path), horizon=3), [5])
    path.write_text("a,b\n" + "".join(lines))
    rest, *_ = drain(RowStream(Source(path), horizon=3, position=loaded(position)), [4])
    assert first + rest == whole


def test_a_final_line_without_newline_may_get_one_but_may_not_grow(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a\n1\n2\n3")
    _, _, (position, _) = drain(RowStream(Source(path, final=True), standardise=False))
    path.write_text("a\n1\n2\n3\n4\n")
    (sample,), *_ = drain(RowStream(Source(path), standardise=False, position=loaded(position)))
    assert np.frombuffer(sample[1], np.float32) == 4
    path.write_text("a\n1\n2\n35\n4\n")
    *_, error = drain(RowStream(Source(path), standardise=False, position=loaded(position)))
    assert "line 4 (byte 7) is bad: it continues a line that had no newline yet" in error


@pytest.mark.parametrize("cut", range(1, 5))
@pytest.mark.parametrize("kind", ["rows", "text"])
def test_an_incomplete_end_of_a_file_is_held_back(tmp_path, kind, cut):
    """A file cut anywhere gives only samples of the whole file, and no sample is lost."""

    def opened(position=None):
        if kind == "rows":
            return RowStream(Source(path), read_options=ReadOptions(bad="skip"), standardise=False, position=position)
        return CharacterStream(Source(path), bad="skip", position=position)

    path, content = tmp_path / "file", "a,b\n1,2\n13,25\n" if kind == "rows" else "abää🙂"
    path.write_bytes(content.encode())
    whole, _, end = drain(opened())
    path.write_bytes(content.encode()[:-cut])
    first, _, (position, _) = drain(opened())
    path.write_bytes(content.encode())
    rest, _, rest_end = drain(opened(loaded(position)))
    assert first + rest == whole
    assert rest_end == end


def test_a_file_of_one_incomplete_line_explains_how_to_complete_it(tmp_path):
    (tmp_path / "file").write_bytes(b"a,b\n1,2")
    with pytest.raises(StreamError, match="3 bytes of an incomplete line.*or pass final=True"):
        RowStream(Source(tmp_path / "file"))
    with RowStream(Source(tmp_path / "file", final=True)) as stream:
        assert len(stream.take(2).xs) == 1


def test_a_pipe_may_continue_without_being_replayed():
    with Pipe(b"abcdef") as source:
        stream = ByteStream(source)
        stream.take(2)
    with Pipe(b"def", continues=True) as source:
        xs, targets, *_ = ByteStream(source, position=stream.position()).take(9)
    assert (bytes(xs.tolist()), bytes(targets.tolist())) == (b"cde", b"def")


@pytest.mark.parametrize("samples", [0, 1])
def test_a_position_is_not_changed_through_another(samples):
    with Pipe(b"a,b\n1,2\n3,4\n5,6\n") as source, RowStream(source, standardise=False) as stream:
        for _ in range(samples):
            stream.take(1)
        position = saved(stream.position())
        stream.position()["counts"]["bad rows"] = 1
        stream.position().clear()
        assert saved(stream.position()) == position


def test_continuing_with_another_stream_is_rejected(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"abcdef")
    with ByteStream(Source(path)) as stream:
        stream.take(4)
    path.write_bytes(b"abcd")
    with pytest.raises(StreamError, match="has only 4 bytes, but the run has read 5: the file was truncated"):
        ByteStream(Source(path), position=stream.position())
    path.write_bytes(b"abXdef")
    with pytest.raises(StreamError, match="is not the stream that the run has read: its first 5 bytes differ"):
        ByteStream(Source(path), position=stream.position())


def test_continuing_with_other_settings_is_rejected():
    with Pipe(b"a,b\n1,2\n3,4\n") as source:
        stream = RowStream(source)
        stream.take(1)
    position = loaded(saved(stream.position()))
    others = {
        "horizon": 2,
        "inputs": ["a"],
        "targets": ["b"],
        "standardise": False,
        "read_options": ReadOptions("jsonl"),
    }
    for name, value in others.items():
        with Pipe(b"") as source, pytest.raises(StreamError, match="the run started with .* but now it is"):
            RowStream(source, position=position, **{name: value})
    with Pipe(b"") as source, pytest.raises(StreamError, match="a stream of 'rows', but this is a stream of 'bytes'"):
        ByteStream(source, position=position)
    with Pipe(b"aba") as source:
        stream = CharacterStream(source, "ab")
        stream.take(1)
    with Pipe(b"aba") as source, pytest.raises(StreamError, match="started with alphabet = 'ab', but now it is 'ba'"):
        CharacterStream(source, "ba", position=stream.position())
    position = TaskStream(tasks.anbn(), 1).position()
    with pytest.raises(StreamError, match="started with seed = 1, but now it is 2"):
        TaskStream(tasks.anbn(), 2, position=position)
    with pytest.raises(StreamError, match="started with task = 'anbn"):
        TaskStream(tasks.anbn(1, 2), 1, position=position)


# Any input gives samples or a StreamError.


def make_any(source, kind, options, position=None):
    if kind == "bytes":
        return ByteStream(source, position=position)
    if kind == "characters":
        return CharacterStream(source, options["alphabet"], size=3, bad=options["bad"], position=position)
    rows = {name: options[name] for name in ("bad", "missing", "horizon", "standardise")}
    return row_stream(source, read_options=ReadOptions(kind, options["header"]), position=position, **rows)


kinds = st.sampled_from(["bytes", "characters", "csv", "jsonl"])
any_options = st.fixed_dictionaries(
    {
        "alphabet": st.sampled_from([None, "ab,1\n"]),
        "bad": policies,
        "missing": st.sampled_from(["last", "mean", "stop", "skip"]),
        "horizon": st.integers(0, 2),
        "header": st.booleans(),
        "standardise": st.booleans(),
    }
)
tokens = st.sampled_from(
    [b"\n", b",", b'"', b"{", b"}", b":", b"1", b'"a"', b"\r", b"a", b"null", b"\xff", b"-", b"e9"]
)
noise = st.one_of(st.binary(max_size=60), st.lists(tokens, max_size=60).map(b"".join))


def read_all(kind, options, data, position=None):
    with Pipe(data) as source:
        try:
            stream = make_any(source, kind, options, position)
            while (samples := stream.take(3)) is not None:
                assert len(samples.xs) == len(samples.targets)
                saved(stream.position())
        except StreamError:
            pass


@settings(quick, max_examples=300)
@given(kinds, any_options, noise)
def test_any_bytes(kind, options, data):
    read_all(kind, options, data)


GOOD = {
    "bytes": b"ab1,ab1,",
    "characters": b"ab?1,ab1,",
    "csv": b"a,b\n" + b"".join(b"%d,%d\nx\n" % (i, i * i) for i in range(15)),
    "jsonl": b"".join(b'{"a": %d, "b": %d}\n{\n' % (i, i * i) for i in range(15)),
}
SOME = {"alphabet": "ab,1\n", "bad": "skip", "missing": "last", "horizon": 2, "header": True, "standardise": True}


def good_position(kind, options=SOME):
    with Pipe(GOOD[kind]) as source:
        stream = make_any(source, kind, options)
        # Enough rows to standardise by.
        stream.take(4 if kind in ("bytes", "characters") else 12)
        return loaded(saved(stream.position()))


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just(10**400))
arrays = numpy.arrays(st.sampled_from(["f8", "f8", "f4", "i8"]), st.tuples(*map(st.integers, (0, 1, 2), (3, 3, 4))))
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner))


def paths_in(value, path=()):
    yield path
    if isinstance(value, dict | list):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths_in(entry, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    value = value.copy()
    value[path[0]] = replaced(value[path[0]], path[1:], new)
    return value


@pytest.mark.parametrize("kind", GOOD)
def test_every_damage_of_a_position_is_noticed(kind):
    position = good_position(kind)
    without = [{other: position[other] for other in position if other != name} for name in position]
    for wrong in [{**position, "more": 1}, *without]:
        with Pipe(GOOD[kind]) as source, pytest.raises(StreamError):
            make_any(source, kind, SOME, wrong)
    for path in paths_in(position):
        original = reduce(lambda value, key: value[key], path, position)
        for wrong in (math.nan, 10**400, -1, 0 if isinstance(original, str) else "x"):
            if not (wrong == -1 and isinstance(original, float)):
                with Pipe(GOOD[kind]) as source, pytest.raises(StreamError):
                    make_any(source, kind, SOME, replaced(position, path, wrong))


@pytest.mark.parametrize("standardise", [True, False])
def test_damaged_waiting_rows_are_noticed(standardise):
    options = SOME | {"standardise": standardise}
    position = good_position("csv", options)
    good = position["waiting"]
    assert good.shape == (2, 2, 3)
    assert np.isfinite(good).all()
    longer, nothing = np.concatenate([good, good[:1]]), np.full_like(good, np.nan)
    shapes = [good.tolist(), good[0], good[:, :1], good[..., :2], longer, good.astype(np.float32), good.astype(object)]
    for place in np.ndindex(good.shape):
        for value in [math.nan, math.inf, -math.inf, *([0.0, -1.0] if place[-1] == 1 else [4e38])]:
            if standardise or place[-1] != 2 or value == value:
                wrong = good.copy()
                wrong[place] = value
                shapes.append(wrong)
    for wrong in [*shapes, *([] if standardise else [nothing, good + 1])]:
        with Pipe(GOOD["csv"]) as source, pytest.raises(StreamError, match=r"damaged: the (waiting )?scales"):
            make_any(source, "csv", options, {**position, "waiting": wrong})
    # At first there are no scales, and fewer rows are pending.
    for fine in [good, good[:1], good[:0], *([nothing] if standardise else [])]:
        with Pipe(GOOD["csv"]) as source:
            make_any(source, "csv", options, {**position, "waiting": fine})


def test_a_negative_sum_of_squares_is_noticed():
    position = replaced(good_position("csv"), ("statistics", 0, 2), -1.0)
    with (
        Pipe(GOOD["csv"]) as source,
        pytest.raises(StreamError, match=r"Expected float >= 0.0 - at \$.statistics\[0\]\[2\]"),
    ):
        make_any(source, "csv", SOME, position)


@quick
@given(st.data(), kinds, any_options, values)
def test_any_position(data, kind, options, value):
    options = options | {"horizon": 2, "bad": "skip", "header": True}
    position = good_position(kind, options)
    path = data.draw(st.sampled_from(list(paths_in(position))))
    if path == ("waiting",):
        value = data.draw(arrays)
    read_all(kind, options, GOOD[kind], replaced(position, path, value))


@quick
@given(values)
def test_a_task_from_any_position(position):
    with pytest.raises(StreamError):
        TaskStream(tasks.anbn(), position={} if position is None else position)


def test_another_source_is_read_as_the_first_one_was(tmp_path):
    """The new source is read from its start, with the saved statistics and alphabet, and columns by name."""
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    first.write_text("a,b\n" + "".join(f"{2 * i},{i % 3}\n" for i in range(30)))
    second.write_text("b,a\n" + "".join(f"{i % 3},{2 * i}\n" for i in range(5)))
    with RowStream(Source(first)) as stream:
        stream.take(100)
    with RowStream(Source(second), position=restart_position(stream.position())) as other:
        samples = other.take(1)
    assert samples is not None
    values = [*range(0, 60, 2), 0]
    assert samples.xs[0, 0] == pytest.approx((0 - np.mean(values)) / np.std(values))
    # The pending rows of the first source do not belong to the second one.
    assert np.isnan(samples.targets).all()
    assert other.position()["lines"] == 2
    second.write_text("b,c\n1,2\n")
    with pytest.raises(StreamError, match="has no column 'a'. It has"):
        RowStream(Source(second), position=restart_position(stream.position()))

    text = tmp_path / "text"
    text.write_text("abcabc")
    with CharacterStream(Source(text)) as characters:
        characters.take(100)
    text.write_text("cba")
    with CharacterStream(Source(text), position=restart_position(characters.position())) as again:
        samples = again.take(100)
    assert samples is not None
    assert samples.xs.tolist() == [2, 1]
