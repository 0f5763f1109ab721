"""Bad input is rejected with its location, or skipped and counted."""

import pytest
from run_folders import ROWS, SMALL, TEXT, assert_rejected, everything, latest, norewind

from norewind.storage.checkpoint import read
from norewind.training.log import read_log

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.mark.parametrize(
    ("name", "content", "options", "words"),
    [
        ("empty", b"", (), ["empty"]),
        ("short", b"a", (), ["bytes: 1"]),
        ("empty.csv", b"", (), ["empty"]),
        ("header.csv", b"a,b\n", (), ["byte 4"]),
        ("empty.jsonl", b"", (), ["empty"]),
        ("empty.txt", b"", ("--format", "text"), ["empty"]),
        ("cut.csv", b"a,b\n1,2\n2,3\n4", ("--final",), ["line 4 (byte 12; ", "1 fields", "cut off"]),
        ("cut.jsonl", b'{"a": 1}\n{"a": 2}\n{"a": ', ("--final",), ["line 3 (byte 18; ", "JSON", "cut off"]),
        ("bad.txt", b"abc\xff\xfedef", ("--format", "text"), ["byte 3", "UTF-8"]),
        ("bad.csv", b"a\n1\n2\n\xff\n", (), ["line 4 (byte 6)", "UTF-8"]),
        ("missing.csv", b"a,b\n1,2\n", ("--inputs", "c"), ["no column 'c'", "'a', 'b'"]),
        ("word.csv", b"a,b\n1,2\n2,3\n3,x\n", (), ["line 4 (byte 12)", "'b'", "'x' is not a number"]),
        ("inf.csv", b"a\n1\n2\ninf\n", (), ["line 4 (byte 6)", "'inf' is too large"]),
        ("nan.csv", b"a\n1\n2\nNaN\n", ("--missing", "stop"), ["line 4 (byte 6)", "'a' has no value"]),
        ("strange.txt", b"abxab", ("--format", "text", "--alphabet", "ab"), ["byte 2", "'x'"]),
        ("full.txt", b"abcab", ("--format", "text", "--alphabet-size", "2"), ["byte 2", "'c'"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_is_rejected_with_its_location(tmp_path, capsys, name, content, options, words):
    (tmp_path / name).write_bytes(content)
    code = norewind("train", tmp_path / name, "--out", tmp_path / "run", *SMALL, *options)
    assert_rejected(capsys, code, str(tmp_path / name), *words)


def test_bad_input_after_a_checkpoint_leaves_it(whole, tmp_path, capsys, table):
    lines = table.splitlines(True)
    (tmp_path / "table.csv").write_bytes(b"".join([*lines[:800], b"oops,1\n", *lines[801:]]))
    run = tmp_path / "run"
    code = norewind("train", tmp_path / "table.csv", "--out", run, *ROWS)
    assert_rejected(capsys, code, "table.csv, line 801 (byte ", "'oops' is not a number", "--bad skip")
    # Everything before it has been learned from and saved.
    assert int(latest(run).name[:15]) == 799
    (tmp_path / "table.csv").write_bytes(table)
    assert norewind("resume", run, "--quiet") == 0
    assert everything(run) == everything(whole / "rows")


def test_a_line_that_was_cut_off_is_learned_from_when_it_is_whole(whole, tmp_path, capsys, table):
    (tmp_path / "table.csv").write_bytes(table[:-3])
    run = tmp_path / "run"
    assert norewind("train", tmp_path / "table.csv", "--out", run, *ROWS[:-1]) == 0
    assert "The incomplete line at the end (" in capsys.readouterr().err
    (tmp_path / "table.csv").write_bytes(table)
    assert norewind("resume", run, "--quiet") == 0
    assert everything(run) == everything(whole / "rows")


def test_a_run_that_stopped_at_bad_input_can_skip_it(tmp_path, capsys, table):
    lines = table.splitlines(True)
    (tmp_path / "table.csv").write_bytes(b"".join([*lines[:400], b"oops,1\n", *lines[400:650]]))
    run = tmp_path / "run"
    assert norewind("train", tmp_path / "table.csv", "--out", run, *ROWS) == 1
    assert norewind("resume", run, "--bad", "skip") == 0
    assert "649 samples" in capsys.readouterr().err
    assert read_log(run / "metrics.jsonl")[-1]["skipped"] == {"bad rows": 1}


def test_bad_input_is_skipped_and_counted(tmp_path, capsys, table):
    lines = table.splitlines(True)
    (tmp_path / "table.csv").write_bytes(b"".join([*lines[:400], b"oops,1\n", b"1\n", *lines[400:650]]))
    run = tmp_path / "run"
    assert norewind("train", tmp_path / "table.csv", "--out", run, *ROWS[:-1], "--bad", "skip") == 0
    assert "2 bad rows skipped" in capsys.readouterr().err
    lines = read_log(run / "metrics.jsonl")
    assert [line.get("skipped") for line in lines] == [None, {"bad rows": 2}, {"bad rows": 2}]
    # A resumed run counts them only once.
    assert norewind("resume", run) == 0
    assert read_log(run / "metrics.jsonl")[-1]["skipped"] == {"bad rows": 2}


def test_text_that_is_bad_is_skipped_and_counted(tmp_path, capsys):
    (tmp_path / "text").write_bytes(b"abba\xff" * 80 + b"x" * 7)
    options = ("--format", "text", "--alphabet", "ab", "--bad", "skip")
    assert norewind("train", tmp_path / "text", "--out", tmp_path / "run", *TEXT[:-1], *options) == 0
    output = capsys.readouterr().err
    assert "80 " in output
    assert "skipped" in output


def test_a_file_that_shrank_is_rejected(tmp_path, capsys, text):
    (tmp_path / "text").write_bytes(text)
    run = tmp_path / "run"
    assert norewind("train", tmp_path / "text", "--out", run, *TEXT, "--samples", 600) == 0
    (tmp_path / "text").write_bytes(text[:500])
    code = norewind("resume", run, "--samples", 900)
    assert_rejected(capsys, code, "has only 500 bytes, but the run has read 601")
    (tmp_path / "text").write_bytes(b"?" + text[1:])
    code = norewind("resume", run, "--samples", 900)
    assert_rejected(capsys, code, "its first 601 bytes differ")
    read(latest(run))
