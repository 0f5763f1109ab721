"""`norewind watch`: a folder as it grows."""

import json
import os
import time

import pytest

pytest.importorskip("uvicorn")
from norewind.serving.feed import Following, Tail


def test_a_log_is_followed_also_when_it_is_cut(tmp_path):
    path = tmp_path / "log.jsonl"
    tail = Tail(path)
    assert tail.new() == (False, [])
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert tail.new() == (False, [{"a": 1}, {"a": 2}])
    assert tail.new() == (False, [])
    with path.open("a") as file:
        file.write(': 3}\nnot json\n{"a": 4}\n')
    assert tail.new() == (False, [{"a": 3}, {"a": 4}])
    path.write_text('{"a": 1}\n')
    assert tail.new() == (True, [{"a": 1}])
    # Cut off and grown beyond where it was, between two looks.
    path.write_text('{"b": 7}\n{"b": 8}\n')
    assert tail.new() == (True, [{"b": 7}, {"b": 8}])
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(1000)))
    assert Tail(path, 3).new() == (False, [{"n": 997}, {"n": 998}, {"n": 999}])


def test_the_newest_rows_come_from_predictions_or_from_the_checkpoint(run):
    rows = Following(run).feed.whole()
    assert len(rows["rows"]) == 200
    (run / "predictions.jsonl").unlink()
    beside = Following(run).feed.whole()
    assert beside["status"]["durable"] == 300
    for one, other in zip(rows["rows"], beside["rows"], strict=True):
        for name in ("sample", "prediction", "target"):
            assert one[name] == pytest.approx(other[name], rel=1e-6)
        assert one["surprise"] == pytest.approx(other["surprise"], rel=1e-4, abs=1e-6)


def test_the_age_of_the_newest_line_is_that_of_the_file_not_of_the_page(run):
    following = Following(run)
    hour_ago = time.time() - 3600
    os.utime(run / "metrics.jsonl", (hour_ago, hour_ago))
    assert 3600 <= following.status()["silent"] < 3700
    (run / "metrics.jsonl").write_text("")
    assert following.status()["silent"] is None


def test_a_run_that_has_ended_has_no_speed(run):
    following = Following(run)
    following._speeds.extend([(200, 1.0), (300, 3.0)])
    (run / "metrics.jsonl").touch()
    assert following.status()["speed"] == 50
    hour_ago = time.time() - 3600
    os.utime(run / "metrics.jsonl", (hour_ago, hour_ago))
    assert following.status()["speed"] is None


def test_a_run_that_is_resumed_begins_again_on_the_page(run):
    following = Following(run)
    before = len(following.feed.metrics)
    metrics = run / "metrics.jsonl"
    with metrics.open("a") as file:
        file.write(json.dumps({"samples": 400, "loss": 0.5, "carry": 1.0, "seconds": 9}) + "\n")
    following.feed.apply(following.look())
    assert following.feed.metrics[-1] == {"samples": 400, "loss": 0.5, "carry": 1.0}
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:2]))
    following.feed.apply(following.look())
    assert len(following.feed.metrics) == 2 < before


def test_a_log_that_cannot_be_read_has_no_new_lines(tmp_path):
    (tmp_path / "log").mkdir()
    assert Tail(tmp_path / "log").new() == (False, [])
