"""Files are written whole or not at all, never through a link, and errors name them."""

import os
import threading

import pytest

from norewind.storage.files import _temporary, write_atomically


def test_files_are_replaced_not_written_through(tmp_path):
    (tmp_path / "mine").write_text("mine")
    for name in ("file", _temporary(tmp_path / "file").name):
        (tmp_path / name).symlink_to(tmp_path / "mine")
    write_atomically(tmp_path / "file", b"ours")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "file").read_text() == "ours"


def test_threads_that_write_the_same_file_do_not_mix(tmp_path, monkeypatch):
    """The second one begins, and ends, while the first one writes."""
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


def test_a_file_that_cannot_be_replaced_is_called_by_its_own_name(tmp_path):
    (tmp_path / "figure.png").mkdir()
    with pytest.raises(OSError, match=r"figure\.png'$") as refused:
        write_atomically(tmp_path / "figure.png", b"")
    assert refused.value.filename == str(tmp_path / "figure.png")
    assert [path.name for path in tmp_path.iterdir()] == ["figure.png"]
