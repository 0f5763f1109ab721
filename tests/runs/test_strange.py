"""Strange options and files for the commands around training: each once gave a traceback or a hang."""

import gzip
import shutil
import sqlite3
import zlib

import pytest
from run_folders import assert_refused, newest, norewind

from norewind.checkpoint import _write, read
from norewind.checks import ModelError
from norewind.cli.running import friendly
from norewind.cli.serve import listening
from norewind.fleets.store import Entry, Store
from norewind.runs.record import read_record
from norewind.runs.settings import Settings, SettingsError
from norewind.runs.workers import Workers
from norewind.streams import Dialect, KeyedStream, Source


@pytest.mark.parametrize("entry", [{"period": 10**12}, {"shards": 10**12}, {"resident": 10**18}], ids=str)
def test_more_numbers_beyond_any_use(entry):
    ((name, value),) = entry.items()
    with pytest.raises(SettingsError, match=f"{name} is {value}: "):
        Settings(**entry)


@pytest.mark.parametrize("option", ["--inputs", "--targets", "--copy"])
@pytest.mark.parametrize("name", ["rows.csv.gz", "rows.txt"])
def test_columns_of_what_has_none_are_refused(tmp_path, capsys, name, option):
    (tmp_path / name).write_bytes(gzip.compress(b"level\n1\n2\n") if name.endswith("gz") else b"level 1 2")
    code = norewind("train", tmp_path / name, option, "level", "--out", tmp_path / "run")
    assert_refused(capsys, code, "is read as bytes, which has no columns", "zcat FILE.gz")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"[" * 99_999], ids=["cut", "list", "bytes", "deep"])
def test_a_record_that_cannot_be_read_is_named(tmp_path, capsys, content):
    assert read_record(tmp_path / "one.json") is None
    assert not capsys.readouterr().err
    (tmp_path / "one.json").write_bytes(content)
    assert read_record(tmp_path / "one.json") is None
    assert "one.json is not a record that can be read" in capsys.readouterr().err


@pytest.mark.parametrize("jobs", [0, -1, 10**9])
def test_a_number_of_processes_that_is_none(jobs):
    with pytest.raises(SettingsError, match="--jobs must be from 1 to 1000"):
        Workers(lambda: "", None, jobs)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "command",
    [
        ("generate", "anbn", "--seed", "-1"),
        ("sample", "RUN", "--length", 10**13),
        ("sample", "RUN", "--temperature", "1e-320"),
        ("compress", "/dev/zero"),
    ],
    ids=lambda command: command[0] + str(command[-1]),
)
def test_strange_options(whole, capsys, command):
    code = norewind(*(whole / "bytes" if word == "RUN" else word for word in command))
    assert_refused(capsys, code, "must be" if command[0] != "compress" else "it may have no end")


@pytest.mark.parametrize(
    ("error", "words"),
    [(MemoryError("Unable to allocate 9 TB"), "not enough memory. Unable"), (ModelError("snap1: no"), "snap1: no")],
)
def test_too_little_memory_and_a_model_that_a_method_refuses(capsys, error, words):
    with pytest.raises(SystemExit), friendly("train"):
        raise error
    assert_refused(capsys, 1, words)


def test_an_infinite_number_is_no_key(tmp_path):
    (tmp_path / "rows").write_text('{"k": 1, "v": 1}\n{"k": 1e999, "v": 2.5}\n{"k": true, "v": 3}\n')
    with KeyedStream(Source(tmp_path / "rows"), "k", dialect=Dialect("jsonl", bad="skip")) as stream:
        samples = stream.take(9)
        assert samples is not None
        assert samples.keys is not None
        assert samples.keys.tolist() == [b"1", b"true"]
        assert stream.counts == {"bad rows": 1}


@pytest.mark.parametrize("host", ["a..b", "x" * 300, "\udce9"])
def test_a_name_that_no_host_has(host, tmp_path):
    (tmp_path / "token").write_text("x" * 20)
    with pytest.raises(SettingsError, match="cannot listen on"), listening(host, 0, tmp_path / "token"):
        pass


def test_a_token_that_is_no_text(tmp_path):
    (tmp_path / "token").write_bytes(b"\xff" * 20)
    with pytest.raises(SettingsError, match="the token must have"), listening("127.0.0.1", 0, tmp_path / "token"):
        pass


def test_keys_that_somebody_else_wrote(tmp_path):
    store = Store(tmp_path, "layout")
    store.write([Entry(b"a", b"content")], 1, 0)
    store.close()
    for column, value in (("content", "text"), ("key", "a")):
        with sqlite3.connect(store.path) as base:
            base.execute(f"UPDATE runs SET {column} = ?, crc = ?", (value, zlib.crc32(b"content")))
        with pytest.raises(ValueError, match="damaged"):
            list(Store(tmp_path, "layout", write=False).all())


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    rows = "".join(f'{{"k": {row % 2}, "v": {row * row % 7}}}\n' for row in range(40))
    (folder / "rows.jsonl").write_text(rows)
    assert norewind("train", folder / "rows.jsonl", "--key", "k", "--out", folder / "run", "--quiet") == 0
    return folder / "run"


def test_a_fleet_that_has_lost_its_keys_does_not_go_on_with_new_ones(fleet, tmp_path, capsys):
    shutil.copytree(fleet, tmp_path / "run")
    (tmp_path / "run" / "keys.sqlite").unlink()
    assert_refused(capsys, norewind("resume", tmp_path / "run"), "keys.sqlite does not exist", "Start a new run")
    assert not (tmp_path / "run" / "keys.sqlite").exists()


def test_a_fleet_that_has_lost_its_keys_is_not_served(fleet, tmp_path, capsys):
    pytest.importorskip("starlette")
    shutil.copytree(fleet, tmp_path / "run")
    (tmp_path / "run" / "keys.sqlite").unlink()
    assert_refused(capsys, norewind("serve", tmp_path / "run", "--port", 0), "keys.sqlite does not exist")


def test_a_key_with_a_run_of_another_size(fleet, tmp_path, capsys):
    shutil.copytree(fleet, tmp_path / "run")
    with sqlite3.connect(tmp_path / "run" / "keys.sqlite") as base:
        base.execute("UPDATE runs SET content = ?, crc = ?", (b"abc", zlib.crc32(b"abc")))
    assert_refused(capsys, norewind("forecast", tmp_path / "run"), "has another size")


class TestWatch:
    """`norewind watch` of a folder that anybody may have written to."""

    @pytest.fixture
    def run(self, whole, tmp_path):
        pytest.importorskip("starlette")
        shutil.copytree(whole / "bytes", tmp_path / "run")
        return tmp_path / "run"

    @pytest.mark.parametrize("content", ["{", "[]", "[" * 99_999, '{"inputs": 3}', "\xff"])
    def test_columns(self, run, content):
        from norewind.serving.feed import Following

        (run / "columns.json").write_bytes(content.encode("latin-1"))
        assert Following(run).feed.about["columns"] is None

    def test_logs(self, run):
        from norewind.serving.feed import Following

        strange = ["[]", '{"samples": "x"}', '{"seconds": "y"}', "[" * 99_999, '{"key": 1, "surprise": "x"}']
        for name in ("metrics.jsonl", "predictions.jsonl"):
            (run / name).write_text("\n".join([*strange, *strange, '{"samples": 7, "key": 1, "surprise": 2}', ""]))
        following = Following(run)
        assert [line["samples"] for line in following.feed.metrics] == [7]
        assert following.status()["samples"] >= 7
        assert following.feed.top_keys()[0]["mean"] == 2

    def test_a_checkpoint(self, run):
        from norewind.serving.feed import Following

        path = newest(run)
        arrays, entries = read(path)
        path.unlink()
        _write(path.parent, int(path.name[:15]), arrays, {**entries, "watch": "x"})
        following = Following(run)
        assert following.status()["bad"] == 0
        assert following._checkpoint == newest(run)  # and is not read again at every look
