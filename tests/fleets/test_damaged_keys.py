"""Fleets whose keys are missing, damaged or written by another program raise errors that say so."""

import shutil
import sqlite3
import zlib

import pytest
from run_folders import assert_rejected, norewind

from norewind.fleets.store import KeyStore

pytestmark = pytest.mark.usefixtures("shared_programs")


def test_keys_written_by_another_program_are_rejected(tmp_path):
    store = KeyStore(tmp_path, "layout")
    store.write([b"a"], [((0, 0, 0, 0), b"content")], 1, 0)
    store.close()
    for column, value in (("content", "text"), ("key", "a")):
        with sqlite3.connect(store.path) as base:
            base.execute(f"UPDATE runs SET {column} = ?, crc = ?", (value, zlib.crc32(b"content")))
        with pytest.raises(ValueError, match="damaged"):
            list(KeyStore(tmp_path, "layout", write=False).all())


def test_a_kill_while_the_keys_are_created_does_no_harm(tmp_path, monkeypatch):
    """The folder is copied before every statement. A kill would leave it like this."""
    run, copies, connect = tmp_path / "run", [], sqlite3.connect
    run.mkdir()

    def watched(*arguments, **options):
        base = connect(*arguments, **options)
        base.set_trace_callback(lambda _: copies.append(shutil.copytree(run, tmp_path / str(len(copies)))))
        return base

    monkeypatch.setattr(sqlite3, "connect", watched)
    store = KeyStore(run, "layout")
    store.write([b"a"], [((0, 0, 0, 0), b"content")], 1, 0)
    store.close()
    monkeypatch.undo()
    assert len(copies) > 8
    for copy in copies:
        store = KeyStore(copy, "layout")
        assert len(store) == 0
        store.close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    rows = "".join(f'{{"k": {row % 2}, "v": {row * row % 7}}}\n' for row in range(40))
    (folder / "rows.jsonl").write_text(rows)
    assert norewind("train", folder / "rows.jsonl", "--key", "k", "--out", folder / "run", "--quiet") == 0
    return folder / "run"


def test_a_fleet_without_its_keys_does_not_start_over(fleet, tmp_path, capsys):
    shutil.copytree(fleet, tmp_path / "run")
    (tmp_path / "run" / "keys.sqlite").unlink()
    assert_rejected(capsys, norewind("resume", tmp_path / "run"), "keys.sqlite does not exist", "Start a new run")
    assert not (tmp_path / "run" / "keys.sqlite").exists()


def test_a_fleet_that_has_lost_its_keys_is_not_served(fleet, tmp_path, capsys):
    pytest.importorskip("starlette")
    shutil.copytree(fleet, tmp_path / "run")
    (tmp_path / "run" / "keys.sqlite").unlink()
    assert_rejected(capsys, norewind("serve", tmp_path / "run", "--port", 0), "keys.sqlite does not exist")


def test_a_key_with_a_run_of_another_size(fleet, tmp_path, capsys):
    shutil.copytree(fleet, tmp_path / "run")
    with sqlite3.connect(tmp_path / "run" / "keys.sqlite") as base:
        base.execute("UPDATE runs SET content = ?, crc = ?", (b"abc", zlib.crc32(b"abc")))
    assert_rejected(capsys, norewind("forecast", tmp_path / "run"), "has the wrong size")
