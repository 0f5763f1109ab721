"""The columns of a table are inferred, selected and converted."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_pipes import Pipe, loaded, quick, row_stream, saved

from norewind.streams import ReadOptions, RowStream, Source, StreamError, restart_position
from norewind.streams.table.columns import as_time, infer_kind, time_of, times_ahead

JSONL = ReadOptions("jsonl")


def stream_of(text, **options):
    with Pipe(text.encode()) as source:
        return row_stream(source, **options)


def taken(text, **options):
    with Pipe(text.encode()) as source:
        stream = row_stream(source, **options)
        return stream, stream.take(1_000)


@pytest.mark.parametrize(
    ("values", "kind", "why"),
    [
        (["1", "2.5", "", "NA"], "number", ""),
        (["", "x", "3", "4"], "number", ""),
        (["x", "y", "3"], "category", "text"),
        (["", None], "number", "empty in the first 2 rows"),
        ([True, False, None], "boolean", ""),
        (["True", "false"], "boolean", ""),
        ([str(i) for i in range(7, 40)], "number", "a row counter"),
        ([str(2 * i) for i in range(40)], "number", ""),
        ([str(i) for i in range(10)], "number", ""),
        ([1_700_000_000 + 60 * i for i in range(40)], "time", "a timestamp"),
        ([1_700_000_000_000 + 60 * i for i in range(40)], "time", "a timestamp"),
        ([1_700_000_000 - 60 * i for i in range(40)], "number", ""),
        ([f"{1958 + i // 12}{i % 12 + 1:02}28" for i in range(2, 25)], "number", "dates, such as 19580328"),
        ([20240101 + i for i in range(40)], "number", "a row counter"),
        ([20240150 + 2 * i for i in range(40)], "number", ""),
        (["2024-05-01", "2024/05/02"], "time", "a timestamp"),
        (["2013-01-01T06:00:00Z"], "time", "a timestamp"),
        (["1949-01", "1949-02"], "time", "a timestamp"),
        ([[1, 2]], None, "neither a number nor text"),
    ],
    ids=str,
)
def test_columns_are_judged_by_most_of_their_first_values(values, kind, why):
    assert infer_kind(values) == (kind, why)


def test_times_are_parsed():
    assert time_of("1970-01-02") == time_of("1970-01-01T19:00-05:00") == 86_400
    assert time_of(1_700_000_000_000) == 1_700_000_000
    assert time_of("1700000000.5") == 1_700_000_000.5


@pytest.mark.parametrize("words", [("true", "false"), ("True", "False"), (" TRUE", "FALSE ")])
def test_truth_values_are_the_same_classes_however_they_are_written(words):
    """A file may have True, and a request for a service has true."""
    rows = "".join(f"{words[i % 3 == 0]},{i * i % 7}\n" for i in range(12))
    stream, before = taken("flag,y\n" + rows, read_options=ReadOptions(classes=True), targets=["flag"])
    assert stream.classes == ["false", "true"]
    row, _ = stream.read_back({"flag": True, "y": 3})
    assert stream.peek([row]).targets[0, 0] == before.targets[1, 0]


def test_ignored_columns_are_reported():
    rows = "".join(f"{i},2024-01-{i % 28 + 1:02},eco,,{i * i % 11},x\n" for i in range(30))
    stream = stream_of("id,day,mode,label,power,note\n" + rows)
    assert (stream.inputs, stream.targets) == (["power"], ["power"])
    assert stream.ignored == {
        "id": "a row counter",
        "day": "a timestamp",
        "mode": "text",
        "label": "empty in the first 30 rows",
        "note": "text",
    }
    stream = stream_of("id,day,mode,label,power,note\n" + rows, inputs=["power"])
    assert stream.ignored["id"] == "not among the inputs"


def test_one_unusual_first_row_does_not_decide_the_type():
    stream = stream_of("a,b\n,1\n2,x\n3,3\n4,4\n", bad="skip")
    assert stream.inputs == ["a", "b"]


def test_the_number_of_rows_is_never_forecast_by_default():
    rows = "".join(f"{i}\n" for i in range(50))
    with pytest.raises(StreamError, match=r"no usable numeric column to learn from.*'n' \(a row counter\)"):
        stream_of("n\n" + rows)
    assert stream_of("n\n" + rows, inputs=["n"]).targets == ["n"]


def test_the_first_rows_suffice_to_infer_columns():
    """The result does not depend on the pieces in which they arrive."""
    rows = "a,b\n" + "".join(f"{i * i},{'x' if i >= 100 else i % 5}\n" for i in range(300))
    for sizes in ([1], [7, 100], [1 << 16]):
        with Pipe(rows.encode(), sizes=sizes) as source:
            stream = RowStream(source)
            assert stream.inputs == ["a", "b"]
            assert len(stream.take(1_000).xs) == 100
            with pytest.raises(StreamError, match="line 102"):
                stream.take(1)


def test_categories_booleans_and_times_as_inputs():
    text = "t,mode,on,y\n2024-01-01 00:00,eco,true,1\n2024-01-01 06:00,fast,false,2\n2024-01-01 18:00,eco,,3\n"
    _, samples = taken(text, inputs=["t", "mode", "on", "y"], targets=["y"], standardise=False)
    on, y, gap = samples.xs[:, :3].T
    assert on.tolist() == [1, 0, 0]
    assert y.tolist() == [1, 2, 3]
    assert gap.tolist() == [0, 6 * 3600, 12 * 3600]
    assert samples.xs[:, 3:19].argmax(axis=1).tolist() == [0, 1, 0]
    assert samples.xs[:, 3:19].sum(axis=1).tolist() == [1, 1, 1]
    np.testing.assert_allclose(samples.xs[:, 19:], [[1, 0], [0, 1], [0, -1]], atol=1e-6)


@pytest.mark.parametrize(("values", "width"), [(16, 16), (17, 64)])
def test_every_category_of_the_first_rows_has_an_input(values, width):
    text = "mode,y\n" + "".join(f"m{i},{i * i}\n" for i in range(values)) + "m3,1\n"
    stream, samples = taken(text, inputs=["mode"], targets=["y"])
    assert stream.width == width
    assert samples.xs.sum(axis=1).tolist() == [1] * (values + 1)
    assert samples.xs.argmax(axis=1).tolist() == [*range(values), 3]


def test_nested_values_have_names():
    rows = [{"sensor": {"temp": i * i, "unit": "C"}, "axes": [i % 3, -i], "tags": []} for i in range(5)]
    stream, samples = taken("\n".join(map(json.dumps, rows)), read_options=JSONL, standardise=False)
    assert stream.inputs == ["sensor.temp", "axes.0", "axes.1"]
    assert samples.xs.tolist() == [[i * i, i % 3, -i] for i in range(5)]
    with pytest.raises(StreamError, match=r"no column 'axes'. It has .*'axes.0'"):
        stream_of("\n".join(map(json.dumps, rows)), read_options=JSONL, inputs=["axes"])


def test_values_come_back_as_they_were_sent():
    text = "id,y\na,0\nb,0.1\nc,\nd,123456789.123\n"
    _, samples = taken(text, copy=["id"])
    np.testing.assert_array_equal(samples.values[:, 0], [0, 0.1, np.nan, 123456789.123])
    assert samples.lines.tolist() == [2, 3, 4, 5]
    assert [json.loads(row) for row in samples.copied] == [{"id": name} for name in "abcd"]


cells = st.sampled_from(["", "eco", "fast", "1", "2024-01-01", "2024-01-01T05:00", "true", "-3.5", "[1]", "x\xe4"])


@quick
@given(st.lists(st.tuples(cells, cells, st.integers(0, 9)), min_size=1, max_size=12), st.integers(1, 11), st.booleans())
def test_any_table_resumes_anywhere(rows, cut, standardise):
    text = "a,b,y\n" + "".join(f"{a},{b},{y}\n" for a, b, y in rows)
    options = {"inputs": ["a", "b", "y"], "targets": ["y"], "bad": "skip", "copy": ["a"], "standardise": standardise}
    with Pipe(text.encode()) as source:
        stream = row_stream(source, **options)
        whole = stream.take(100)
        assert stream.take(100) is None
        end = saved(stream.position())
    with Pipe(text.encode()) as source:
        stream = row_stream(source, **options)
        first = stream.take(cut)
        position = loaded(saved(stream.position()))
    with Pipe(text.encode()) as source:
        stream = row_stream(source, position=position, **options)
        rest = stream.take(100)
        assert rest is None or stream.take(100) is None
        assert saved(stream.position()) == end
    for both, part, other in zip(whole, first, rest or [None] * len(first), strict=True):
        if both is None:
            assert part is other is None
            continue
        joined = part if rest is None else np.concatenate([part, other])
        np.testing.assert_array_equal(both, joined)


leaf = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.sampled_from(["", "eco", "fast", "2024-05-01T10:00", "2024/05/01", "1700000000", "NaN", "true", "«"]),
)
nested = st.recursive(
    leaf,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["x", "y.z", "0", ""]), inner),
    max_leaves=5,
)
objects = st.lists(
    st.dictionaries(st.sampled_from(["a", "b", "t", "a.x"]), nested, max_size=4), min_size=1, max_size=10
)


@quick
@given(objects, st.data())
def test_any_json_resumes_anywhere_and_in_any_cut(rows, data):
    """Samples do not depend on how the data arrives in pieces, and bad rows are rejected with our own messages."""
    text = "".join(json.dumps(row) + "\n" for row in [*rows, {"a": 1, "b": "eco", "t": "2024-05-01"}])
    names = st.lists(st.sampled_from(["a", "b", "t", "a.x", "a.0"]), unique=True, max_size=3)
    options = {
        "read_options": ReadOptions("jsonl", classes=data.draw(st.booleans())),
        "inputs": data.draw(names) or None,
        "targets": data.draw(names)[:1] or None,
        "copy": ["t"],
        "bad": "skip",
        "missing": data.draw(st.sampled_from(["last", "mean", "skip"])),
        "horizon": data.draw(st.sampled_from([0, 1, 3])),
    }

    def opened(position=None):
        return row_stream(source, position=position, **options)

    try:
        with Pipe(text.encode()) as source:
            stream = opened()
            whole = stream.take(100)
            stream.take(100)
            end = saved(stream.position())
    except StreamError:
        return
    position, parts = None, []
    for cut in [*data.draw(st.lists(st.integers(1, 4), max_size=4)), 100]:
        with Pipe(text.encode()) as source:
            stream = opened(position)
            part = stream.take(cut)
            parts += [] if part is None else [part]
            if cut == 100 and part is not None:
                stream.take(100)
            position = loaded(saved(stream.position()))
        if part is None:
            break
    assert saved(position) == end
    for both, *some in zip(whole, *parts, strict=True):
        np.testing.assert_array_equal(both, None if both is None else np.concatenate(some))


times = st.datetimes(datetime(1971, 1, 1), datetime(2090, 1, 1)).map(lambda time: time.replace(microsecond=0))


@quick
@given(times, st.integers(1, 10**7), st.sampled_from(["T", " "]), st.sampled_from(["-", "/"]), st.integers(3, 15))
def test_regular_times_continue_in_their_format(start, seconds, between, dash, rows):
    every = [start + k * timedelta(seconds=seconds) for k in range(rows + 3)]
    written = [time.isoformat(between)[:10].replace("-", dash) + time.isoformat(between)[10:] for time in every]
    assert times_ahead(written[:rows], 3) == written[rows:]
    numbers = [int(time.replace(tzinfo=UTC).timestamp()) for time in every]
    assert times_ahead(numbers[:rows], 3) == numbers[rows:]
    odd = [*written[: rows - 1], (every[rows - 1] + timedelta(seconds=1)).isoformat()]
    assert times_ahead(odd, 3) is None


@quick
@given(st.lists(leaf, max_size=6))
def test_times_ahead_accepts_any_values(values):
    ahead = times_ahead([as_time(value) for value in values], 2)
    assert ahead is None or len(ahead) == 2


def test_months_are_regular_too():
    assert times_ahead(["1949-10", "1949-11", "1949-12"], 2) == ["1950-01", "1950-02"]
    assert times_ahead(["2023-01-15T06:00Z", "2023-04-15T06:00Z", "2023-07-15T06:00Z"], 1) == ["2023-10-15T06:00Z"]
    assert times_ahead(["9999-12-29", "9999-12-30", "9999-12-31"], 1) is None


def test_categories_continue_on_another_source(tmp_path):
    (tmp_path / "a.csv").write_text("mode,y\neco,1\nfast,2\n")
    (tmp_path / "b.csv").write_text("y,mode\n1,fast\n2,new\n")
    options = {"inputs": ["mode"], "targets": ["y"]}
    with RowStream(Source(tmp_path / "a.csv"), **options) as stream:
        stream.take(10)
    with RowStream(Source(tmp_path / "b.csv"), position=restart_position(stream.position()), **options) as other:
        assert other.take(10).xs.argmax(axis=1).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kinds": {"mode": "category"}}, "kinds"),
        ({"kinds": {"mode": "category", "y": "word"}}, "damaged"),
        ({"categories": {}}, "categories"),
        ({"categories": {"mode": ["eco", "eco"]}}, "twice"),
        ({"cycles": {"y": ["hour"]}}, "cycles"),
        ({"times": [{}]}, "damaged"),
        ({"times": ["2024"] * 13}, "damaged"),
    ],
)
def test_damaged_column_statistics_are_noticed(change, message):
    with Pipe(b"mode,y\neco,1\nfast,2\n") as source:
        stream = RowStream(source, inputs=["mode"], targets=["y"])
        stream.take(1)
        position = stream.position()
    with Pipe(b"mode,y\neco,1\nfast,2\n") as source, pytest.raises(StreamError, match=message):
        RowStream(source, inputs=["mode"], targets=["y"], position={**position, **change})
