"""`norewind watch` shows a run folder as it grows."""

import json
import os
import re
import shutil
import time
from importlib import resources

import pytest

pytest.importorskip("uvicorn")
from run_folders import latest

from norewind.serving.page_content import FolderContent, about
from norewind.storage.checkpoint import _write, read
from norewind.training.log import LogTail


def test_a_log_is_followed_even_if_it_is_truncated(tmp_path):
    path = tmp_path / "log.jsonl"
    tail = LogTail(path)
    assert tail.new() == (False, [])
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert tail.new() == (False, [{"a": 1}, {"a": 2}])
    assert tail.new() == (False, [])
    with path.open("a") as file:
        file.write(': 3}\nnot json\n{"a": 4}\n')
    assert tail.new() == (False, [{"a": 3}, {"a": 4}])
    path.write_text('{"a": 1}\n')
    assert tail.new() == (True, [{"a": 1}])
    # Truncated and grown beyond its previous length between two reads.
    path.write_text('{"b": 7}\n{"b": 8}\n')
    assert tail.new() == (True, [{"b": 7}, {"b": 8}])
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(1000)))
    assert LogTail(path, 3).new() == (False, [{"n": 997}, {"n": 998}, {"n": 999}])


def test_the_latest_rows_come_from_predictions_or_from_the_checkpoint(run):
    logged = FolderContent(run)
    assert len(logged.rows) == 200
    (run / "predictions.jsonl").unlink()
    saved = FolderContent(run)
    assert saved.snapshot()["durable"] == 300
    for one, other in zip(logged.rows, saved.rows, strict=True):
        for name in ("sample", "prediction", "target"):
            assert one[name] == pytest.approx(other[name], rel=1e-6)
        assert one["surprise"] == pytest.approx(other["surprise"], rel=1e-4, abs=1e-6)


def test_the_age_of_the_latest_line_is_that_of_the_file_not_of_the_page(run):
    live = FolderContent(run)
    hour_ago = time.time() - 3600
    os.utime(run / "metrics.jsonl", (hour_ago, hour_ago))
    assert 3600 <= live.status()["silent"] < 3700
    (run / "metrics.jsonl").write_text("")
    assert live.status()["silent"] is None


def test_an_ended_run_has_no_speed(run):
    live = FolderContent(run)
    live.add_metrics({"samples": 200, "seconds": 1.0})
    live.add_metrics({"samples": 300, "seconds": 3.0})
    (run / "metrics.jsonl").touch()
    assert live.status()["speed"] == 50
    hour_ago = time.time() - 3600
    os.utime(run / "metrics.jsonl", (hour_ago, hour_ago))
    assert live.status()["speed"] is None


def test_the_page_starts_over_when_a_run_is_resumed(run):
    live = FolderContent(run)
    before = len(live.metrics)
    metrics = run / "metrics.jsonl"
    with metrics.open("a") as file:
        file.write(json.dumps({"samples": 400, "loss": 0.5, "carry": 1.0, "seconds": 9}) + "\n")
    live.apply(*live.look())
    assert live.metrics[-1] == {"samples": 400, "loss": 0.5, "carry": 1.0, "seconds": 9}
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:2]))
    live.apply(*live.look())
    assert len(live.metrics) == 2 < before


def test_the_page_shows_what_a_method_reports_about_itself(run):
    live = FolderContent(run)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"samples": 400, "loss": 0.5, "error_bound": 3.25, "unknown": 1}) + "\n")
    live.apply(*live.look())
    assert live.metrics[-1] == {"samples": 400, "loss": 0.5, "error_bound": 3.25}
    assert live.about["tiles"]["error_bound"] == "bound on the influence's error"


def test_a_log_that_cannot_be_read_has_no_new_lines(tmp_path):
    (tmp_path / "log").mkdir()
    assert LogTail(tmp_path / "log").new() == (False, [])


def test_the_page_reads_only_what_the_feed_sends(run):
    """It is served even if there is no browser to open it in."""
    script, sent = (resources.files("norewind.serving") / "page" / "page.js").read_text(), about(run)
    assert {"targets", "steps"} == set(re.findall(r"about\.columns\.(\w+)", script)) == sent["columns"].keys()
    assert set(re.findall(r"about\.(\w+)", script)) <= sent.keys()


@pytest.mark.usefixtures("shared_programs")
class TestWatch:
    """`norewind watch` on a folder that anyone may have written to."""

    @pytest.fixture
    def run(self, whole, tmp_path):
        shutil.copytree(whole / "bytes", tmp_path / "run")
        return tmp_path / "run"

    @pytest.mark.parametrize("content", ["{", "[]", "[" * 99_999, '{"inputs": 3}', "\xff"])
    def test_columns(self, run, content):
        (run / "columns.json").write_bytes(content.encode("latin-1"))
        assert FolderContent(run).about["columns"] is None

    def test_logs(self, run):
        strange = ["[]", '{"samples": "x"}', '{"seconds": "y"}', "[" * 99_999, '{"key": 1, "surprise": "x"}']
        for name in ("metrics.jsonl", "predictions.jsonl"):
            (run / name).write_text("\n".join([*strange, *strange, '{"samples": 7, "key": 1, "surprise": 2}', ""]))
        live = FolderContent(run)
        assert [line["samples"] for line in live.metrics] == [7]
        assert live.status()["samples"] >= 7
        assert live.snapshot()["keys"][0]["mean"] == 2

    def test_a_checkpoint(self, run):
        path = latest(run)
        arrays, entries = read(path)
        path.unlink()
        _write(path.parent, int(path.name[:15]), arrays, {**entries, "divergence": "x"})
        live = FolderContent(run)
        assert live.status()["divergence"] == "healthy"
        assert live._checkpoint == latest(run)  # and is not read again every time
