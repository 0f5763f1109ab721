"""Files are written completely or not at all, never through a link, and errors name them."""

import os
import threading
from pathlib import Path

import pytest

from norewind.fleets.store import KeyStore
from norewind.storage.files import _temporary, write_atomically
from norewind.training.folder import RunFolder
from norewind.training.log import Log
from norewind.training.settings import Settings


def test_files_are_replaced_not_written_through(tmp_path):
    (tmp_path / "mine").write_text("mine")
    for name in ("file", _temporary(tmp_path / "file").name):
        (tmp_path / name).symlink_to(tmp_path / "mine")
    write_atomically(tmp_path / "file", b"ours")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "file").read_text() == "ours"


def test_threads_that_write_the_same_file_do_not_mix(tmp_path, monkeypatch):
    """The second write starts and ends during the first."""
    sync, begun = os.fsync, []

    def fsync(descriptor):
        if not begun:
            begun.append(threading.Thread(target=write_atomically, args=(tmp_path / "file", b"second")))
            begun[0].start()
            begun[0].join()
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(tmp_path / "file", b"first")
    assert (tmp_path / "file").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_error_names_the_file_itself_not_the_temporary_one(tmp_path):
    (tmp_path / "figure.png").mkdir()
    with pytest.raises(OSError, match=r"figure\.png'$") as rejected:
        write_atomically(tmp_path / "figure.png", b"")
    assert rejected.value.filename == str(tmp_path / "figure.png")
    assert [path.name for path in tmp_path.iterdir()] == ["figure.png"]


@pytest.fixture
def synced(monkeypatch):
    """The paths that were synchronised with the disk, in order."""
    found, sync = [], os.fsync

    def note(file):
        found.append(Path(os.readlink(f"/proc/self/fd/{file}")))
        sync(file)

    monkeypatch.setattr(os, "fsync", note)
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_file_is_synchronised_before_it_is_renamed_and_its_folder_afterwards(tmp_path, synced):
    write_atomically(tmp_path / "a" / "b" / "file", b"content")
    assert synced[:2] == [tmp_path / "a", tmp_path]  # the new folders are there, too
    assert synced[2].parent == tmp_path / "a" / "b"
    assert synced[2].name.startswith(".file.")
    assert synced[3:] == [tmp_path / "a" / "b"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_checkpoint_follows_the_logs_and_the_names_of_all_that_it_needs(tmp_path, synced):
    run = tmp_path / "new" / "run"
    with RunFolder(run) as folder:
        folder.begin(Settings())
        log = folder.log("metrics.jsonl")
        log.write([{"samples": 1, "loss": 0.5}])
        synced_before = len(synced)
        folder.save(1, {}, {})
        folder.writer.wait()
    assert {tmp_path, tmp_path / "new", run, run / "lock"} <= set(synced[:synced_before])
    saved = synced[synced_before:]
    assert saved[0] == run / "metrics.jsonl"
    assert saved[1].parent == saved[2] == run / "checkpoints"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_log_that_is_new_after_a_checkpoint_has_a_name_on_disk(tmp_path, synced):
    Log(tmp_path / "predictions.jsonl").close()
    assert synced == [tmp_path]


def test_the_keys_of_a_checkpoint_are_on_disk_before_it(tmp_path):
    """SQLite waits for the disk only in the transaction that belongs to a checkpoint."""
    store, said = KeyStore(tmp_path, "layout"), []
    store._base.set_trace_callback(said.append)
    for durable in (False, True):
        said.clear()
        store.write([b"a"], [((0, 0, 0, 0), b"run")], 1 + durable, 0, durable=durable)
        commit = said.index("COMMIT")
        modes = [line for line in said[:commit] if "synchronous" in line]
        assert modes == [f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}"]
        assert any("INTO about" in line for line in said[:commit]) == durable
    store.close()
