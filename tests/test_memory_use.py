"""The memory of `norewind train` does not grow with what it has seen; `make memory` does the same at full length."""

import gc
import random
import sys
from itertools import islice

import pytest

from norewind.cli import main
from norewind.runs.progress import Progress
from tools.memory import ALLOWED, COMMON, KINDS, growth, looks, objects


def test_growth_is_that_of_the_highest():
    assert growth([1, 100, 50, 101]) == pytest.approx(0.01)
    assert growth([100, 110, 100, 100]) < 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bytes"])
def test_memory_is_flat(kind):
    assert growth(looks(kind, 20_000_000, 0)) <= ALLOWED


def test_what_lives_does_not_grow(tmp_path, monkeypatch):
    """Keys, categories and nested values that never come twice: nothing is kept of them. (`make memory` also sees
    what the allocator keeps free.)"""
    rows = objects(random.Random(0))
    (tmp_path / "rows").write_bytes(b"".join(line for line in islice(rows, 6_000) if len(line) < 2_000))
    alive, advance = {}, Progress.advance

    def count(self, name, samples, loss):
        advance(self, name, samples, loss)
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
