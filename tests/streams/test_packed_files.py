"""Gzip and Parquet files on the command line: the same rows, resumed exactly, and messages about damaged ones."""

import gzip
import json

import numpy as np
import polars as pl
import pytest
from run_folders import assert_rejected, norewind

from norewind.streams import Source, StreamError
from norewind.streams.table.parquet import ParquetRows
from norewind.streams.unpacked import Unpacked
from norewind.training.log import read_log

pytestmark = pytest.mark.usefixtures("shared_programs")

OPTIONS = ("--targets", "y", "--method", "bptt", "--hidden", 2, "--predictions", "file", "--quiet")
KINDS = [".csv", ".csv.gz", ".tsv.gz", ".jsonl.gz", ".parquet"]


def rows_of(count, start=0):
    values = np.random.default_rng(0).normal(size=start + count).round(6)[start:]
    return [{"x": float(place % 7), "y": float(value)} for place, value in enumerate(values, start)]


def write(path, rows):
    if path.suffix == ".parquet":
        return pl.DataFrame(rows).write_parquet(path)
    mark = "\t" if ".tsv" in path.name else ","
    lines = [mark.join(rows[0]), *(mark.join(map(str, row.values())) for row in rows)]
    lines = [json.dumps(row) for row in rows] if ".jsonl" in path.name else lines
    data = ("\n".join(lines) + "\n").encode()
    return path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def train(path, out, *options):
    assert norewind("train", path, *OPTIONS, *options, "--out", out) == 0
    return read_log(out / "predictions.jsonl")


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The predictions of a run on a CSV file."""
    folder = tmp_path_factory.mktemp("packed")
    write(folder / "rows.csv", rows_of(300))
    assert norewind("train", folder / "rows.csv", *OPTIONS, "--out", folder / "run") == 0
    return [without_line(line) for line in read_log(folder / "run" / "predictions.jsonl")]


def without_line(line):
    return {name: line[name] for name in line if name != "line"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_has_the_same_predictions_as_one_on_csv(kind, expected, tmp_path):
    path = tmp_path / f"rows{kind}"
    write(path, rows_of(300))
    assert len(train(path, tmp_path / "run", "--samples", 120)) == 120
    assert norewind("resume", tmp_path / "run", "--samples", 300, "--quiet") == 0
    assert [without_line(line) for line in read_log(tmp_path / "run" / "predictions.jsonl")] == expected


@pytest.mark.parametrize("kind", [".csv.gz", ".parquet"])
def test_a_file_that_has_grown_is_continued_and_another_one_is_rejected(kind, expected, tmp_path, capsys):
    path = tmp_path / f"rows{kind}"
    write(path, rows_of(100))
    train(path, tmp_path / "run")
    write(path, rows_of(300))
    assert norewind("resume", tmp_path / "run", "--quiet") == 0
    assert [without_line(line) for line in read_log(tmp_path / "run" / "predictions.jsonl")] == expected
    write(path, rows_of(300, start=1))
    capsys.readouterr()
    assert_rejected(capsys, norewind("resume", tmp_path / "run", "--quiet"), "is not the", "differ")
    write(path, rows_of(200))
    assert_rejected(capsys, norewind("resume", tmp_path / "run", "--quiet"), "has only", "the run has read")


def test_a_file_that_is_cut_off_is_learned_up_to_there(tmp_path, capsys):
    path = tmp_path / "rows.csv.gz"
    write(path, rows_of(3_000))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    code = norewind("train", path, *OPTIONS, "--out", tmp_path / "run")
    assert_rejected(capsys, code, "ends in the middle of its packed data")
    done = len(read_log(tmp_path / "run" / "predictions.jsonl"))
    assert 500 < done < 2_900
    path.write_bytes(whole)
    assert norewind("resume", tmp_path / "run", "--quiet") == 0
    assert len(read_log(tmp_path / "run" / "predictions.jsonl")) == 3_000


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_parts_and_padding_are_unpacked(size, tmp_path):
    data = bytes(range(256)) * 500 + b"a" * 300_000
    path = tmp_path / "parts.gz"
    path.write_bytes(gzip.compress(data[:1000]) + bytes(10) + gzip.compress(b"") + gzip.compress(data[1000:]))
    with path.open("rb") as file:
        unpacked, parts = Unpacked(file, "parts.gz"), []
        while part := unpacked.read(size if len(parts) < 2_000 else 1 << 16):
            assert len(part) <= max(size, 1 << 16)
            parts.append(part)
    assert b"".join(parts) == data


def test_damaged_files_are_named(tmp_path):
    (tmp_path / "bad.csv.gz").write_bytes(b"not gzip")
    with pytest.raises(StreamError, match=r"bad.csv.gz is not valid gzip data"):
        Source(tmp_path / "bad.csv.gz", unpack=True).read()
    (tmp_path / "bad.parquet").write_bytes(b"not Parquet")
    with pytest.raises(StreamError, match=r"bad.parquet cannot be read"):
        ParquetRows(str(tmp_path / "bad.parquet"))


def test_parquet_names_the_package_that_it_needs(tmp_path, monkeypatch, capsys):
    write(tmp_path / "rows.parquet", rows_of(5))
    monkeypatch.setattr("norewind.streams.table.parquet.find_spec", lambda name: None)
    code = norewind("train", tmp_path / "rows.parquet", *OPTIONS, "--out", tmp_path / "run")
    assert_rejected(capsys, code, "the package polars is not installed: run pip install '.[parquet]'")
    assert_rejected(capsys, norewind("train", tmp_path / "rows.parquet", "--format", "csv"), "is Parquet")


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([f"{1 + place:02}/12/2012" for place in range(30)], "written year first, as 2024-05-31, since day and month"),
        ([f"2012-12-{30 - place:02}" for place in range(30)], "are not in ascending order"),
    ],
)
def test_times_that_are_of_no_use_are_warned_about(times, words, tmp_path, capsys):
    lines = [f"{time},{place * place % 13}" for place, time in enumerate(times)]
    (tmp_path / "rows.csv").write_text("\n".join(["day,y", *lines, ""]))
    code = norewind("train", tmp_path / "rows.csv", *OPTIONS[:-1], "--out", tmp_path / "run")
    assert code == 0
    output = capsys.readouterr().err
    assert f"Warning: the {'column' if 'year' in words else 'times in the column'} 'day'" in output
    assert words in output


@pytest.mark.parametrize("decimal", [".", ","])
def test_another_delimiter_is_named(decimal, tmp_path, capsys):
    lines = [f"{place};{place * place % 13}{decimal}5" for place in range(30)]
    (tmp_path / "rows.csv").write_text("\n".join(["x;y", *lines, ""]))
    code = norewind("train", tmp_path / "rows.csv", "--targets", "y", "--out", tmp_path / "run")
    assert_rejected(capsys, code, "pass --delimiter ';'")
