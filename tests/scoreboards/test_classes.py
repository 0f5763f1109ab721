"""The board of classes: rows are scored before they are learned from, and a run with a record is not repeated."""

import numpy as np
import pytest

from norewind.sweeps.record import read_records
from scoreboards import classes

RANDOM = np.random.default_rng(0)


def rows(count):
    """Rows whose class cannot be predicted from the others: those that are right are guesses."""
    return [
        ({"a": float(a), "b": float(b)}, int(c))
        for a, b, c in zip(*RANDOM.normal(size=(2, count)), RANDOM.integers(0, 2, count), strict=True)
    ]


def test_classes_that_cannot_be_known_are_guessed():
    assert 0.35 < classes.share_right(rows(200), 0) < 0.65


def test_every_stream_is_predicted_once_and_quoted(tmp_path, monkeypatch):
    (tmp_path / "electricity.csv").write_text("day,price,class\n" + "".join(f"{i},{i % 5},{i % 2}\n" for i in range(9)))
    assert classes.read_elec2(tmp_path)[3] == ({"day": 3.0, "price": 3.0}, "1")
    pytest.importorskip("river")
    seen = []
    monkeypatch.setattr(classes, "share_right", lambda rows, seed: seen.append(len(rows)) or 0.75)
    classes.run(tmp_path, tmp_path / "out", quick=True)
    assert seen == [9, *[classes.QUICK_ROWS] * 7]
    monkeypatch.setattr(classes, "share_right", None)
    classes.run(tmp_path, tmp_path / "out", quick=True)
    quoted = classes.quote(read_records(tmp_path / "out"))
    assert quoted["ours"] == "Elec2 75.0"
    assert "| SEA | 200 | 1 | 75.0 |  |  |  |" in quoted["table"]
    assert classes.quote({}) == {}
