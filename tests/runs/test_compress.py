"""Files coded with the learner's own predictions come back byte for byte, or not at all."""

import json

import pytest
from run_folders import assert_refused, norewind

from norewind.runs import compress
from norewind.runs.folder import read_log

# Short, since what learns it runs slowly as the tests compile it (conftest.py).
TEXT = b"In the beginning was the word. " * 5 + bytes(range(0, 256, 32)) + b"and the word was with counts.\n" * 2


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    (folder / "text").write_bytes(TEXT)
    assert norewind("compress", folder / "text") == 0
    return folder


def test_what_comes_back_is_the_file(packed, tmp_path):
    _, code = compress._header((packed / "text.norewind").read_bytes())
    assert len(code) < len(TEXT) / 2
    assert norewind("decompress", packed / "text.norewind", "--out", tmp_path / "again") == 0
    assert (tmp_path / "again").read_bytes() == TEXT


@pytest.mark.slow
def test_the_size_is_that_of_the_reported_bits(packed, tmp_path):
    run = tmp_path / "run"
    assert norewind("train", packed / "text", "--out", run, "--quiet") == 0
    line = read_log(run / "metrics.jsonl")[-1]
    _, code = compress._header((packed / "text.norewind").read_bytes())
    # Up to the last window, which train does not fill, and the bytes that end the code.
    assert 8 * len(code) == pytest.approx(line["mean"] * line["samples"], rel=0.01, abs=16 * 8)


@pytest.mark.parametrize("content", [b"", b"x", b"xy"])
def test_the_shortest_files(content):
    assert compress.decompressed(compress.compressed(content, budget=1)) == content


def test_another_machine_is_refused(packed, tmp_path, capsys, monkeypatch):
    machine = compress._machine()
    monkeypatch.setattr(compress, "_machine", lambda: {**machine, "processor": "another"})
    code = norewind("decompress", packed / "text.norewind", "--out", tmp_path / "again")
    assert_refused(capsys, code, "this file was compressed with processor", "decompress it where it was made")
    assert not (tmp_path / "again").exists()


def test_a_wrong_result_is_never_handed_out(packed, tmp_path, capsys):
    data = bytearray((packed / "text.norewind").read_bytes())
    data[-20] ^= 1
    (tmp_path / "bad.norewind").write_bytes(data)
    code = norewind("decompress", tmp_path / "bad.norewind")
    assert_refused(capsys, code, "it is damaged")
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize("damage", ["magic", "header", "missing"])
def test_a_damaged_header_is_noticed(packed, damage):
    data = (packed / "text.norewind").read_bytes()
    start = len(compress.MAGIC)
    header = json.loads(data[start:].split(b"\n")[0])
    del header["sha256"]
    bad = {
        "magic": b"x" + data,
        "header": data[:start] + b"{" + data[start:],
        "missing": compress.MAGIC + json.dumps(header).encode() + b"\n",
    }[damage]
    with pytest.raises(compress.CodeError):
        compress.decompressed(bad)
