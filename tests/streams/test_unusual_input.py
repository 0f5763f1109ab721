"""Unusual keys, digits, quotes and sizes are read as intended, or rejected with their location."""

import json

import pytest

from norewind.scoring.score import place_of
from norewind.streams import KeyedStream, ReadOptions, RowStream, Source, StreamError
from norewind.training.log import as_lines


def test_a_key_with_an_unpaired_surrogate(tmp_path):
    (tmp_path / "rows").write_text('{"a": 1, "\\ud800": 2}\n')
    with pytest.raises(StreamError, match=r"line 1 \(byte 0\) is bad: the key '\\ud800' has an unpaired surrogate"):
        RowStream(Source(tmp_path / "rows"), read_options=ReadOptions("jsonl"))


def test_only_ascii_digits_are_numbers_and_blank_lines_are_not_rows(tmp_path):
    (tmp_path / "rows.csv").write_text("a\n1\n٣\n 4 \n")
    with RowStream(Source(tmp_path / "rows.csv"), read_options=ReadOptions(bad="skip"), standardise=False) as stream:
        assert stream.take(9).xs.tolist() == [[1], [4]]
        assert stream.counts == {"bad rows": 1}
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n \n\t\r\n\n{"a": 2}\n')
    with RowStream(Source(tmp_path / "rows.jsonl"), read_options=ReadOptions("jsonl"), standardise=False) as stream:
        assert stream.take(9).xs.tolist() == [[1], [2]]
        assert stream.counts == {}


DIGITS = "9" * 5_000
JSON = ReadOptions("jsonl")


def test_a_first_row_with_too_many_values(tmp_path):
    (tmp_path / "rows").write_text(json.dumps(dict.fromkeys(map(str, range(10_001)), 1)) + "\n")
    with pytest.raises(StreamError, match=r"line 1 \(byte 0\) is bad: it has more than 10000 values"):
        RowStream(Source(tmp_path / "rows"), read_options=JSON)


def test_a_list_index_has_only_ascii_digits(tmp_path):
    rows = [{f"a.{DIGITS}": 1, "a.٣": 1, "v": 1}, {"a": [5, 6, 7, 8], "v": 2}]
    (tmp_path / "rows").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with RowStream(Source(tmp_path / "rows"), read_options=JSON, standardise=False) as stream:
        place = stream.inputs.index("a.٣")
        assert stream.take(9).xs[:, place].tolist() == [1, 1]  # the last value: the second row has none


def test_copied_values_that_json_does_not_have(tmp_path):
    texts = ["Infinity", "[NaN]", '{"y": -1e999}', '"\\ud800"']
    (tmp_path / "rows").write_text("".join(f'{{"v": {i}, "x": {text}}}\n' for i, text in enumerate(texts)))
    with RowStream(Source(tmp_path / "rows"), read_options=JSON, copy=["x"]) as stream:
        samples = stream.take(9)
    lines = as_lines([place_of(samples, i) for i in range(4)]).splitlines()
    assert [json.loads(line)["copied"]["x"] for line in lines] == [None, [None], {"y": None}, "\ud800"]


def test_a_long_field_may_have_quotes(tmp_path):
    (tmp_path / "rows.csv").write_text('a,b\n1,x\n2,"' + "y" * 200_000 + '"\n3,z\n')
    with RowStream(Source(tmp_path / "rows.csv"), standardise=False) as stream:
        assert stream.take(9).xs.tolist() == [[1], [2], [3]]


@pytest.mark.parametrize("options", [{"horizon": 10**30}, {"steps": (1, 10**30)}, {"steps": ()}], ids=str)
def test_a_horizon_beyond_any_use(tmp_path, options):
    (tmp_path / "rows.csv").write_text("a\n1\n2\n")
    with pytest.raises(StreamError, match="the (horizon|steps) must be"):
        RowStream(Source(tmp_path / "rows.csv"), **options)


def test_an_infinite_number_is_not_a_key(tmp_path):
    (tmp_path / "rows").write_text('{"k": 1, "v": 1}\n{"k": 1e999, "v": 2.5}\n{"k": true, "v": 3}\n')
    with KeyedStream(Source(tmp_path / "rows"), "k", read_options=ReadOptions("jsonl", bad="skip")) as stream:
        samples = stream.take(9)
        assert samples is not None
        assert samples.keys is not None
        assert samples.keys.tolist() == [b"1", b"true"]
        assert stream.counts == {"bad rows": 1}


@pytest.mark.parametrize("use", ["inputs", "targets", "copy"])
def test_the_key_is_neither_learned_from_nor_copied(tmp_path, use):
    (tmp_path / "rows.csv").write_text("k,v\na,1\nb,2\n")
    with pytest.raises(StreamError, match="column 'k' is the key, so it cannot be"):
        KeyedStream(Source(tmp_path / "rows.csv"), "k", **{use: ["k"]})
