"""Every format of rows: what it writes is read back, one line at a time or many, and its files are recognised."""

from typing import get_args

import pytest

from norewind.streams import ReadOptions, RowStream, Source
from norewind.streams.stream import BadRow
from norewind.streams.table.formats import FORMATS, FormatName
from norewind.training.settings import Settings

ROWS = [{"wind": i * 7 % 11 / 2, "power": i / 4, "note": f'{i}, "so"'} for i in range(1, 40)]
COLUMNS = list(ROWS[0])
# How each format writes true and false, as a line and as a row: to be extended with every new format.
BOOLEANS = {
    "csv": ("true,false\n", {"on": "true", "off": "false"}),
    "jsonl": ('{"on": true, "off": false}\n', {"on": True, "off": False}),
}
each_format = pytest.mark.parametrize("name", FORMATS)


def lines_of(name):
    """The rows as lines of a file without a header."""
    form = FORMATS[name](ReadOptions(name, header=False))
    return form, [form.write(row, COLUMNS)[1] for row in ROWS]


def test_the_names_are_those_of_the_settings():
    assert get_args(FormatName) == tuple(FORMATS)


@each_format
def test_written_rows_are_read_back(name, tmp_path):
    path = tmp_path / "rows"
    path.write_text("".join(lines_of(name)[1]))
    with RowStream(Source(path), read_options=ReadOptions(name, header=False), standardise=False) as stream:
        samples = stream.take(100)
    assert samples is not None
    assert samples.xs.tolist() == [[row["wind"], row["power"]] for row in ROWS]


@each_format
def test_booleans_are_written_as_json_writes_them(name):
    """The service writes rows of JSON as lines of the run's format."""
    form = FORMATS[name](ReadOptions(name))
    row, line = form.write({"on": True, "off": False}, ["on", "off"])
    assert (line, row) == BOOLEANS[name]


@each_format
def test_many_lines_are_parsed_like_single_ones(name):
    form, lines = lines_of(name)
    texts = [line.removesuffix("\n") for line in lines]
    one_by_one = [form.parse(text, COLUMNS) for text in texts]
    assert list(form.parse_lines([text.encode() for text in texts], COLUMNS)) == one_by_one
    assert list(form.parse_lines([f"{text}\r".encode() for text in texts], COLUMNS)) == one_by_one
    getters = [form.getter(column, place) for place, column in enumerate(COLUMNS)]
    assert [[str(get(row)) for get in getters] for row in one_by_one] == [list(map(str, row.values())) for row in ROWS]
    assert [[str(get(row)) for get in getters] for row in form.from_dicts(ROWS, COLUMNS)] == [
        list(map(str, row.values())) for row in ROWS
    ]


@each_format
@pytest.mark.parametrize("bad", [b"", b"\xff", b'"', b"\r"])
def test_a_bad_or_blank_line_among_many_is_noticed(name, bad):
    form, lines = lines_of(name)
    good = [line.removesuffix("\n").encode() for line in lines[:3]]
    with pytest.raises(BadRow):
        form.parse_lines([*good, bad], COLUMNS)
    assert form.is_blank(bad) == (not bad.strip())


@each_format
def test_files_are_recognised_by_their_names(name):
    for suffix in FORMATS[name].suffixes:
        settings = Settings(source=f"somewhere/rows{suffix.upper()}")
        assert (settings.kind, settings.has_rows) == (name, True)
    assert not Settings(source="somewhere/rows.txt").has_rows
