"""Reading many lines together gives the same samples, positions, counts and errors as reading them one by one."""

import json
import re
from functools import partialmethod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_pipes import Pipe, drain, loaded, policies, quick, row_stream

from norewind.streams import KeyedStream, ReadOptions, RowStream, Source, StreamError
from norewind.streams.stream import BadRow
from norewind.streams.table.conversion import KeyColumn
from norewind.streams.table.python_rows import PythonRows

# The first rows, from which column types are inferred.
FIRST, GOOD = {"a": 1, "mode": "eco", "t": "2024-05-01", "b": 2}, 12


def first_of(self, peek, count=1):
    return peek(self, 1)


@pytest.fixture
def one_by_one(monkeypatch):
    """Call a function with streams that read every row separately."""

    whole = PythonRows.peek

    def call(function):
        with monkeypatch.context() as patched:
            for source in (Source, PythonRows):
                patched.setattr(source, "peek", partialmethod(first_of, source.peek))
            # Columns are inferred from the same first rows.
            patched.setattr(PythonRows, "preview", whole)
            return function()

    return call


ordinary = st.sampled_from(
    ["1", "-2.5", "3e2", " 4", "0", "-0", "1e-9", "7.25", "0.1234567890123456789", "12345678901234567890"]
)
odd = st.sampled_from(
    [
        "",
        "NA",
        "nan",
        "-nan",
        "null",
        "x",
        "inf",
        "1e999",
        '"5"',
        '"5,5"',
        '"',
        "1_0",
        "é",
        "٣",
        "true",
        "\r",
        "4\r",
        "\0",
        "1e400",
        ".",
    ]
)
number = st.one_of(*[ordinary] * 8, odd)
name = st.one_of(*[st.sampled_from(["eco", "fast", "a b", "ä", 'a"b', "\\", "\x7f", '"q,r"', "k_1", " "])] * 6, odd)
time = st.sampled_from(["2024-05-01", "2024-05-01T10:00", "2024/05/02 06:00", "1700000000", "", "soon"])
end = st.sampled_from(["\n", "\n", "\n", "\n", "\r\n", "\n\n", "\r\n\r\n", "\n \n"])
csv_lines = st.lists(st.tuples(number, name, time, number, end), max_size=40)


def csv_of(lines, last):
    text = (
        "a,mode,t,b\n"
        + "1,eco,2024-05-01,2\n" * GOOD
        + "".join(f"{a},{mode},{t},{b}{end}" for a, mode, t, b, end in lines)
    )
    return text.encode().rstrip(b"\n") + last


def options_of(data, keyed):
    inputs = data.draw(st.sampled_from([["a"], ["a", "mode"], ["a", "t"], ["mode", "t", "a"]]))
    chosen = {
        "missing": data.draw(st.sampled_from(["last", "mean", "stop", "skip"])),
        "bad": data.draw(policies),
        "copy": data.draw(st.sampled_from([[], ["mode"], ["a", "t"]])),
        "inputs": [name for name in inputs if name != "mode" or not keyed],
        "targets": ["b"],
        "horizon": data.draw(st.integers(0, 2)),
    }
    if keyed:
        chosen |= {"key": "mode", "shard": data.draw(st.sampled_from([(0, 1), (0, 2), (1, 2)]))}
    return chosen


def drained(make, source, counts, options):
    """Return all samples, the positions, and how the stream ended, possibly at once."""
    try:
        return drain(row_stream(source, make, **options), counts)
    except StreamError as error:
        return [], {}, re.sub(r"descriptor \d+", "descriptor", str(error))


def check(text, counts, options, one_by_one):
    def opened(position=None):
        with Pipe(text) as source:
            at = {} if position is None else {"position": loaded(position)}
            return drained(KeyedStream if "key" in options else RowStream, source, counts, options | at)

    samples, positions, ending = opened()
    slowly = one_by_one(opened)
    assert samples == slowly[0]
    assert positions == slowly[1]
    assert ending == slowly[2]
    for taken, position in positions.items():
        assert opened(position)[0] == samples[taken:]


ODD = [
    "",
    "NA",
    "-nan",
    "x",
    "inf",
    "1e999",
    '"5"',
    '"5,5"',
    '"',
    "1_0",
    "é",
    "٣",
    "true",
    "4\r",
    "\0",
    "\x7f",
    "\\",
    "1,2",
]


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("bad", ["stop", "skip"])
@pytest.mark.parametrize("column", range(4))
def test_one_unusual_field_among_plain_ones(one_by_one, column, bad, keyed):
    options = {"inputs": ["a", "t"], "targets": ["b"], "copy": ["t"], "bad": bad, "missing": bad}
    options |= {"key": "mode"} if keyed else {"inputs": ["a", "mode", "t"]}
    rows = [[f"{i * i % 7}.5", f"m{i % 3}", f"2024-05-{i + 1}", str(-i)] for i in range(10, 31)]
    for odd in ODD:
        rows[13] = [odd if place == column else field for place, field in enumerate(rows[12])]
        text = "a,mode,t,b\n" + "\n".join(map(",".join, rows)) + "\n"
        check(text.encode(), [9, 30], options, one_by_one)
        objects = [json.dumps(dict(zip(["a", "mode", "t", "b"], row, strict=True))) for row in rows]
        check(
            "\n".join(objects).encode() + b"\n", [9, 30], options | {"read_options": ReadOptions("jsonl")}, one_by_one
        )


@pytest.mark.parametrize("number", [0, 1, 2])
def test_rows_of_other_shards_are_left_to_the_next_take(one_by_one, number):
    lines = "".join(f"k{i % 5},{i * i % 7}\n" for i in range(40))
    check(f"key,a\n{lines}".encode(), [3, 7], {"key": "key", "shard": (number, 3)}, one_by_one)


@pytest.mark.parametrize(
    ("text", "read_options"),
    [
        ("a\n" + "1\n2\n\n3\r\n\r\n" * 5, ReadOptions()),
        ("\ufeff" + "1,2\n" * 9, ReadOptions(header=False)),
        ("\ufeff" + '{"1": 1, "2": 2}\n' * 9, ReadOptions("jsonl")),
        ('{"a": 1}\n' * 9 + '{"a": 2} {"a": 3}\n{"a":\n4}\n', ReadOptions("jsonl")),
        ('{"a": 1}\n' * 9 + '{"a": 2} {"a": 3}\n\n{"a": 4}\n', ReadOptions("jsonl")),
    ],
    ids=["blank lines", "mark", "mark before an object", "objects across lines", "two objects in a line"],
)
@pytest.mark.parametrize("bad", ["stop", "skip"])
def test_lines_that_look_like_something_else(one_by_one, text, read_options, bad):
    check(text.encode(), [30], {"read_options": read_options, "bad": bad}, one_by_one)


def test_a_byte_order_mark_is_not_part_of_a_category(one_by_one):
    options = {"read_options": ReadOptions(header=False), "inputs": ["1"], "targets": ["2"]}
    check(("\ufeff" + "eco,1\nfast,2\n" * 9).encode(), [30], options, one_by_one)
    with Pipe(("\ufeff" + "eco,1\nfast,2\n" * 9).encode()) as source:
        stream = RowStream(source, **options)
        stream.take(30)
        assert stream.position()["categories"] == {"1": ["eco", "fast"]}


@quick
@given(
    st.one_of(
        st.text(min_size=1),
        st.text('ab\x7f\\"é\t ', min_size=1),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.booleans(),
    )
)
def test_a_key_is_the_json_of_its_value(value):
    assert KeyColumn("key").of(value) == json.dumps(value).encode()


def test_a_line_that_grows_after_it_was_read_is_a_bad_row(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a\n" + "1\n2\n" * 5 + "3")
    with RowStream(Source(path, final=True)) as stream:
        assert len(stream.take(100).xs) == 11
    path.write_text("a\n" + "1\n2\n" * 5 + "35\n" + "4\n" * 9)
    with (
        RowStream(Source(path), position=stream.position()) as stream,
        pytest.raises(StreamError, match="continues a line that had no newline yet"),
    ):
        stream.take(100)


many = settings(quick, max_examples=120)
counts = st.lists(st.integers(1, 25), min_size=1, max_size=4)


@many
@given(st.data(), csv_lines, st.sampled_from([b"", b"\n", b"\r\n", b"\xff\n", b"\n\n"]), counts, st.booleans())
def test_csv(one_by_one, data, lines, last, counts, keyed):
    check(csv_of(lines, last), counts, options_of(data, keyed), one_by_one)


plain = st.sampled_from([1, 2.5, -3, 0, 1e300, 10**25, -0.0, 1e-320, 123456789012345678901, None, "4", "5.5"])
strange = st.sampled_from([True, "x", "", [1], {}, 10**400, "1_0", float("nan"), float("inf"), "\ud800"])
values = st.one_of(*[plain] * 6, strange)
objects = st.fixed_dictionaries(
    {"a": values, "mode": st.one_of(name, values), "b": values},
    optional={"t": time, "more": st.dictionaries(name, values, max_size=2), "é": name},
)
raw = st.sampled_from(
    [
        "",
        " ",
        "{",
        "[1]",
        "3",
        "null",
        '{"a": 1, "a": 2, "mode": 1, "b": 1}',
        '{"b": -0, "a": 01}',
        '{"a": 1.0e5, "b": 1E400}',
    ]
)
json_lines = st.lists(st.one_of(*[objects.map(json.dumps)] * 8, raw), max_size=30)


@many
@given(st.data(), json_lines, st.sampled_from(["", "\n"]), counts, st.booleans())
def test_json_lines(one_by_one, data, lines, last, counts, keyed):
    text = "\n".join([*[json.dumps(FIRST)] * GOOD, *lines]) + last
    options = options_of(data, keyed) | {"read_options": ReadOptions("jsonl")}
    check(text.encode(), counts, options, one_by_one)


@many
@given(st.data(), st.lists(objects, max_size=30), counts)
def test_rows_from_python(one_by_one, data, rows, counts):
    options = options_of(data, False)

    def opened():
        return drained(RowStream, PythonRows([*[FIRST] * GOOD, *rows]), counts, options)

    assert opened() == one_by_one(opened)


def test_a_plain_file_is_read_in_blocks(tmp_path, monkeypatch):
    """This makes sure that the fast path is used."""
    path = tmp_path / "rows.csv"
    path.write_text("key,a,b\n" + "".join(f"k{i % 7},{i * i % 11},{i / 3!r}\n" for i in range(30_000)))
    sizes, drop = [], Source.drop

    def counted(self, records):
        sizes.append(len(records))
        drop(self, records)

    monkeypatch.setattr(Source, "drop", counted)
    with KeyedStream(Source(path), "key") as stream:
        taken = [stream.take(7_000) for _ in range(5)]
    assert [len(part.xs) for part in taken] == [7_000] * 4 + [2_000]
    np.testing.assert_array_equal(np.concatenate([part.lines for part in taken]), np.arange(2, 30_002))
    assert sizes.count(1) < 10


@pytest.mark.parametrize(
    "values", [["a", "b c"], ['"', "a"], ["\\", "a"], ["a\n", "b"], ["ä", "b"], ["\x7f"], ["1", 1, True, 1.5], []]
)
def test_many_keys_are_converted_like_single_ones(values):
    key = KeyColumn("sensor")
    assert key.of_all(values) == [key.of(value) for value in values]
    for bad in ("", None, [1]):
        with pytest.raises(BadRow, match="column 'sensor' has no key"):
            key.of_all([*values, bad, "later"])
