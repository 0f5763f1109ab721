"""The memory of `norewind train` does not grow with the stream; `make memory-use` checks this at full length."""

import gc
import os
import platform
import random
import sys
from itertools import islice

import pytest

from norewind.cli import main
from norewind.engines.processor import give_back_free_memory
from norewind.streams import Source, source
from norewind.streams.base_source import MAX_LINE_BYTES
from norewind.streams.position import init_position
from norewind.streams.source import BLOCK_BYTES
from norewind.training.progress import Progress
from tools.memory import ALLOWED, COMMON, KINDS, growth, highest, looks, objects


def test_growth_is_measured_at_the_maximum():
    assert growth([900, 50, 100, 50, 50, 101, *[50] * 14]) == pytest.approx(0.01)
    assert growth([900, 100, 110, *[100] * 17]) < 0


@pytest.mark.slow
def test_memory_does_not_grow_with_the_stream():
    """With new keys, categories, depths and line lengths. `make memory-use` tests the other streams."""
    assert growth(looks("jsonl", 100_000_000, 0)) <= ALLOWED


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only the GNU C library can be asked to")
def test_free_memory_is_returned_to_the_system():
    blocks = [b"x" * 100_000 for _ in range(1_000)]
    last = blocks.pop()
    blocks.clear()  # freed, but kept by the C library below the last block
    before = highest(os.getpid())
    give_back_free_memory()
    highest(os.getpid())
    assert before - highest(os.getpid()) > 50_000
    assert last


@pytest.mark.parametrize(("size", "times"), [(BLOCK_BYTES - 1, 0), (MAX_LINE_BYTES // 2, 2), (2 * MAX_LINE_BYTES, 1)])
def test_memory_is_returned_after_several_long_lines(tmp_path, monkeypatch, size, times):
    path, asked = tmp_path / "lines", []
    path.write_bytes((b"x" * size + b"\n") * (10 * MAX_LINE_BYTES // size))
    monkeypatch.setattr(source, "give_back_free_memory", lambda: asked.append(True))
    file = Source(path)
    file.start(init_position("rows"))
    while lines := file.peek():
        file.drop(lines)
    assert len(asked) == times


def test_live_objects_do_not_grow(tmp_path, monkeypatch):
    """Keys, categories and nested values that never come twice: nothing is kept of them. (`make memory-use` also sees
    what the allocator keeps free.)"""
    rows = objects(random.Random(0))
    (tmp_path / "rows").write_bytes(b"".join(line for line in islice(rows, 14_000) if len(line) < 2_000))
    alive, advance = {}, Progress.advance

    def count(self, name, samples):
        advance(self, name, samples)
        gc.collect()
        alive[samples] = sys.getallocatedblocks()

    monkeypatch.setattr(Progress, "advance", count)
    command = ["train", str(tmp_path / "rows"), "--out", str(tmp_path / "run"), *KINDS["jsonl"][1], *COMMON]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--checkpoint-every", "1000", "--metrics-every", "1000"])
    assert not ended.value.code
    first, last = sorted(alive)[1], max(alive)
    assert last - first > 3_000
    assert alive[last] - alive[first] < (last - first) / 10
