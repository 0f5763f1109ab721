"""The samples that streams return, and the messages for bad input."""

from itertools import product

import numpy as np
import pytest
from stream_pipes import Pipe, row_stream

from norewind.streams import ByteStream, CharacterStream, ReadOptions, RowStream, Source, StreamError

JSONL = ReadOptions("jsonl")


def rows_of(text, **options):
    with Pipe(text.encode()) as source:
        stream = row_stream(source, **options)
        parts = list(iter(lambda: stream.take(7), None))
        return stream, *(np.concatenate([part[i] for part in parts]) for i in range(5))


def test_bytes_and_what_follows():
    with Pipe(b"abcd\n") as source:
        stream = ByteStream(source)
        xs, targets, *rest = stream.take(10)
    assert bytes(xs.tolist()) == b"abcd"
    assert bytes(targets.tolist()) == b"bcd\n"
    assert xs.dtype == targets.dtype == np.int32
    assert rest == [None] * 9
    assert stream.decode(stream.encode("aé")) == "aé".encode()


def test_a_given_alphabet_names_the_symbols():
    with Pipe("b€ab".encode()) as source:
        stream = CharacterStream(source, "ab€")
        xs, targets, *_ = stream.take(10)
    assert stream.symbols == 3
    assert [*xs, targets[-1]] == [1, 2, 0, 1]
    assert stream.decode(xs) == "b€a".encode()
    np.testing.assert_array_equal(stream.encode("€a"), [2, 0])
    with pytest.raises(StreamError, match="'x' at index 1, which is not in the alphabet so far: 'ab€'"):
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


def test_the_alphabet_in_a_position_covers_only_the_samples_returned():
    with Pipe(b"abcd") as source:
        stream = CharacterStream(source)
        stream.take(1)
        assert stream.position()["alphabet"] == "ab"


def test_characters_without_a_symbol_are_skipped_and_counted():
    with Pipe(b"a\xff\xe2\x82b?\nab\xf0\x9f") as source:
        stream = CharacterStream(source, "ab\n", bad="skip")
        xs, targets, *_ = stream.take(10)
        assert stream.decode([*xs, targets[-1]]) == b"ab\nab"
        assert stream.counts == {"invalid bytes": 2, "unknown symbols": 1}
        assert stream.take(1) is None
        assert stream.counts == {"invalid bytes": 3, "unknown symbols": 1}


@pytest.mark.parametrize(
    "options", [{"horizon": 0}, {"horizon": 1}, {"horizon": 3}, {"steps": (2, 5)}, {"steps": (4,)}]
)
def test_standardisation_uses_what_was_known(options):
    data = np.random.default_rng(0).normal(5, [1, 3], (40, 2))
    text = "a,b\n" + "".join(f"{a!r},{b!r}\n" for a, b in data.tolist())
    stream, xs, targets, scales, last, scales_after = rows_of(text, inputs=["a"], targets=["b"], **options)
    assert stream.steps == options.get("steps", {0: (0,), 1: (1,), 3: (1, 2, 3)}[options.get("horizon", 1)])
    assert stream.horizon == stream.steps[-1]
    assert xs.shape == (40, 1)
    assert targets.shape == last.shape == (40, len(stream.steps))
    assert scales.shape == scales_after.shape == (40, len(stream.steps), 2)
    for t, (place, step) in product(range(len(xs)), enumerate(stream.steps)):
        seen = data[: t + 1, 0]
        np.testing.assert_allclose(xs[t, 0], (seen[-1] - seen.mean()) / (seen.std() or 1), rtol=1e-5, atol=1e-6)
        known = data[: max(0, t + 1 - max(step, 1)), 1]
        if len(known) < 10:
            assert np.isnan([targets[t, place], last[t, place], *scales[t, place]]).all()
        else:
            np.testing.assert_allclose(scales[t, place], [known.mean(), known.std()], rtol=1e-12)
            np.testing.assert_allclose(targets[t, place], (data[t, 1] - known.mean()) / known.std(), rtol=1e-5)
            np.testing.assert_allclose(last[t, place], (known[-1] - known.mean()) / known.std(), rtol=1e-5)
        now = data[: t + 1, 1]
        np.testing.assert_allclose(
            scales_after[t, place], [now.mean(), now.std()] if t >= 9 else [np.nan] * 2, rtol=1e-12
        )


def test_a_constant_column_is_zero_and_nothing_to_learn_from_and_a_shock_is_clipped():
    _, xs, targets, *_ = rows_of("a\n" + "5\n" * 20 + "6\n" + "5\n" * 3)
    assert (xs[:20] == 0).all()
    assert np.isnan(targets[:21]).all()
    assert np.isfinite(targets[21:]).all()
    _, xs, targets, *_ = rows_of("a\n" + "1\n2\n" * 10 + "1e30\n" + "-1e30\n")
    assert np.nanmax(targets) == targets[20] == 100


def test_raw_numbers():
    stream, xs, targets, scales, last, scales_after = rows_of("a,b\n1,2\n3,\n500,6\n", standardise=False)
    assert stream.inputs == stream.targets == ["a", "b"]
    np.testing.assert_array_equal(xs, [[1, 2], [3, 2], [500, 6]])
    np.testing.assert_array_equal(targets, [[np.nan, np.nan], [3, np.nan], [500, 6]])
    np.testing.assert_array_equal(last, [[np.nan, np.nan], [1, 2], [3, 2]])
    assert np.isnan(scales[0]).all()
    assert (scales[1:] == [0, 1]).all()
    assert (scales_after == [0, 1]).all()
    assert xs.dtype == targets.dtype == last.dtype == np.float32
    assert scales.dtype == scales_after.dtype == np.float64


def test_raw_targets_of_the_same_row_are_known_from_the_first_row_on():
    _, xs, targets, scales, last, _ = rows_of(
        "a,b\n1,200\n3,-400\n", inputs=["a"], targets=["b"], horizon=0, standardise=False
    )
    np.testing.assert_array_equal([xs[:, 0], targets[:, 0], last[:, 0]], [[1, 3], [200, -400], [np.nan, 200]])
    assert (scales == [0, 1]).all()


@pytest.mark.parametrize(
    ("missing", "filled"), [("last", [1, 1, 5, 5, 7]), ("mean", [1, 1, 5, 3, 7]), ("skip", [1, 5, 7])], ids=str
)
def test_missing_inputs(missing, filled):
    stream, xs, *_ = rows_of("a,b\n1,0\n,0\n5,0\nNA,0\n7,1\n", inputs=["a"], missing=missing, standardise=False)
    assert xs[:, 0].tolist() == filled
    assert stream.counts == ({"rows with missing values": 2} if missing == "skip" else {})


def test_missing_inputs_before_the_first_value():
    assert rows_of("a,b\n,1\n2,1\n", inputs=["a", "b"], standardise=False)[1].tolist() == [[0, 1], [2, 1]]


def test_a_label_that_comes_late_is_a_horizon_and_a_missing_one_is_not_learned_from():
    text = '{"x": 1, "label": null}\n{"x": 2, "label": 10}\n{"x": 3}\n{"x": 4, "label": "30"}\n'
    _, xs, targets, _, last, _ = rows_of(
        text, read_options=JSONL, inputs=["x"], targets=["label"], missing="stop", standardise=False
    )
    assert xs[:, 0].tolist() == [1, 2, 3, 4]
    np.testing.assert_array_equal(targets[:, 0], [np.nan, 10, np.nan, 30])
    np.testing.assert_array_equal(last[:, 0], [np.nan, np.nan, 10, 10])


def test_columns_are_by_default_those_with_a_number_in_the_first_row():
    stream, xs, *_ = rows_of("day,a,,b\nmon,1,7,x\ntue,2,8,y\n", standardise=False)
    assert stream.inputs == ["a", "3"]
    assert xs.tolist() == [[1, 7], [2, 8]]
    stream, *_ = rows_of("1;2\n3;4\n", read_options=ReadOptions(header=False, delimiter=";"), targets=["2"], horizon=0)
    assert (stream.inputs, stream.targets) == (["1"], ["2"])


def test_byte_order_mark_windows_line_ends_quotes_and_blank_lines():
    text = '\ufeffa,"b ""x"", c"\r\n1,"2"\r\n\r\n\n3,4\r\n5,6'
    stream, xs, targets, *_ = rows_of(text, standardise=False)
    assert stream.inputs == ["a", 'b "x", c']
    assert xs.tolist() == [[1, 2], [3, 4], [5, 6]]
    np.testing.assert_array_equal(targets, [[np.nan, np.nan], [3, 4], [5, 6]])


# Bad input.


@pytest.mark.parametrize("make", [ByteStream, CharacterStream, lambda source: RowStream(source).take(1)])
def test_an_empty_stream(make):
    with Pipe(b"") as source, pytest.raises(StreamError, match="file descriptor \\d+ is empty"):
        make(source).take(1)


@pytest.mark.parametrize(
    ("make", "data", "message"),
    [
        (ByteStream, b"a", r"ends at byte 1, before the first sample \(bytes: 1\). A sample needs two bytes"),
        (
            CharacterStream,
            "€".encode(),
            r"ends at byte 3, .* \(characters: 1\). A sample needs two characters",
        ),
        (
            lambda source: CharacterStream(source, "ab", bad="skip"),
            b"xay\xff",
            r"ends at byte 4, .*\(characters: 1, unknown symbols skipped: 2, invalid bytes skipped: 1\)",
        ),
        (RowStream, b"a,b", r"ends at byte 3, before the first sample \(rows: 0\)"),
        (RowStream, b"a,b\n\n", r"ends at byte 5, before the first sample \(rows: 0\). A sample needs a row"),
        (
            lambda source: RowStream(source, inputs=["a"], read_options=ReadOptions(bad="skip")),
            b"a\n1,2\n3,\n",
            r"ends at byte 9, before the first sample \(rows: 0, bad rows skipped: 2\)",
        ),
    ],
)
def test_a_stream_that_is_too_short(make, data, message):
    with Pipe(data) as source, pytest.raises(StreamError, match=message):
        make(source).take(1)


@pytest.mark.parametrize("horizon", [1, 5])
def test_one_row_is_a_sample(horizon):
    _, xs, targets, *_ = rows_of("a,b\n1,2\n", horizon=horizon, standardise=False)
    assert xs.tolist() == [[1, 2]]
    assert np.isnan(targets).all()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"ab\nac", r"has the character 'c', which is not one of the 3 symbols, at byte 4 \(line 2\)"),
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
        with pytest.raises(StreamError, match="'c', which is not one of the 2 symbols, at byte 2"):
            stream.take(5)


@pytest.mark.parametrize("alphabet", ["", "aba", "a\ud800"])
def test_an_alphabet_that_cannot_be_used(alphabet):
    with Pipe(b"") as source, pytest.raises(StreamError, match="cannot be used"):
        CharacterStream(source, alphabet)


BAD_CSV = {
    "1,x": "column 'b': 'x' is not a number",
    "1,inf": "column 'b': 'inf' is too large: numbers must be within ±3e\\+38",
    "1e39,2": "column 'a': '1e39' is too large",
    "1_0,2": "column 'a': '1_0' is not a number",
    "1": "it has 1 fields, but there are 2 columns",
    "1,2,3": "it has 3 fields, but there are 2 columns",
    '1,"2': "its quotes do not match .* a quoted field cannot contain a line break",
    "1,\xff": "it is not valid UTF-8, at byte 18",
    "1," + "2" * (1 << 21): "it is longer than 1048576 bytes",
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
    read_options = ReadOptions() if csv else JSONL
    message = rf"rows, line {line} \(byte {byte}\) is bad: {(BAD_CSV | BAD_JSON)[bad]}"
    with RowStream(Source(path), read_options=read_options) as stream:
        assert len(stream.take(10).xs) == 3
        with pytest.raises(StreamError, match=message + r'.*skip and count such rows \(bad="skip"\)') as caught:
            stream.take(10)
        assert "cut off" not in str(caught.value)
    with row_stream(Source(path), read_options=read_options, bad="skip") as stream:
        assert len(stream.take(10).xs) == 4
        assert stream.counts == {"bad rows": 1}


def test_a_missing_value_that_is_not_allowed():
    with Pipe(b"a,b\n1,2\n3,\n") as source:
        stream = RowStream(source, read_options=ReadOptions(missing="stop"))
        assert len(stream.take(2).xs) == 1
        with pytest.raises(StreamError, match=r"line 3 .*: column 'b' has no value"):
            stream.take(1)


@pytest.mark.parametrize(("text", "format"), [("a,b\n1,2\n3", "csv"), ('{"a": 1, "b": 2}\n{"a": 3, "b"', "jsonl")])
def test_a_line_that_is_cut_off(text, format):
    with Pipe(text.encode()) as source:
        stream = RowStream(source, read_options=ReadOptions(format))
        assert len(stream.take(2).xs) == 1
        with pytest.raises(StreamError, match="it has no newline and may be cut off"):
            stream.take(1)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n1,2\n", {"inputs": ["a", "c"]}, "has no column 'c'. It has 'a', 'b'"),
        ("a,b\n1,2\n", {"targets": ["c"]}, "has no column 'c'. It has 'a', 'b'"),
        ("a;b\n1;2\n", {}, 'has only one column, .* between its parts: pass delimiter=";"'),
        ("a;b\n1;2\n", {"targets": ["b"]}, 'has only one column, .* between its parts: pass delimiter=";"'),
        (
            "a,b\n31/12/2012,2\n",
            {"inputs": ["a"], "targets": ["b"]},
            "'a' is dates such as '31/12/2012', .* 2024-05-31.$",
        ),
        ('a,b\n1,"1,5"\n2,"2,5"\n', {"targets": ["b"]}, "the target 'b' is text: '1,5' uses a decimal comma"),
        ("a,b\n1,2\n", {"targets": ["a,b"]}, "has no column 'a,b'. It has .*. Name the columns separately: a b"),
        (
            '{"a": 1}\n',
            {"inputs": ["c"], "read_options": JSONL},
            "has no column 'c'. It has 'a' .*may be null at first",
        ),
        (
            "a,b\nx,y\n",
            {},
            "has no usable numeric column to learn from .* columns are 'a', 'b'.* 'a' \\(text\\), 'b' \\(text\\)",
        ),
        ("a,a\n1,2\n", {}, "line 1 .* the header names the column 'a' twice"),
        ('a,"b\n1,2\n', {}, "line 1 .* its quotes do not match"),
        ("a,b\n1,2\n", {"horizon": 0}, "with a horizon of 0, the target 'a' is an input of the same row"),
        ("a,b\n1,2\n", {"horizon": -1}, "the horizon must be 0 to 1,000,000 rows, not -1"),
        ("a,b\n1,2\n", {"steps": (3, 2)}, "the steps must be in increasing order"),
        ("a,b\n1,2\n", {"steps": (0, 2)}, "the steps must be 1 to 1,000,000 rows, or 0 alone"),
        ("a,b\n1,2\n", {"read_options": ReadOptions(delimiter=", ")}, "the delimiter must be one character"),
        ("a,b\n1,2\n", {"missing": "zero"}, "missing must be one of last, mean, stop, skip, not 'zero'"),
    ],
)
def test_columns_and_settings_that_do_not_fit(text, options, message):
    with Pipe(text.encode()) as source, pytest.raises(StreamError, match=message):
        row_stream(source, **options)
