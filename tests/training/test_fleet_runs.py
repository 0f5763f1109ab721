"""Fleets from files: killed, resumed, sharded over processes and Ray, with bad rows, unusual keys and a full disk."""

import json
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from run_folders import cached_build, holder, keys_in
from run_folders import norewind as command

import norewind
from norewind.fleets import store
from norewind.forecasting.forecasts import fleet_forecasts
from norewind.storage.checkpoint import checkpoints, samples_of
from norewind.sweeps import shards as fleet_shards
from norewind.sweeps import workers
from norewind.training.folder import RunFolder
from norewind.training.hooks import Hooks
from norewind.training.progress import Progress
from norewind.training.settings import Settings, SettingsError
from norewind.training.train_folder import train_folder

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture(scope="module", autouse=True)
def quick_processes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        patch.setattr(
            "norewind.training.train_folder.build", cached_build
        )  # the fixtures listed here are set up before those of a test
        yield


ROWS = 2_000


def write_rows(path, count, keys=12):
    rng = random.Random(0)
    with path.open("w") as file:
        file.write("sensor,temp,power\n")
        for i in range(count):
            key = int(keys * rng.random() ** 2)
            file.write(f"s{key},{key + math.sin(i / 9 + key):.4f},{rng.gauss(0, 1):.3f}\n")
    return path


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    source = write_rows(tmp_path_factory.mktemp("data") / "rows.csv", ROWS)
    return Settings(
        str(source), key="sensor", resident=6, targets=("temp",), checkpoint_every=100, predictions="file"
    ).with_format()


def trained(settings, path, **hooks):
    with RunFolder(path) as folder:
        return train_folder(settings, folder, hooks=Hooks(**hooks))


def by_key(*folders):
    """Return the predictions of every key in order, without their numbers in the stream."""
    found = {}
    for folder in folders:
        for line in (folder / "predictions.jsonl").read_text().splitlines():
            entry = json.loads(line)
            entry.pop("sample")
            found.setdefault(entry.pop("key"), []).append(entry)
    return found


@pytest.fixture(scope="module")
def whole(settings, tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    fitted, _ = trained(settings, path)
    assert fitted.samples == ROWS
    return path


def test_every_key_is_forecast_as_if_it_were_alone_in_the_file(settings, whole, tmp_path):
    """Including standardisation and pending rows, to the digits of predictions, since the learner is the same."""
    alone = tmp_path / "alone.csv"
    header, *rows = Path(settings.source).read_text().splitlines()
    alone.write_text("\n".join([header, *(row for row in rows if row.startswith("s3,"))]) + "\n")
    trained(replace(settings, source=str(alone)), tmp_path / "run")
    ours = [{**entry, "line": None} for entry in by_key(whole)["s3"]]
    assert ours == [{**entry, "line": None} for entry in by_key(tmp_path / "run")["s3"]]


def test_a_fleet_that_is_stopped_continues_bit_for_bit(settings, whole, tmp_path):
    chunks = []
    trained(settings, tmp_path / "run", chunk=lambda *_: chunks.append(1), should_stop=lambda: len(chunks) > 8)
    assert len(chunks) < ROWS // 100
    assert len(checkpoints(tmp_path / "run" / "checkpoints")) > 0
    trained(replace(settings, resident=11, checkpoint_every=777), tmp_path / "run")
    assert keys_in(tmp_path / "run") == keys_in(whole)
    assert (tmp_path / "run" / "predictions.jsonl").read_bytes() == (whole / "predictions.jsonl").read_bytes()


def test_a_killed_fleet_continues_bit_for_bit(settings, whole, tmp_path):
    command = [sys.executable, "-m", "norewind"]
    options = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in (
            ("key", "sensor"),
            ("resident", 6),
            ("targets", "temp"),
            ("checkpoint_every", 20),  # so many that the process is still running when it is killed
            ("predictions", "file"),
        )
    ]
    process = subprocess.Popen(
        [*command, "train", settings.source, *options, "--quiet", "--out", str(tmp_path / "run")]
    )
    until = time.monotonic() + 240
    while len(checkpoints(tmp_path / "run" / "checkpoints")) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    trained(settings, tmp_path / "run")
    assert keys_in(tmp_path / "run") == keys_in(whole)
    assert (tmp_path / "run" / "predictions.jsonl").read_bytes() == (whole / "predictions.jsonl").read_bytes()


def test_only_changed_keys_are_written_again(settings, tmp_path):
    source = tmp_path / "rows.csv"
    source.write_text("sensor,temp,power\n" + "".join(f"k{i % 14},{i % 7},1\n" for i in range(200)) + "k1,3,1\n" * 100)
    trained(replace(settings, source=str(source), resident=60, keep=1, predictions="none"), tmp_path / "run")
    base = sqlite3.connect(tmp_path / "run" / "keys.sqlite")
    at = dict(base.execute("SELECT key, max(at) FROM runs GROUP BY key"))
    assert [key for key, samples in at.items() if samples > 200] == [b'"k1"']
    assert len(at) == 14


def killing(monkeypatch, folder):
    """Kill the process that trains in this folder once, after it has saved something."""
    killed, show = [], workers.show_progress

    def show_and_kill(*arguments):
        show(*arguments)
        if not killed and (pid := holder(folder)):
            # It may already have finished.
            while not checkpoints(folder / "checkpoints") and holder(folder) == pid:
                time.sleep(0.001)
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(workers, "show_progress", show_and_kill)
    monkeypatch.setattr(workers, "POLL_SECONDS", 0.05)
    return killed


@pytest.mark.slow
@pytest.mark.parametrize("ray", [None, "auto"])
def test_a_killed_workers_keys_continue_elsewhere_bit_for_bit(ray, settings, whole, tmp_path, monkeypatch):
    if ray:
        pytest.importorskip("ray")
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
    folders = fleet_shards.shard_folders(tmp_path / "run", 2)
    killed = killing(monkeypatch, folders[1])
    with Progress(2, quiet=True) as progress:
        parts = replace(settings, shards=2, predictions="file")
        fleet_shards.train_shards(parts, tmp_path / "run", progress, jobs=2, ray=ray, new=True)
    assert killed
    assert by_key(*folders) == by_key(whole)
    assert {**keys_in(folders[0]), **keys_in(folders[1])} == keys_in(whole)
    assert fleet_shards.shard_summary(tmp_path / "run", 2, json.loads).startswith(f"{ROWS:,} samples, mean loss 0.")


def test_the_summary_of_shards_counts_all_samples_and_only_known_losses(settings, tmp_path):
    source = tmp_path / "rows.csv"
    source.write_text("sensor,temp,power\n" + "".join(f"k{i},{i % 7},1\n" for i in range(250)))
    for number, folder in enumerate(fleet_shards.shard_folders(tmp_path, 2)):
        part = replace(settings, source=str(source), resident=300, shards=2, shard=number, predictions="none")
        trained(part, folder)
    assert fleet_shards.shard_summary(tmp_path, 2, json.loads) == "250 samples.\n250 keys; none has 20 scored rows yet."


def test_keys_of_any_bytes_and_types_are_distinct(settings, tmp_path):
    values = ["a\n\u2028b", "\ud800", "", 1, "1", 1.5, True, "null", "\U0001f600"]
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({"k": value, "x": i % 5}) + "\n" for i in range(60) for value in values))
    odd = replace(settings, source=str(source), key="k", targets=(), format="jsonl", resident=3, bad="skip")
    _, opened = trained(odd, tmp_path / "run")
    assert sum(opened.stream.counts.values()) == 60  # those with an empty key
    assert set(keys_in(tmp_path / "run")) == {json.dumps(value).encode() for value in values if value != ""}
    rows = [json.loads(line)["key"] for line in (tmp_path / "run" / "predictions.jsonl").read_text().split("\n")[:8]]
    assert rows[:8] == [value if value != "\ud800" else "\\ud800" for value in values if value != ""]
    with pytest.raises(norewind.streams.StreamError, match="has no key"):
        trained(replace(odd, bad="stop"), tmp_path / "other")


def test_a_full_disk_is_reported_and_nothing_is_lost(settings, whole, tmp_path, monkeypatch):
    write = store.KeyStore.write

    def on_a_small_disk(self, keys, runs, at, *rest, **options):
        self._base.execute(f"PRAGMA max_page_count = {1_000 if at < 700 else 1}")
        if at >= 700:
            # SQLite never shrinks below its current size, so this leaves no room for more.
            pages = self._base.execute("PRAGMA page_count").fetchone()[0]
            self._base.execute(f"PRAGMA max_page_count = {pages}")
            keys, runs = [*keys, b"more"], [*runs, ((0, 0, 0, 0), bytes(10_000_000))]
        write(self, keys, runs, at, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(store.KeyStore, "write", on_a_small_disk)
        with pytest.raises(OSError, match="No space left") as caught:
            trained(settings, tmp_path / "run")
    assert caught.value.filename.endswith("keys.sqlite")
    trained(settings, tmp_path / "run")
    assert keys_in(tmp_path / "run") == keys_in(whole)
    assert (tmp_path / "run" / "predictions.jsonl").read_bytes() == (whole / "predictions.jsonl").read_bytes()


def test_a_key_that_returns_after_a_year_continues_as_if_it_had_stayed_in_memory(settings, tmp_path):
    """The key was on disk in between; the time since its last row is an input of its next one."""
    source, day = tmp_path / "rows.csv", "2024-01-01T{:02d}:{:02d}:00Z"
    rows = [f"old,{day.format(i // 60, i % 60)},{i % 5}" for i in range(80)]
    rows += [f"k{i % 7},{day.format(2 + i // 60, i % 60)},{i % 3}" for i in range(210)]
    rows += [row.replace("2024", "2025") for row in rows[:40]]
    source.write_text("\n".join(["sensor,time,temp", *rows, ""]))
    timed = replace(settings, source=str(source), inputs=("temp", "time"))
    for name, resident in (("few", 3), ("all", 50)):
        trained(replace(timed, resident=resident), tmp_path / name)
    assert keys_in(tmp_path / "few") == keys_in(tmp_path / "all")
    both = [(tmp_path / name / "predictions.jsonl").read_bytes() for name in ("few", "all")]
    assert both[0] == both[1]
    back = [json.loads(line)["forecast"]["temp"] for line in both[0].splitlines()[-40:]]
    assert np.isfinite(back).all()
    assert np.abs(back[-10:]).max() < 20


def test_the_forecast_of_a_key_is_its_latest_one(settings, whole):
    latest = {key: entries[-1]["forecast"] for key, entries in by_key(whole).items()}
    found = {entry["key"]: entry["forecast"] for entry in fleet_forecasts(whole, settings)}
    assert found == latest
    with pytest.raises(SettingsError, match="no further than its horizon"):
        list(fleet_forecasts(whole, settings, 2))


def test_forecasts_of_keys_are_printed_as_csv(settings, whole, capsys):
    assert command("forecast", whole, "--format", "csv") == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header == "key,step,temp"
    found = [(key, int(step), float(value)) for key, step, value in (line.split(",") for line in lines)]
    assert found == [(each["key"], 1, each["forecast"]["temp"]) for each in fleet_forecasts(whole, settings)]


def test_forecasts_are_those_of_the_checkpoint_not_of_keys_written_after_it(settings, tmp_path):
    """Keys that are moved to disk, or belong to a checkpoint that was not completed, are newer than the checkpoint."""
    often = replace(settings, predictions="none", samples=20, keep=100)
    trained(often, tmp_path / "run")
    before = list(fleet_forecasts(tmp_path / "run", often))
    trained(replace(often, samples=120), tmp_path / "run")
    for path in checkpoints(tmp_path / "run" / "checkpoints"):
        if samples_of(path) > 20:
            path.unlink()
    assert list(fleet_forecasts(tmp_path / "run", often)) == before
    assert len(store.KeyStore(tmp_path / "run", None, write=False)) > len(before)  # also new keys


@pytest.mark.parametrize("model", [{}, {"method": "snap1", "hidden": 4}, {"method": "snap1", "loss": "gaussian"}])
@pytest.mark.parametrize("ahead", [{"horizon": 3}, {"only_steps": (1, 3)}])
def test_all_steps_are_forecast_each_by_the_nearest_that_reaches_it(model, ahead, settings, tmp_path):
    """With steps 1 and 3, row 2 ahead is forecast by step 3 of the row before the latest."""
    several = replace(settings, **model, **ahead, samples=600)
    trained(several, tmp_path / "run")
    found = {(entry["key"], entry["step"]): entry for entry in fleet_forecasts(tmp_path / "run", several)}
    for key, entries in by_key(tmp_path / "run").items():
        for row in (1, 2, 3):
            ago, step = (1, 3) if row == 2 and "only_steps" in ahead else (0, row)
            if len(entries) > ago:
                then = entries[-1 - ago]["forecast"][str(step)]
                enough = len(entries) - ago > 10  # with fewer rows, the forecast is the last value, which has changed
                assert not enough or found[key, row]["forecast"] == then
                assert not enough or ("deviation" in found[key, row]) == (several.loss == "gaussian")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"key": None, "share": True}, "Name the column of the keys"),
        ({"method": "bptt:16"}, "has windows"),
        ({"method": "nonsense"}, "method: no method is called 'nonsense'"),
        ({"loss": "classes"}, "not supported"),
        ({"share": True, "shards": 2, "resident": None}, "shards= cannot split"),
        ({"key": "nothing"}, "no column 'nothing' to take keys from"),
        ({"key": "temp"}, "cannot be an input, a target or copied"),
        ({"hidden": 5}, "auto chooses its own"),
    ],
)
def test_unsupported_settings_are_rejected_with_an_explanation(changed, message, settings, tmp_path):
    with pytest.raises((SettingsError, norewind.streams.StreamError), match=message):
        trained(replace(settings, **changed), tmp_path / "run")


@pytest.mark.parametrize("predictions", ["stdout", "kafka://answers"])
def test_shards_cannot_share_an_output_for_predictions(predictions, settings, tmp_path):
    parts = replace(settings, shards=2, predictions=predictions)
    with pytest.raises(SettingsError, match="several processes cannot"):
        fleet_shards.train_shards(parts, tmp_path / "run", Progress(2, quiet=True), new=True)
    assert not (tmp_path / "run").exists()


def test_shared_keys_from_a_file_continue_bit_for_bit(settings, tmp_path):
    shared = replace(settings, share=True, resident=None, method="bptt", hidden=4, horizon=2, samples=1_536)
    trained(shared, tmp_path / "whole")
    chunks = []
    trained(shared, tmp_path / "run", chunk=lambda *_: chunks.append(1), should_stop=lambda: len(chunks) > 3)
    assert len(chunks) < 6
    trained(shared, tmp_path / "run")
    assert keys_in(tmp_path / "run") == keys_in(tmp_path / "whole")
    both = [(tmp_path / name / "predictions.jsonl").read_bytes() for name in ("run", "whole")]
    assert both[0] == both[1]
    assert np.count_nonzero(both[0]) > 0
