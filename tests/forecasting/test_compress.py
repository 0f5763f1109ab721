"""Files compressed with a learner's own predictions decompress to the same bytes on any processor, or not at all."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from run_folders import assert_rejected, norewind

from norewind.forecasting import compress
from norewind.training.log import read_log

pytestmark = pytest.mark.usefixtures("shared_programs")

TEXT = b"In the beginning was the word. " * 5 + bytes(range(0, 256, 32)) + b"and the word was with counts.\n" * 2
# Binary data follows, whose contexts are others.
TEXT += b"".join(bytes([i % 9, 0, i * i % 7, 200, i % 3, 65, i % 2]) for i in range(100))
# How a fixed text is coded. If this changes, every file that was compressed before becomes unreadable:
# compress.FILE_FORMAT must then also change.
CODE_OF_FORMAT_5 = "36d3a5568a8c4941"


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "network"])
def packed(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    (folder / "text").write_bytes(TEXT)
    assert norewind("compress", folder / "text", *(["--network"] if request.param else [])) == 0
    return folder


@pytest.fixture(scope="module")
def portable():
    return compress.compress(TEXT)


def test_a_compressed_file_is_restored(packed, tmp_path):
    _, code = compress._header((packed / "text.norewind").read_bytes())
    assert len(code) < len(TEXT) / 2
    assert norewind("decompress", packed / "text.norewind", "--out", tmp_path / "again") == 0
    assert (tmp_path / "again").read_bytes() == TEXT


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
@example(b"")
@example(b"x")
@example(b"xy")
@example(bytes(9_000))
@example(bytes(range(256)) * 20)
def test_any_bytes_are_restored(content):
    assert compress.decompress(compress.compress(content)) == content


def test_the_compressed_format_does_not_change(portable):
    header, code = compress._header(portable)
    assert header.network is None, "nothing in the header names a machine"
    assert hashlib.sha256(code).hexdigest()[:16] == CODE_OF_FORMAT_5
    assert compress.FILE_FORMAT == 5


# Compiling takes most of its time, so one process goes in both directions.
CODE = (
    "import sys; from norewind.forecasting import compress as c; "
    "packed = sys.stdin.buffer.read(); text = c.decompress(packed); "
    "sys.stdout.buffer.write(text); sys.exit(c.compress(text) != packed)"
)


def test_another_processor_codes_the_same_bytes(portable):
    """The other side is compiled for the simplest processor of this kind: no wide vectors, no fused operations."""
    environment = os.environ | {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NOREWIND_CACHE": "off"}
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, input=portable, env=environment, capture_output=True, check=False)
    assert done.stdout == TEXT, done.stderr
    assert done.returncode == 0, "it compressed the text to other bytes"


@pytest.mark.slow
def test_the_size_is_that_of_the_reported_bits(tmp_path):
    (tmp_path / "text").write_bytes(TEXT * 3)
    run = tmp_path / "run"
    assert norewind("train", tmp_path / "text", "--out", run, "--budget", 6, "--quiet") == 0
    line = read_log(run / "metrics.jsonl")[-1]
    code = compress.code_of(compress.compress(TEXT * 3))
    # Up to the last window, which train does not fill, and the bytes that end the code.
    assert 8 * len(code) == pytest.approx(line["mean"] * line["samples"], rel=0.01, abs=16 * 8)


def test_another_machine_is_rejected_with_a_network_only(packed, tmp_path, capsys, monkeypatch):
    machine = compress._machine()
    monkeypatch.setattr(compress, "_machine", lambda: {**machine, "processor": "another"})
    code = norewind("decompress", packed / "text.norewind", "--out", tmp_path / "again")
    if b'"network"' in (packed / "text.norewind").read_bytes():
        assert_rejected(capsys, code, "compressed with a network and processor", "decompress it where it was made")
        assert not (tmp_path / "again").exists()
    else:
        assert code == 0


@pytest.mark.parametrize("place", [-1, -4, -5, -20])
def test_a_wrong_result_is_never_handed_out(portable, place):
    data = bytearray(portable)
    data[place] ^= 0x80
    with pytest.raises(compress.CodeError, match="damaged"):
        compress.decompress(bytes(data))


def test_damaged_files_end_the_command(packed, tmp_path, capsys):
    data = bytearray((packed / "text.norewind").read_bytes())
    data[-20] ^= 1
    (tmp_path / "bad.norewind").write_bytes(data)
    assert_rejected(capsys, norewind("decompress", tmp_path / "bad.norewind"), "it is damaged")
    assert not (tmp_path / "bad").exists()


def test_truncated_and_oversized_files_are_rejected_quickly(portable):
    header, _, code = portable[len(compress.MAGIC) :].partition(b"\n")
    forged = json.dumps(json.loads(header) | {"bytes": 10**18}).encode()
    for data in (compress.MAGIC + header + b"\n" + code[:30], compress.MAGIC + forged + b"\n" + code):
        with pytest.raises(compress.CodeError, match="ends too early"):
            compress.decompress(data)


@pytest.mark.parametrize("damage", ["magic", "header", "missing", "format"])
def test_a_damaged_header_is_noticed(portable, damage):
    start = len(compress.MAGIC)
    header = json.loads(portable[start:].split(b"\n")[0])
    bad = {
        "magic": b"x" + portable,
        "header": portable[:start] + b"{" + portable[start:],
        "missing": compress.MAGIC + json.dumps({**header, "sha256": None}).encode() + b"\n",
        "format": compress.MAGIC + json.dumps({**header, "format": 1}).encode() + b"\n",
    }[damage]
    with pytest.raises(compress.CodeError, match="format 1" if damage == "format" else None):
        compress.decompress(bad)


FORGED = [{"first": 300}, {"first": -1}, {"first": "a"}, {"first": 1.5}, {"bytes": -5}, {"bytes": True}, {"bytes": 0}]
FORGED += [{"budget": "x"}, {"budget": 50}, {"budget": -1, "network": {}}, {"network": {}}, {"sha256": 5}, {"more": 1}]
FORGED += [{"\ud800": 1}, {"first": "\ud800"}, {"network": "\ud800"}]


@pytest.mark.parametrize("entry", FORGED, ids=str)
def test_a_forged_header_of_a_compressed_file(entry):
    header = {"format": compress.FILE_FORMAT, "bytes": 9, "first": 97, "sha256": "0" * 64, **entry}
    with pytest.raises(compress.CodeError, match="header of this file is damaged"):
        compress.decompress(compress.MAGIC + json.dumps(header).encode() + b"\nabcd")


@pytest.mark.parametrize("line", [b"[" * 99_999, b'"\\ud800"\n'], ids=["deeper than Python reads", "half a character"])
def test_a_header_that_is_no_header(line):
    with pytest.raises(compress.CodeError, match="header of this file is damaged"):
        compress.decompress(compress.MAGIC + line)


def test_decoding_ends_when_the_code_is_used_up():
    """A header may ask for 10¹⁸ bytes of a code of four."""
    header = {"format": compress.FILE_FORMAT, "bytes": 10**18, "first": 97, "sha256": "0" * 64}
    with pytest.raises(compress.CodeError, match="ends too early"):
        compress.decompress(compress.MAGIC + json.dumps(header).encode() + b"\nabcd")


@pytest.mark.parametrize("budget", [float("nan"), float("inf"), -1, 0])
def test_an_invalid_budget(budget):
    with pytest.raises(compress.CodeError, match="the budget must be"):
        compress.compress(b"abc", budget=budget)
