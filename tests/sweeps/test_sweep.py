"""Sweeps train many runs side by side, each in its own process, and write a record of each."""

import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import replace
from io import StringIO

import pytest
from run_folders import holder, wait_for

from norewind.storage.checkpoint import checkpoints
from norewind.sweeps import workers
from norewind.sweeps.record import RECORDS, read_records, write_record
from norewind.sweeps.sweep import finished_records, sweep
from norewind.sweeps.workers import SweepError
from norewind.training.log import LogTail
from norewind.training.progress import Progress
from norewind.training.settings import Settings, SettingsError

pytestmark = pytest.mark.usefixtures("shared_programs")

SMALL = Settings(source="anbn", hidden=4, method="bptt:4", samples=1_200, metrics_every=400)
PLAN = {"zero": SMALL, "one": replace(SMALL, seed=1), "rejected": replace(SMALL, method="lstm97")}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep")
    return out, sweep(PLAN, out, jobs=2, quiet=True)


def test_every_run_leaves_a_record(done):
    out, found = done
    assert list(found) == list(PLAN)
    record = found["one"]
    assert Settings(**record["settings"]) == PLAN["one"]
    assert (record["samples"], record["every"], record["unit"], record["problem"]) == (1_200, 400, "bits", None)
    assert len(record["curve"]) == len(record["baseline"]) == len(record["carry"]) == 3
    assert record["mean"] == pytest.approx(sum(record["curve"]) / 3, rel=1e-5)
    assert record["curve"] != found["zero"]["curve"]
    assert record["cpu_seconds"] > 0
    assert {"norewind", "commit", "jax", "python", "seconds", "microseconds", "carried_bytes"} <= set(record)
    assert read_records(out)["one"] == record
    assert list(read_records(out)) == sorted(PLAN)
    # The files needed to continue are gone.
    assert list((out / "folders").iterdir()) == []


def test_a_method_that_rejects_the_cell_has_its_reason_in_the_record(done):
    _, found = done
    assert found["rejected"]["problem"].startswith("rejected: method lstm97 does not work with cell gru")
    assert found["rejected"]["curve"] == []


def test_finished_runs_are_kept_and_changed_ones_trained_again(done, monkeypatch, capsys):
    out, found = done
    before = (out / RECORDS).stat().st_mtime_ns
    assert sweep(PLAN, out) == found
    assert "3 of 3 runs were finished before." in capsys.readouterr().err
    assert (out / RECORDS).stat().st_mtime_ns == before
    assert set(finished_records({**PLAN, "one": replace(PLAN["one"], rate=0.1)}, out)) == {"zero", "rejected"}


def write_some(out, first, all_ready):
    all_ready.wait()
    for number in range(first, first + 20):
        write_record(out, f"{number:03}", {"curve": [number] * 1_000})


def test_processes_that_end_at_once_lose_no_record(tmp_path):
    context = multiprocessing.get_context("spawn")
    all_ready = context.Barrier(2)
    writers = [context.Process(target=write_some, args=(tmp_path, 20 * place, all_ready)) for place in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert list(read_records(tmp_path)) == [f"{number:03}" for number in range(40)]
    write_record(tmp_path, "007", {"curve": []})
    assert read_records(tmp_path)["007"] == {"curve": []}
    assert len((tmp_path / RECORDS).read_text().splitlines()) == 40


def test_a_diverged_run_reports_when(tmp_path):
    (tmp_path / "table.csv").write_text("\n".join(["a", *(str(i % 7) for i in range(500)), "1e30", "1", "2", ""]))
    rows = Settings(
        source=str(tmp_path / "table.csv"), hidden=2, method="bptt", standardise=False, metrics_every=100
    ).with_format()
    (record,) = sweep({"rows": rows}, tmp_path / "out", quiet=True).values()
    assert record["diverged_at"] == 501
    assert record["problem"] == "diverged: sample 501 gave numbers that are not finite."
    # The line at 500 samples had already been written.
    assert len(record["curve"]) == 5
    assert len(record["persistence"]) == 5


LONG = replace(SMALL, samples=1_000_000, metrics_every=20_000)
SCRIPT = f"""
import sys
from pathlib import Path
from norewind.training.settings import Settings
from norewind.sweeps.sweep import sweep
if __name__ == "__main__":
    sweep({{"long": Settings(**{LONG.as_json()!r})}}, Path(sys.argv[1]), jobs=1)
"""


def test_ctrl_c_saves_every_run_and_the_next_call_continues(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    process = subprocess.Popen([sys.executable, tmp_path / "script.py", tmp_path / "out"], stderr=subprocess.PIPE)
    folder = tmp_path / "out" / "folders" / "long"
    wait_for(lambda: LogTail(folder / "metrics.jsonl").new()[1], process)
    process.send_signal(signal.SIGINT)
    assert b"KeyboardInterrupt" in process.communicate()[1]
    assert process.returncode != 0
    samples = int(next((folder / "checkpoints").glob("*.safetensors")).name[:15])
    assert 0 < samples < 1_000_000
    (continued,) = sweep({"long": LONG}, tmp_path / "out", quiet=True).values()
    (whole,) = sweep({"long": LONG}, tmp_path / "whole", quiet=True).values()
    assert continued["curve"] == whole["curve"]
    assert continued["cpu_seconds"] is None  # the time before the kill is unknown


def kill_once_saved(monkeypatch, folder, times):
    """Kill the process that trains in a folder a number of times, each time after a new checkpoint."""
    killed, show = [], workers.show_progress

    def show_and_kill(*arguments):
        show(*arguments)
        saved = [path.name for path in checkpoints(folder / "checkpoints")]
        pid = holder(folder)
        if len(killed) < times and saved and pid and saved[-1] not in killed:
            killed.append(saved[-1])
            os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(workers, "show_progress", show_and_kill)
    monkeypatch.setattr(workers, "POLL_SECONDS", 0.05)
    return killed


def test_a_killed_run_does_not_end_the_others(tmp_path, monkeypatch):
    plan = {"long": replace(SMALL, samples=40_000_000, checkpoint_every=1_000), "short": replace(SMALL, seed=3)}
    monkeypatch.setattr(workers, "RESTARTS", 0)
    kill_once_saved(monkeypatch, tmp_path / "folders" / "long", 1)
    with pytest.raises(SweepError, match="long: BrokenProcessPool"):
        sweep(plan, tmp_path, jobs=2, quiet=True)
    assert list(finished_records(plan, tmp_path)) == ["short"]


def test_a_run_that_is_killed_repeatedly_is_reported_as_failed(tmp_path, monkeypatch):
    class Place:
        jobs, killed, starts = 1, RuntimeError, 0
        stop = end = staticmethod(lambda *_: None)

        def start(self, *_):
            self.starts += 1
            assert self.starts < 20
            future = Future()
            future.set_exception(RuntimeError("killed"))
            return future

    output = StringIO()
    monkeypatch.setattr(workers, "_LocalProcesses", lambda jobs: Place())
    with pytest.raises(SweepError, match="run: RuntimeError: killed"):
        workers.train_in_processes(lambda: "", {"run": (SMALL, tmp_path)}, Progress(2, out=output))
    lines = output.getvalue().splitlines()
    assert sum("continuing" in line for line in lines) == workers.RESTARTS
    assert lines[-1] == "run: failed"


def test_a_run_that_fails_while_it_is_stopped_is_reported(tmp_path, monkeypatch):
    class Place:
        jobs, killed = 1, RuntimeError
        future = Future()

        def start(self, *_):
            return self.future

        def stop(self):
            self.future.set_exception(OSError(28, "No space left on device"))

    monkeypatch.setattr(workers, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(workers, "_LocalProcesses", lambda jobs: Place())
    stops = iter([False, True])
    with pytest.raises(SweepError, match="run: OSError: .*No space left"):
        workers.train_in_processes(
            lambda: "", {"run": (SMALL, tmp_path)}, Progress(2, quiet=True), stop=lambda: next(stops)
        )


@pytest.mark.slow
@pytest.mark.parametrize("ray", [None, "auto"])
def test_a_killed_run_continues_from_its_checkpoint(ray, tmp_path, monkeypatch):
    if ray:
        pytest.importorskip("ray")
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
    plan = {"long": replace(SMALL, samples=200_000, checkpoint_every=2_000)}
    killed = kill_once_saved(monkeypatch, tmp_path / "a" / "folders" / "long", 1)
    (continued,) = sweep(plan, tmp_path / "a", jobs=1, ray=ray, quiet=True).values()
    assert killed
    monkeypatch.undo()
    (whole,) = sweep(plan, tmp_path / "b", jobs=1, quiet=True).values()
    assert continued["curve"] == whole["curve"]


@pytest.mark.parametrize("ray", [None, pytest.param("auto", marks=pytest.mark.slow)])
def test_a_failed_run_is_explained_in_one_line(ray, tmp_path, monkeypatch):
    if ray:
        pytest.importorskip("ray")
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n3\n")
    plan = {"short": Settings(str(tmp_path / "rows.csv"), method="bptt", final=True).with_format()}
    with pytest.raises(SweepError) as caught:
        sweep(plan, tmp_path / "out", jobs=1, ray=ray, quiet=True)
    assert str(caught.value).startswith("short: StreamError: ")
    assert "line 3 (byte 8) is bad: it has 1 fields" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"[" * 99_999], ids=["cut", "list", "bytes", "deep"])
def test_a_record_that_cannot_be_read_is_named(tmp_path, capsys, content):
    assert read_records(tmp_path) == {}
    assert not capsys.readouterr().err
    (tmp_path / "records.jsonl").write_bytes(b'{"name": "good", "samples": 1}\n' + content)
    assert read_records(tmp_path) == {"good": {"samples": 1}}
    assert "records.jsonl: line 2 is not a record" in capsys.readouterr().err
    # The next record replaces it.
    write_record(tmp_path, "another", {"samples": 2})
    assert list(read_records(tmp_path)) == ["another", "good"]


@pytest.mark.parametrize("jobs", [0, -1, 10**9])
def test_an_invalid_number_of_processes(jobs):
    with pytest.raises(SettingsError, match="^jobs must be from 1 to 1000"):
        workers.train_in_processes(lambda: "", {}, Progress(quiet=True), jobs=jobs)
