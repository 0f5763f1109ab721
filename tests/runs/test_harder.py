"""More that people, shells, editors and file systems do: each once gave a traceback, a hang or a wrong value."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from run_folders import SMALL, TEXT, assert_refused, at_sample, everything, newest, norewind

from norewind.checkpoint import CheckpointError
from norewind.cli.running import StopOnSignal
from norewind.cli.study import generate
from norewind.cli.train import with_config
from norewind.files import write_atomically
from norewind.runs import compress
from norewind.runs.folder import Log, as_lines, read_log
from norewind.runs.scores import place_of
from norewind.runs.settings import Settings, SettingsError, read_toml
from norewind.streams import Dialect, RowStream, Source, StreamError

DIGITS = "9" * 5_000
JSON = Dialect("jsonl")


@pytest.mark.parametrize("text", [f"hidden = {DIGITS}", f"inputs = {'[' * 5_000}"], ids=["digits", "brackets"])
def test_settings_that_exceed_what_python_reads(tmp_path, text):
    (tmp_path / "settings.toml").write_text(text)
    with pytest.raises(SettingsError, match="not a TOML file that can be read"):
        read_toml(tmp_path / "settings.toml")


def test_settings_from_an_editor_that_writes_a_byte_order_mark(tmp_path):
    (tmp_path / "settings.toml").write_bytes(b"\xef\xbb\xbfhidden = 7\r\n")
    assert read_toml(tmp_path / "settings.toml").hidden == 7


@pytest.mark.parametrize("name", ["rate", "alpha", "clip"])
def test_rates_that_overflow_are_refused(name):
    with pytest.raises(SettingsError, match=f"{name} is 1e[+]308"):
        Settings(**{name: 1e308})


def test_config_without_a_file_shows_our_name(capsys):
    with pytest.raises(SystemExit):
        with_config(["train", "x", "--config"])
    assert capsys.readouterr().err.startswith("usage: norewind train")


@pytest.mark.parametrize(
    "line", [b"[]", b"3", b'{"loss": "low"}', b'{"samples": [1]}', b'{"loss": 1e999}', b"[" * 99_999]
)
def test_metrics_that_somebody_else_wrote(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"samples": 3, "loss": null}\n' + line + b"\n")
    with pytest.raises(CheckpointError, match="line 2: not a line that norewind wrote"):
        read_log(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("how", ["folder", "link"])
def test_a_newest_checkpoint_that_cannot_be_read_can_be_skipped(whole, tmp_path, capsys, how):
    shutil.copytree(whole / "bytes", tmp_path / "run")
    path = newest(tmp_path / "run")
    path.unlink()
    path.mkdir() if how == "folder" else path.symlink_to(tmp_path / "nowhere")
    assert_refused(capsys, norewind("resume", tmp_path / "run"), "cannot be read", "--damaged skip")
    assert norewind("resume", tmp_path / "run", "--damaged", "skip", "--quiet") == 0
    assert everything(tmp_path / "run") == everything(whole / "bytes")


def test_a_file_that_cannot_be_replaced_is_called_by_its_own_name(tmp_path):
    (tmp_path / "figure.png").mkdir()
    with pytest.raises(OSError, match=r"figure\.png'$") as refused:
        write_atomically(tmp_path / "figure.png", b"")
    assert refused.value.filename == str(tmp_path / "figure.png")
    assert [path.name for path in tmp_path.iterdir()] == ["figure.png"]


def test_an_endless_text_is_refused():
    for samples in ("inf", "nan", "-1"):
        with pytest.raises(SettingsError, match="must be (at least 0|finite)"):
            generate("anbn", samples=float(samples))


FORGED = [{"first": 300}, {"first": -1}, {"first": "a"}, {"first": 1.5}, {"bytes": -5}, {"bytes": True}, {"bytes": 0}]
FORGED += [{"budget": "x"}, {"budget": 50}, {"budget": -1, "network": {}}, {"network": {}}, {"sha256": 5}, {"more": 1}]


@pytest.mark.parametrize("entry", FORGED, ids=str)
def test_a_forged_header_of_a_compressed_file(entry):
    header = {"format": compress.FORMAT, "bytes": 9, "first": 97, "sha256": "0" * 64, **entry}
    with pytest.raises(compress.CodeError, match="header of this file is damaged"):
        compress.decompressed(compress.MAGIC + json.dumps(header).encode() + b"\nabcd")


def test_a_header_nested_deeper_than_python_reads():
    with pytest.raises(compress.CodeError, match="header of this file is damaged"):
        compress.decompressed(compress.MAGIC + b"[" * 99_999)


def test_a_code_that_is_used_up_ends_the_decoding():
    """A header may ask for 10¹⁸ bytes of a code of four."""
    header = {"format": compress.FORMAT, "bytes": 10**18, "first": 97, "sha256": "0" * 64}
    with pytest.raises(compress.CodeError, match="ends too early"):
        compress.decompressed(compress.MAGIC + json.dumps(header).encode() + b"\nabcd")


@pytest.mark.parametrize("budget", [float("nan"), float("inf"), -1, 0])
def test_a_budget_that_is_none(budget):
    with pytest.raises(compress.CodeError, match="the budget must be"):
        compress.compressed(b"abc", budget=budget)


@pytest.mark.parametrize("where", ["full", "gone"])
def test_messages_that_nobody_reads_stop_nothing(where):
    """A full disk under the log of a service, a terminal that was closed, `2>&1 | head`."""
    saying = "import sys; from norewind import standard; standard.prepare(); print('x' * 9_999, file=sys.stderr)"
    reading, writing = os.pipe()
    os.close(reading)
    with open("/dev/full", "wb") as full:
        ended = subprocess.run([sys.executable, "-c", saying], stderr=full if where == "full" else writing, check=False)
    os.close(writing)
    assert ended.returncode == 0


def test_a_closed_terminal_is_a_request_to_stop():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, under which these tests may run, ignores it
    with StopOnSignal() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop()
        assert stop.exit_code == 128 + signal.SIGHUP
    signal.signal(signal.SIGHUP, before)


def test_nohup_stays_in_force():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopOnSignal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_first_row_with_too_many_values(tmp_path):
    (tmp_path / "rows").write_text(json.dumps(dict.fromkeys(map(str, range(10_001)), 1)) + "\n")
    with pytest.raises(StreamError, match=r"line 1 \(byte 0\) is bad: it has more than 10000 values"):
        RowStream(Source(tmp_path / "rows"), dialect=JSON)


def test_a_place_in_a_list_is_written_in_our_digits(tmp_path):
    rows = [{f"a.{DIGITS}": 1, "a.٣": 1, "v": 1}, {"a": [5, 6, 7, 8], "v": 2}]
    (tmp_path / "rows").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with RowStream(Source(tmp_path / "rows"), dialect=JSON, standardise=False) as stream:
        place = stream.inputs.index("a.٣")
        assert stream.take(9).xs[:, place].tolist() == [1, 1]  # the last value: the second row has none


def test_copied_values_that_json_does_not_have(tmp_path):
    texts = ["Infinity", "[NaN]", '{"y": -1e999}', '"\\ud800"']
    (tmp_path / "rows").write_text("".join(f'{{"v": {i}, "x": {text}}}\n' for i, text in enumerate(texts)))
    with RowStream(Source(tmp_path / "rows"), dialect=JSON, copy=["x"]) as stream:
        samples = stream.take(9)
    lines = as_lines([place_of(samples, i) for i in range(4)]).splitlines()
    assert [json.loads(line)["copied"]["x"] for line in lines] == [None, [None], {"y": None}, "\ud800"]


def test_a_long_field_may_have_quotes(tmp_path):
    (tmp_path / "rows.csv").write_text('a,b\n1,x\n2,"' + "y" * 200_000 + '"\n3,z\n')
    with RowStream(Source(tmp_path / "rows.csv"), standardise=False) as stream:
        assert stream.take(9).xs.tolist() == [[1], [2], [3]]


@pytest.mark.parametrize("options", [{"horizon": 10**30}, {"steps": (1, 10**30)}, {"steps": ()}], ids=str)
def test_a_horizon_beyond_any_use(tmp_path, options):
    (tmp_path / "rows.csv").write_text("a\n1\n2\n")
    with pytest.raises(StreamError, match="the (horizon|steps) must be"):
        RowStream(Source(tmp_path / "rows.csv"), **options)


def test_a_run_does_not_learn_from_its_own_predictions(whole, tmp_path, capsys):
    shutil.copytree(whole / "bytes", tmp_path / "run")
    code = norewind("resume", tmp_path / "run", "--source", tmp_path / "run" / "predictions.jsonl")
    assert_refused(capsys, code, "is written by this run", "Copy it first")


def test_a_clock_that_is_set_back_changes_nothing(whole, tmp_path, monkeypatch):
    clock = iter(range(10**9, 0, -3_600))
    monkeypatch.setattr("time.time", lambda: float(next(clock)))
    assert norewind("train", whole / "text", "--out", tmp_path / "run", *TEXT) == 0
    assert everything(tmp_path / "run") == everything(whole / "bytes")


def test_a_folder_that_is_deleted_in_mid_run(whole, tmp_path, monkeypatch, capsys):
    """What was there is gone, and the run says so at its next checkpoint; it does not make the folder again."""
    run, times = tmp_path / "run", iter([1])

    def delete():
        for _ in times:  # once
            while run.exists():  # a checkpoint may be written meanwhile
                shutil.rmtree(run, ignore_errors=True)

    at_sample(monkeypatch, 600, delete)
    code = norewind("train", whole / "text", "--out", run, *SMALL)
    assert_refused(capsys, code, str(run))
    assert not run.exists()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, of 4 MB. Only root may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("not permitted to mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_filled_in_mid_run(whole, small_disk, monkeypatch, capsys):
    """The last checkpoint is whole, the message names the file, and the run goes on later to the same end."""
    run = small_disk / "run"

    def fill():
        with suppress(OSError), (small_disk / "filler").open("ab", 0) as file:
            while True:
                file.write(b"x" * 4_096)

    with monkeypatch.context() as patch:
        at_sample(patch, 600, fill)
        code = norewind("train", whole / "text", "--out", run, *TEXT)
    assert_refused(capsys, code, str(run), "No space left", "To continue")
    assert_refused(capsys, norewind("resume", run), str(run), "No space left")
    (small_disk / "filler").unlink()
    assert norewind("resume", run, "--quiet") == 0
    assert everything(run) == everything(whole / "bytes")


def test_a_full_disk_under_a_log_is_named_by_the_log(tmp_path):
    log = Log(tmp_path / "metrics.jsonl")
    log._file.close()
    log._file = open("/dev/full", "ab")  # noqa: SIM115
    with pytest.raises(OSError, match="No space left") as refused:
        log.write([{"samples": 1}])
    assert refused.value.filename == str(tmp_path / "metrics.jsonl")


def test_a_disk_that_becomes_read_only(whole, small_disk, monkeypatch, capsys):
    run = small_disk / "run"

    def fails(descriptor):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        at_sample(patch, 600, lambda: patch.setattr("os.fsync", fails))
        code = norewind("train", whole / "text", "--out", run, *TEXT)
    assert_refused(capsys, code, str(run), "Read-only file system", "To continue")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert_refused(capsys, norewind("resume", run), str(run), "Read-only file system")
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert norewind("resume", run, "--quiet") == 0
    assert everything(run) == everything(whole / "bytes")
