"""The command that scores the Numenta benchmark: it resumes, and its scores are those of the detector."""

import json

import numpy as np

from norewind.sweeps.record import read_records
from scoreboards import nab as board


def corpus(folder):
    noise, labels = np.random.default_rng(0), {}
    for number in range(2):
        values = noise.normal(size=400) + 40.0 * (np.arange(400) >= 300) * (number == 0)
        times = [f"2014-01-{1 + row // 24:02} {row % 24:02}:00:00" for row in range(400)]
        path = folder / f"data/real/{number}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("timestamp,value\n" + "".join(f"{a},{b}\n" for a, b in zip(times, values, strict=True)))
        labels[f"real/{number}.csv"] = [[times[295], times[330]]] if number == 0 else []
    (folder / "labels").mkdir()
    (folder / "labels/combined_windows.json").write_text(json.dumps(labels))


def test_a_jump_is_found_and_files_with_a_record_are_not_run_again(tmp_path, monkeypatch, capsys):
    corpus(tmp_path)
    board.run(tmp_path, tmp_path / "out", quick=False)
    records = read_records(tmp_path / "out")
    assert records["results"]["files"] == 2
    assert records["results"]["scores"]["all files"]["standard"] > 90
    assert board.scores_of(records["real/0.csv"]).argmax() == 300
    assert "all files" in capsys.readouterr().out
    monkeypatch.setattr(board, "run_on", None)
    board.run(tmp_path, tmp_path / "out", quick=False)
    again = read_records(tmp_path / "out")
    assert again["results"]["scores"] == records["results"]["scores"]
