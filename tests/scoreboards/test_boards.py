"""The command for all boards: it resumes, names missing data, and the page has a section for each board."""

from pathlib import Path

import pytest

from norewind.sweeps.record import write_record
from scoreboards import boards
from scoreboards.__main__ import main
from scoreboards.board import Board

PAGE = Path(__file__).parents[2] / "docs/scoreboards.md"


def run(data, out, quick):
    write_record(out, "results", {"quick": quick, "files": len(list(data.iterdir()))})


def quote(records):
    return {"ours": str(records["results"]["files"]), "microseconds": "7"} if records else {}


@pytest.fixture
def board(monkeypatch):
    board = Board("dice", "Throws: six of them", "share", "1/6", "dice", "https://example.org/dice", run, quote)
    monkeypatch.setattr(boards, "BOARDS", {"dice": board})
    monkeypatch.setattr("scoreboards.__main__.BOARDS", boards.BOARDS)
    return board


def test_a_board_runs_on_its_folder_and_is_quoted(board, tmp_path):
    (tmp_path / "data/dice").mkdir(parents=True)
    (tmp_path / "data/dice/throws.csv").touch()
    assert main((), data=tmp_path / "data", out=tmp_path / "results", quick=True) == 0
    quoted = dict(boards.quotes(tmp_path / "results"))
    assert quoted["dice/ours"] == "1"
    assert "| [Throws: six of them](#throws-six-of-them) | share | 1/6 | 1 | 7 |" in quoted["scoreboards/summary"]


def test_missing_data_and_unknown_names_are_told(board, tmp_path, capsys):
    assert main(("dice",), data=tmp_path, out=tmp_path / "results") == 1
    assert "https://example.org/dice" in capsys.readouterr().err
    assert main(("cards",), data=tmp_path) == 2
    assert "unknown: cards. The benchmarks are dice." in capsys.readouterr().err
    assert dict(boards.quotes(tmp_path)).keys() == {"scoreboards/summary"}


@pytest.mark.parametrize("name", boards.BOARDS)
def test_every_board_has_a_section(name):
    assert f"\n## {boards.BOARDS[name].title}\n" in PAGE.read_text(encoding="utf-8")
