"""Streams: the same samples however they are cut, delivered or resumed, and a clear word about bad input."""

import builtins
import json
import math
import os
import re
import subprocess
import sys
import threading
import tracemalloc
from contextlib import suppress
from functools import reduce
from itertools import cycle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from norewind import tasks
from norewind.streams import ByteStream, CharacterStream, RowStream, Source, StreamError, TaskStream, afresh

policies = st.sampled_from(["fail", "skip"])
quick = settings(
    derandomize=True, deadline=None, database=None, max_examples=60, suppress_health_check=list(HealthCheck)
)


class Fragments(Source):
    """The bytes come in pieces of these sizes."""

    def __init__(self, descriptor, sizes, **options):
        super().__init__(descriptor, **options)
        self.sizes = cycle(sizes)

    def _read(self, size, deadline):
        return super()._read(min(size, next(self.sizes)), deadline)


class Pipe:
    """A pipe with some bytes in it."""

    def __init__(self, data, sizes=(1 << 16,), **options):
        self.reader, writer = os.pipe()
        assert not data or os.write(writer, data) == len(data)
        os.close(writer)
        self.source = Fragments(self.reader, sizes, **options)

    def __enter__(self):
        return self.source

    def __exit__(self, *_):
        os.close(self.reader)


def saved(position):
    """A position as it comes back from a checkpoint."""
    return json.loads(json.dumps(position, allow_nan=False))


def one_by_one(samples):
    parts = [part for part in samples if part is not None]
    return [tuple(part[i].tobytes() for part in parts) for i in range(len(samples.xs))]


def drain(stream, counts=(1,), patience=None):
    """All samples, the position after every take, and how it ended: where, or with which error."""
    samples, positions = [], {0: saved(stream.position())}
    try:
        for count in cycle(counts):
            taken = stream.take(count, patience)
            if taken is None:
                assert stream.take(count, patience) is None
                return samples, positions, (saved(stream.position()), stream.counts)
            assert (0 if patience == 0 else 1) <= len(taken.xs) <= count
            samples += one_by_one(taken)
            position = saved(stream.position())
            assert positions.setdefault(len(samples), position) == position
            assert stream.counts == position["counts"]
    except StreamError as error:
        return samples, positions, re.sub(r"descriptor \d+", "descriptor", str(error))


def check_every_way(make, data, counts, sizes):
    """However a stream is cut, delivered or resumed, it hands out the same, and is where it should be."""
    with Pipe(data) as source:
        try:
            stream = make(source)
        except StreamError:
            return  # said before anything is read
        samples, positions, end = drain(stream)
    with Pipe(data, sizes) as source:
        in_pieces = drain(make(source), counts, patience=0)
    with Pipe(data) as source:
        in_chunks = drain(make(source), counts)
    for others, cuts, other_end in (in_pieces, in_chunks):
        assert others == samples
        assert cuts.items() <= positions.items()
        assert other_end == end
    for taken, position in positions.items():
        with Pipe(data, sizes) as source:
            rest, _, rest_end = drain(make(source, position=position), counts)
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
            "missing": st.sampled_from(["last", "mean", "fail", "skip"]),
            "bad": policies,
            "standardise": st.booleans(),
        }
    ).map(lambda options: {"inputs": ["a"], "targets": ["b"], **options} if options["horizon"] == 0 else options)


@quick
@given(st.lists(csv_line, max_size=25), ends, row_options(), counts, sizes)
def test_csv_is_the_same_every_way(lines, end, options, counts, sizes):
    def make(source, position=None):
        return RowStream(source, position=position, **options)

    check_every_way(make, "\n".join(["a,b", "1,2", *lines]).encode() + end.encode("latin-1"), counts, sizes)


@quick
@given(st.lists(json_line, max_size=25), ends, row_options(), counts, sizes)
def test_json_lines_are_the_same_every_way(lines, end, options, counts, sizes):
    def make(source, position=None):
        return RowStream(source, format="jsonl", position=position, **options)

    check_every_way(make, "\n".join(['{"b": 1, "a": 2}', *lines]).encode() + end.encode("latin-1"), counts, sizes)


@quick
@given(counts, st.sampled_from([tasks.anbn(1, 4), tasks.distant_brackets()]))
def test_a_task_is_the_same_every_way(counts, text):
    stream, whole = TaskStream(text, 3), next(text.chunks(3, 5002))
    taken = 0
    for count in [*counts, 4090, *counts]:
        position = saved(stream.position())
        for again in (stream, TaskStream(text, 3, position=position)):
            samples = again.take(count)
            np.testing.assert_array_equal(samples.xs, whole[taken : taken + count])
            np.testing.assert_array_equal(samples.targets, whole[taken + 1 : taken + count + 1])
        taken += count


# What the readers hand out.


def rows_of(text, **options):
    with Pipe(text.encode()) as source:
        stream = RowStream(source, **options)
        parts = list(iter(lambda: stream.take(7), None))
        return stream, *(np.concatenate([part[i] for part in parts]) for i in range(4))


def test_bytes_and_what_follows():
    with Pipe(b"abcd\n") as source:
        stream = ByteStream(source)
        xs, targets, scales, last = stream.take(10)
    assert bytes(xs.tolist()) == b"abcd"
    assert bytes(targets.tolist()) == b"bcd\n"
    assert xs.dtype == targets.dtype == np.int32
    assert scales is last is None
    assert stream.decode(stream.encode("aé")) == "aé".encode()


def test_a_given_alphabet_names_the_symbols():
    with Pipe("b€ab".encode()) as source:
        stream = CharacterStream(source, "ab€")
        xs, targets, *_ = stream.take(10)
    assert stream.symbols == 3
    assert [*xs, targets[-1]] == [1, 2, 0, 1]
    assert stream.decode(xs) == "b€a".encode()
    np.testing.assert_array_equal(stream.encode("€a"), [2, 0])
    with pytest.raises(StreamError, match="'x' at place 1, which is none of the symbols so far"):
        stream.encode(b"ax")
    with pytest.raises(StreamError, match="not valid UTF-8"):
        stream.encode(b"\xff")


def test_an_alphabet_grows_as_symbols_appear():
    with Pipe("zaz€a!".encode()) as source:
        stream = CharacterStream(source, size=5)
        xs, targets, *_ = stream.take(10)
    assert stream.symbols == 5
    assert [*xs, targets[-1]] == [0, 1, 0, 2, 1, 3]
    assert stream.alphabet == "za€!"
    assert stream.decode([0, 2, 4]) == "z€\ufffd".encode()


def test_the_alphabet_in_a_position_is_that_of_the_samples_handed_out():
    with Pipe(b"abcd") as source:
        stream = CharacterStream(source)
        stream.take(1)
        assert stream.position()["alphabet"] == "ab"


def test_what_has_no_symbol_is_skipped_and_counted():
    with Pipe(b"a\xff\xe2\x82b?\nab\xf0\x9f") as source:
        stream = CharacterStream(source, "ab\n", bad="skip")
        xs, targets, *_ = stream.take(10)
        assert stream.decode([*xs, targets[-1]]) == b"ab\nab"
        assert stream.counts == {"invalid bytes": 2, "unknown symbols": 1}
        assert stream.take(1) is None
        assert stream.counts == {"invalid bytes": 3, "unknown symbols": 1}


@pytest.mark.parametrize("horizon", [0, 1, 3])
def test_standardisation_uses_what_was_known(horizon):
    data = np.random.default_rng(0).normal(5, [1, 3], (40, 2))
    text = "a,b\n" + "".join(f"{a!r},{b!r}\n" for a, b in data.tolist())
    _, xs, targets, scales, last = rows_of(text, inputs=["a"], targets=["b"], horizon=horizon)
    assert len(xs) == 40 - horizon
    for t in range(len(xs)):
        seen = data[: t + 1, 0]
        np.testing.assert_allclose(xs[t, 0], (seen[-1] - seen.mean()) / (seen.std() or 1), rtol=1e-5, atol=1e-6)
        known = data[: t + 1 if horizon else t, 1]
        if len(known) < 10:
            assert np.isnan([targets[t, 0], last[t, 0], *scales[t, 0]]).all()
        else:
            np.testing.assert_allclose(scales[t, 0], [known.mean(), known.std()], rtol=1e-12)
            np.testing.assert_allclose(targets[t, 0], (data[t + horizon, 1] - known.mean()) / known.std(), rtol=1e-5)
            np.testing.assert_allclose(last[t, 0], (known[-1] - known.mean()) / known.std(), rtol=1e-5)


def test_a_constant_column_is_zero_and_nothing_to_learn_from_and_a_shock_is_clipped():
    _, xs, targets, *_ = rows_of("a\n" + "5\n" * 20 + "6\n" + "5\n" * 3)
    assert (xs[:20] == 0).all()
    assert np.isnan(targets[:20]).all()
    assert np.isfinite(targets[20:]).all()
    _, xs, targets, *_ = rows_of("a\n" + "1\n2\n" * 10 + "1e30\n" + "-1e30\n")
    assert np.nanmax(targets) == targets[19] == 100


def test_raw_numbers():
    stream, xs, targets, scales, last = rows_of("a,b\n1,2\n3,\n5,6\n", standardise=False)
    assert stream.inputs == stream.targets == ["a", "b"]
    np.testing.assert_array_equal(xs, [[1, 2], [3, 2]])
    np.testing.assert_array_equal(targets, [[3, np.nan], [5, 6]])
    np.testing.assert_array_equal(last, [[1, 2], [3, 2]])
    assert (scales == [0, 1]).all()
    assert xs.dtype == targets.dtype == last.dtype == np.float32
    assert scales.dtype == np.float64


@pytest.mark.parametrize(
    ("missing", "filled"), [("last", [1, 1, 5, 5]), ("mean", [1, 1, 5, 3]), ("skip", [1, 5])], ids=str
)
def test_missing_inputs(missing, filled):
    stream, xs, *_ = rows_of("a,b\n1,0\n,0\n5,0\nNA,0\n7,1\n", inputs=["a"], missing=missing, standardise=False)
    assert xs[:, 0].tolist() == filled
    assert stream.counts == ({"rows with missing values": 2} if missing == "skip" else {})


def test_missing_inputs_before_the_first_value():
    assert rows_of("a,b\n,1\n2,1\n", inputs=["a", "b"], standardise=False)[1].tolist() == [[0, 1]]


def test_a_label_that_comes_late_is_a_horizon_and_a_missing_one_is_not_learned_from():
    text = '{"x": 1, "label": null}\n{"x": 2, "label": 10}\n{"x": 3}\n{"x": 4, "label": "30"}\n'
    _, xs, targets, _, last = rows_of(
        text, format="jsonl", inputs=["x"], targets=["label"], missing="fail", standardise=False
    )
    assert xs[:, 0].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(targets[:, 0], [10, np.nan, 30])
    np.testing.assert_array_equal(last[:, 0], [np.nan, 10, 10])


def test_columns_are_by_default_those_with_a_number_in_the_first_row():
    stream, xs, *_ = rows_of("day,a,,b\nmon,1,7,x\ntue,2,8,y\n", standardise=False)
    assert stream.inputs == ["a", "3"]
    assert xs.tolist() == [[1, 7]]
    stream, *_ = rows_of("1;2\n3;4\n", header=False, delimiter=";", targets=["2"], horizon=0)
    assert (stream.inputs, stream.targets) == (["1"], ["2"])


def test_byte_order_mark_windows_line_ends_quotes_and_blank_lines():
    text = '\ufeffa,"b ""x"", c"\r\n1,"2"\r\n\r\n\n3,4\r\n5,6'
    stream, xs, targets, *_ = rows_of(text, standardise=False)
    assert stream.inputs == ["a", 'b "x", c']
    assert xs.tolist() == [[1, 2], [3, 4]]
    assert targets.tolist() == [[3, 4], [5, 6]]


# Going on.


def test_a_file_that_has_grown_goes_on(tmp_path):
    path = tmp_path / "rows.csv"
    lines = [f"{i},{i * i % 7}\n" for i in range(40)]
    path.write_text("a,b\n" + "".join(lines))
    whole, *_ = drain(RowStream(Source(path), horizon=3))
    path.write_text("a,b\n" + "".join(lines[:17]))
    first, _, (position, _) = drain(RowStream(Source(path), horizon=3), [5])
    path.write_text("a,b\n" + "".join(lines))
    rest, *_ = drain(RowStream(Source(path), horizon=3, position=position), [4])
    assert first + rest == whole


def test_a_last_line_without_newline_may_get_one_but_may_not_grow(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a\n1\n2\n3")
    _, _, (position, _) = drain(RowStream(Source(path), standardise=False))
    path.write_text("a\n1\n2\n3\n4\n")
    (sample,), *_ = drain(RowStream(Source(path), standardise=False, position=position))
    assert np.frombuffer(sample[1], np.float32) == 4
    path.write_text("a\n1\n2\n35\n4\n")
    with pytest.raises(StreamError, match=r"line 4 \(byte 7\) is bad: it goes on with a line that had no newline yet"):
        RowStream(Source(path), standardise=False, position=position).take(1)


def test_a_pipe_may_go_on_without_being_replayed():
    with Pipe(b"abcdef") as source:
        stream = ByteStream(source)
        stream.take(2)
    with Pipe(b"def", continues=True) as source:
        xs, targets, *_ = ByteStream(source, position=stream.position()).take(9)
    assert (bytes(xs.tolist()), bytes(targets.tolist())) == (b"cde", b"def")


def test_going_on_with_another_stream_is_refused(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"abcdef")
    stream = ByteStream(Source(path))
    stream.take(4)
    path.write_bytes(b"abcd")
    with pytest.raises(StreamError, match="has only 4 bytes, but the run has read 5: the file shrank"):
        ByteStream(Source(path), position=stream.position())
    path.write_bytes(b"abXdef")
    with pytest.raises(StreamError, match="is not what the run has read: its first 5 bytes differ"):
        ByteStream(Source(path), position=stream.position())


def test_going_on_with_other_settings_is_refused():
    with Pipe(b"a,b\n1,2\n3,4\n") as source:
        stream = RowStream(source)
        stream.take(1)
    position = saved(stream.position())
    for options in ({"horizon": 2}, {"inputs": ["a"]}, {"targets": ["b"]}, {"standardise": False}, {"format": "jsonl"}):
        with Pipe(b"") as source, pytest.raises(StreamError, match="the run was begun with .* but now it is"):
            RowStream(source, position=position, **options)
    with Pipe(b"") as source, pytest.raises(StreamError, match="a stream of 'rows', but this is one of 'bytes'"):
        ByteStream(source, position=position)
    with Pipe(b"aba") as source:
        stream = CharacterStream(source, "ab")
        stream.take(1)
    with Pipe(b"aba") as source, pytest.raises(StreamError, match="begun with the alphabet 'ab', but now it is 'ba'"):
        CharacterStream(source, "ba", position=stream.position())
    position = TaskStream(tasks.anbn(), 1).position()
    with pytest.raises(StreamError, match="begun with seed = 1, but now it is 2"):
        TaskStream(tasks.anbn(), 2, position=position)
    with pytest.raises(StreamError, match="begun with task = 'anbn"):
        TaskStream(tasks.anbn(1, 2), 1, position=position)


# Waiting.


def produce(pieces):
    """A pipe that another thread fills; its reading end, and an event that lets it go on after every piece."""
    reader, writer = os.pipe()
    taken = threading.Semaphore(0)

    def write():
        for piece in pieces:
            with suppress(BrokenPipeError):
                os.write(writer, piece)
            taken.acquire()
        os.close(writer)

    threading.Thread(target=write, daemon=True).start()
    return reader, taken


def test_patience_hands_out_what_there_is():
    reader, taken = produce([b"1\n2", b"\n3\n", b"4\n"])
    stream = RowStream(Source(reader), header=False, standardise=False)
    assert stream.take(5, patience=0.01).xs.shape == (0, 1)
    assert stream.position()["offset"] == 0
    taken.release()
    samples = []
    while len(samples) < 2:
        samples += stream.take(5, patience=0.01).xs.tolist()
    assert samples == [[1], [2]]
    taken.release()
    taken.release()
    assert stream.take(5).xs.tolist() == [[3]]
    assert stream.take(5) is None
    os.close(reader)


def test_patience_ends_even_if_there_is_always_something_to_skip():
    with Pipe(b"1\n" + b"x\n" * 100, sizes=[2]) as source:
        stream = RowStream(source, header=False, bad="skip")
        assert len(stream.take(1, patience=0).xs) == 0
        assert not source.ended
        assert stream.position()["offset"] == 0
        assert stream.counts == {}


def test_a_stop_ends_the_waiting():
    reader, taken = produce([b"abc"])
    assert Source(reader).size is None
    stopped = threading.Event()
    stream = ByteStream(Source(reader, stop=stopped.is_set))
    threading.Timer(0.1, stopped.set).start()
    assert len(stream.take(100).xs) == 2
    assert len(stream.take(100).xs) == 0
    taken.release()
    os.close(reader)


def test_a_stop_before_the_first_row():
    reader, taken = produce([b"a,b"])
    with pytest.raises(StreamError, match="stopped before its first row came"):
        RowStream(Source(reader, stop=lambda: True))
    with pytest.raises(StreamError, match="stopped at byte 0, on the way to byte 7"):
        ByteStream(
            Source(reader, stop=lambda: True),
            position={"kind": "bytes", "offset": 7, "crc": 1, "lines": 0, "counts": {}, "previous": 3},
        )
    taken.release()
    os.close(reader)


def test_a_process_in_a_pipeline():
    program = "import sys; from norewind.streams import *; print(len(ByteStream(Source('-')).take(10**7).xs))"
    program += "; assert 'jax' not in sys.modules"
    command = f"{sys.executable} -c \"print('ab' * 100_000, end='')\" | {sys.executable} -c \"{program}\""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("199999\n", "")


# Constant memory.


def endless(piece, total):
    reader, writer = os.pipe()

    def write():
        for _ in range(total // len(piece)):
            os.write(writer, piece)
        os.close(writer)

    threading.Thread(target=write, daemon=True).start()
    return Source(reader)


@pytest.mark.parametrize(
    ("make", "piece"),
    [
        (ByteStream, b"abcdefgh" * 1000),
        (CharacterStream, "abcdä€😀\n".encode() * 1000),
        (lambda source: CharacterStream(source, "xy", bad="skip"), b"x" + b"abcdefgh" * 1000),
        (lambda source: RowStream(source, header=False, inputs=["1"]), b"1,2,3" + b",4" * 5000 + b"\n"),
        (lambda source: RowStream(source, header=False, bad="skip"), b"1\n" + b"1" + b",4" * 5000 + b"\n"),
        (lambda source: RowStream(source, header=False, bad="skip"), b"1\n2\n" + b"3" * (1 << 21) + b"\n"),
    ],
    ids=["bytes", "characters", "unknown", "rows", "bad rows", "long lines"],
)
def test_ten_million_bytes_in_little_memory(make, piece):
    stream = make(endless(piece, 10**7))
    tracemalloc.start()
    try:
        samples = sum(len(taken.xs) for taken in iter(lambda: stream.take(2000), None))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert samples > 0
    assert peak < 4e6


# Bad input.


@pytest.mark.parametrize("make", [ByteStream, CharacterStream, lambda source: RowStream(source).take(1)])
def test_an_empty_stream(make):
    with Pipe(b"") as source, pytest.raises(StreamError, match="file descriptor \\d+ is empty"):
        make(source).take(1)


@pytest.mark.parametrize(
    ("make", "data", "message"),
    [
        (ByteStream, b"a", "ends at byte 1 with 1 bytes: a sample needs two"),
        (CharacterStream, "€".encode(), "ends at byte 3 with 1 characters: a sample needs two"),
        (
            lambda source: CharacterStream(source, "ab", bad="skip"),
            b"xay\xff",
            "ends at byte 4 with 1 characters, 2 unknown symbols skipped, 1 invalid bytes skipped: a sample needs two",
        ),
        (RowStream, b"a,b", "ends at byte 3 with 0 rows, too few for a sample"),
        (RowStream, b"a,b\n1,2\n", "ends at byte 8 with 1 rows, too few for a sample"),
        (
            lambda source: RowStream(source, bad="skip", horizon=2),
            b"a\n1\nx\n2\n",
            "with 2 rows, 1 bad rows skipped, too few for a sample",
        ),
    ],
)
def test_a_stream_that_is_too_short(make, data, message):
    with Pipe(data) as source, pytest.raises(StreamError, match=message):
        make(source).take(1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"ab\nac", r"has the character 'c', which is none of the 3 symbols, at byte 4 \(line 2\)"),
        (b"ab\n\nb\xffa", r"is not valid UTF-8, at byte 5 \(line 3\)"),
        (b"aba\xe2\x82", r"is not valid UTF-8, at byte 3 \(line 1\)"),
    ],
)
def test_bad_characters(data, message):
    with Pipe(data) as source:
        stream = CharacterStream(source, "ab\n")
        assert len(stream.take(100).xs) > 0
        for _ in range(2):
            with pytest.raises(StreamError, match=message):
                stream.take(100)


def test_an_alphabet_that_is_full():
    with Pipe(b"abc") as source:
        stream = CharacterStream(source, size=2)
        assert len(stream.take(5).xs) == 1
        with pytest.raises(StreamError, match="'c', which is none of the 2 symbols, at byte 2"):
            stream.take(5)


@pytest.mark.parametrize("alphabet", ["", "aba", "a\ud800"])
def test_an_alphabet_that_cannot_be_used(alphabet):
    with Pipe(b"") as source, pytest.raises(StreamError, match="cannot be used"):
        CharacterStream(source, alphabet)


BAD_CSV = {
    "1,x": "column 'b': 'x' is not a number",
    "1,inf": "column 'b': 'inf' is too large: numbers may go to ±3e\\+38",
    "1e39,2": "column 'a': '1e39' is too large",
    "1_0,2": "column 'a': '1_0' is not a number",
    "1": "it has 1 fields, but there are 2 columns",
    "1,2,3": "it has 3 fields, but there are 2 columns",
    '1,"2': "its quotes do not match .* a quoted field may not go over the end of a line",
    "1,\xff": "it is not valid UTF-8, at byte 18",
    "1," + "2" * (1 << 20): "it is longer than 1048576 bytes",
}
BAD_JSON = {
    '{"a": 1, "b"': "it is not valid JSON",
    '[{"a": 1}]': "it is a JSON list, not an object",
    "3": "it is a JSON int, not an object",
    '{"a": [1]}': r"column 'a': \[1\] is not a number",
    '{"a": {"b": 1}}': "column 'a': {'b': 1} is not a number",
    '{"a": true}': "column 'a': True is not a number",
    '{"b": "x"}': "column 'b': 'x' is not a number",
    '{"b": Infinity}': "column 'b': inf is too large",
    '{"b": 1' + "0" * 400 + "}": "column 'b': it is too large",
    '{"b": 1' + "0" * 9999 + "}": "its JSON cannot be read",
    "[" * 200_000: "its JSON cannot be read",
}


@pytest.mark.parametrize("bad", [*BAD_CSV, *BAD_JSON], ids=lambda bad: bad[:12])
def test_bad_rows(bad, tmp_path):
    csv = bad in BAD_CSV
    good = "1,2\n" if csv else '{"a": 1, "b": 2}\n'
    data = (("a,b\n" if csv else "") + 3 * good).encode() + bad.encode("latin-1")
    line, byte = data.count(b"\n") + 1, data.rindex(b"\n") + 1
    path = tmp_path / "rows"
    path.write_bytes(data + b"\n" + good.encode())
    options = {"format": "csv" if csv else "jsonl"}
    stream = RowStream(Source(path), **options)
    assert len(stream.take(10).xs) == 2
    message = rf"rows, line {line} \(byte {byte}\) is bad: {(BAD_CSV | BAD_JSON)[bad]}"
    with pytest.raises(StreamError, match=message + r'.*skip and count such rows \(bad = "skip"\)'):
        stream.take(10)
    stream = RowStream(Source(path), bad="skip", **options)
    assert len(stream.take(10).xs) == 3
    assert stream.counts == {"bad rows": 1}


def test_a_missing_value_that_may_not_be():
    with Pipe(b"a,b\n1,2\n3,\n") as source, pytest.raises(StreamError, match=r"line 3 .*: column 'b' has no value"):
        RowStream(source, missing="fail").take(1)


@pytest.mark.parametrize(("text", "format"), [("a,b\n1,2\n3", "csv"), ('{"a": 1, "b": 2}\n{"a": 3, "b"', "jsonl")])
def test_a_line_that_is_cut_off(text, format):
    with Pipe(text.encode()) as source, pytest.raises(StreamError, match="has no newline: it may be cut off"):
        RowStream(source, format=format).take(1)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n1,2\n", {"inputs": ["a", "c"]}, "has no column 'c'. It has 'a', 'b'"),
        ("a,b\n1,2\n", {"targets": ["c"]}, "has no column 'c'. It has 'a', 'b'"),
        ('{"a": 1}\n', {"inputs": ["c"], "format": "jsonl"}, "has no column 'c'. It has 'a' .*may be null"),
        ("a,b\nx,y\n", {}, "has no column to learn from: of 'a', 'b', none holds a number in the first row"),
        ("a,a\n1,2\n", {}, "line 1 .* the header names the column 'a' twice"),
        ('a,"b\n1,2\n', {}, "line 1 .* its quotes do not match"),
        ("a,b\n1,2\n", {"horizon": 0}, "with a horizon of 0, the target 'a' is an input of the same row"),
        ("a,b\n1,2\n", {"horizon": -1}, "the horizon must be 0 or more rows"),
        ("a,b\n1,2\n", {"delimiter": ", "}, "the delimiter must be one character"),
        ("a,b\n1,2\n", {"missing": "zero"}, "missing must be one of last, mean, fail, skip, not 'zero'"),
    ],
)
def test_columns_and_settings_that_do_not_fit(text, options, message):
    with Pipe(text.encode()) as source, pytest.raises(StreamError, match=message):
        RowStream(source, **options)


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(StreamError, match="nowhere does not exist"):
        Source(tmp_path / "nowhere")
    with pytest.raises(StreamError, match="is a folder"):
        Source(tmp_path)
    with pytest.raises(StreamError, match="cannot be opened"):
        Source("a\0b")

    def denied(*_, **__):
        raise PermissionError

    monkeypatch.setattr(builtins, "open", denied)
    with pytest.raises(StreamError, match="may not be read: permission denied"):
        Source(tmp_path / "secret")


def test_a_file_that_shrinks(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"ab" * 100_000)
    source = Source(path)
    assert source.size == 200_000
    stream, read = ByteStream(source), 0
    read += len(stream.take(10).xs)
    os.truncate(path, 150_000)
    with pytest.raises(StreamError, match="shrank while it was read: it had 200000 bytes and now has 150000"):
        while True:
            read += len(stream.take(1000).xs)
    assert read == (1 << 16) - 1  # what had been read before is handed out first


# Whatever comes, it is samples or a StreamError.


def make_any(source, kind, options, position=None):
    if kind == "bytes":
        return ByteStream(source, position=position)
    if kind == "characters":
        return CharacterStream(source, options["alphabet"], size=3, bad=options["bad"], position=position)
    rows = {name: options[name] for name in ("bad", "missing", "horizon", "header", "standardise")}
    return RowStream(source, format=kind, position=position, **rows)


kinds = st.sampled_from(["bytes", "characters", "csv", "jsonl"])
any_options = st.fixed_dictionaries(
    {
        "alphabet": st.sampled_from([None, "ab,1\n"]),
        "bad": policies,
        "missing": st.sampled_from(["last", "mean", "fail", "skip"]),
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
        stream.take(4)
        return saved(stream.position())


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just(10**400))
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
    for path in paths_in(position):
        original = reduce(lambda value, key: value[key], path, position)
        for wrong in (math.nan, 10**400, -1, 0 if isinstance(original, str) else "x"):
            if not (wrong == -1 and isinstance(original, float)):
                with Pipe(GOOD[kind]) as source, pytest.raises(StreamError):
                    make_any(source, kind, SOME, replaced(position, path, wrong))


@quick
@given(st.data(), kinds, any_options, values)
def test_any_position(data, kind, options, value):
    options = options | {"horizon": 2, "bad": "skip", "header": True}
    position = good_position(kind, options)
    path = data.draw(st.sampled_from(list(paths_in(position))))
    read_all(kind, options, GOOD[kind], replaced(position, path, value))


@quick
@given(values)
def test_a_task_from_any_position(position):
    with pytest.raises(StreamError):
        TaskStream(tasks.anbn(), position={} if position is None else position)


def test_another_source_is_read_as_the_first_one_was(tmp_path):
    """With its statistics and alphabet, columns by name, from the start."""
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    first.write_text("a,b\n" + "".join(f"{i},{i % 3}\n" for i in range(30)))
    second.write_text("b,a\n" + "".join(f"{i % 3},{i}\n" for i in range(5)))
    stream = RowStream(Source(first))
    stream.take(100)
    other = RowStream(Source(second), position=afresh(stream.position()))
    samples = other.take(1)
    assert samples is not None
    values = [*range(30), 0]
    deviation = np.std(values)
    assert samples.xs[0, 0] == pytest.approx((0 - np.mean(values)) / deviation)
    assert other.position()["lines"] == 3
    second.write_text("b,c\n1,2\n")
    with pytest.raises(StreamError, match="has no column 'a'. It has"):
        RowStream(Source(second), position=afresh(stream.position()))

    text = tmp_path / "text"
    text.write_text("abcabc")
    characters = CharacterStream(Source(text))
    characters.take(100)
    text.write_text("cba")
    again = CharacterStream(Source(text), position=afresh(characters.position())).take(100)
    assert again is not None
    assert again.xs.tolist() == [2, 1]
