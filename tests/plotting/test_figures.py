"""The figures of one run and of several, and of runs without lines of metrics."""

import numpy as np
import pytest
from run_folders import assert_rejected, norewind

from norewind.plotting.figures import curves_figure, rows_figure, save, unscored

pytestmark = pytest.mark.usefixtures("shared_programs")


def test_curves_of_several_runs(whole, tmp_path, capsys, monkeypatch):
    monkeypatch.undo()  # really draw the figures
    out = tmp_path / "new" / "curves.svg"
    assert norewind("plot", whole / "bytes", whole / "bytes", "--out", out) == 0
    assert f"See {out}" in capsys.readouterr().out
    assert "<svg" in out.read_text()
    code = norewind("plot", whole / "bytes", whole / "rows", "--out", out)
    assert_rejected(capsys, code, "measured in bits and squared error: draw them separately")
    assert_rejected(capsys, norewind("plot"), "name at least one run folder")
    assert_rejected(capsys, norewind("plot", whole / "rows", "--out", tmp_path / "x.doc"), ".png, .pdf or .svg")
    assert_rejected(capsys, norewind("plot", tmp_path), "holds no run")


def test_a_log_changed_by_another_program_is_rejected(whole, tmp_path, capsys):
    (tmp_path / "settings.toml").write_bytes((whole / "rows" / "settings.toml").read_bytes())
    lines = (whole / "rows" / "metrics.jsonl").read_bytes().splitlines(True)
    (tmp_path / "metrics.jsonl").write_bytes(lines[0] + b"hello\n" + lines[1])
    assert_rejected(capsys, norewind("plot", tmp_path), "metrics.jsonl, line 2: not a line that norewind wrote")
    # A killed run may leave half a line at the end, which is ignored.
    (tmp_path / "metrics.jsonl").write_bytes(lines[0] + lines[1][:-5])
    assert norewind("plot", tmp_path, "--out", tmp_path / "curve.png") == 0


def test_figures_are_never_empty(tmp_path):
    for lines in ([], [{"samples": 3, "loss": None}], [{"samples": 3, "loss": 1.0, "baseline": 2.0}]):
        figure = curves_figure([("run", lines)], "squared error")
        assert save(figure, tmp_path / "curve.png").stat().st_size > 5_000
    recent = np.full((5, 2, 3), np.nan)
    recent[..., 0] = 1
    assert save(rows_figure(recent, ["a", "b"], 5), tmp_path / "recent.png").stat().st_size > 5_000


def test_a_figure_explains_why_nothing_was_scored():
    assert unscored(np.full(200, 3.0)) == "not scored: all values are the same"
    for values in (np.full(5, 3.0), np.arange(200.0), np.full(200, np.nan)):
        assert "too few" in unscored(values)
