"""Checkpoints with a correct checksum and wrong content are rejected with an explanation, and never used."""

import shutil

import numpy as np
import pytest
from run_folders import assert_rejected, latest, norewind

from norewind.storage.checkpoint import _write, read

pytestmark = pytest.mark.usefixtures("shared_programs")


def forge(run, change, samples=None, **changed):
    """Replace the latest checkpoint by one with other entries, or other arrays."""
    path = latest(run)
    arrays, entries = read(path)
    entries = change(entries) or entries
    for name, value in changed.items():
        place = next(place for place in arrays if place.split("[")[0] == name)
        arrays[place] = np.full_like(arrays[place], value)
    path.unlink()
    _write(path.parent, int(path.name[:15]) if samples is None else samples, arrays, entries)


def put(value, *place):
    def change(entries):
        *outer, last = place
        for name in outer:
            entries = entries[name]
        entries[last] = value

    return change


def without(name):
    return lambda entries: {key: value for key, value in entries.items() if key != name}


short = np.zeros(1, np.int32)
FORGED = {
    "no samples": put(-7, "tally", "samples"),
    "other samples": put(3, "tally", "samples"),
    "tally": put("x", "tally"),
    "interval": put([1], "tally", "interval"),
    "sum": put([1, None], "tally", "interval"),
    "infinite sum": put([1, float("inf")], "tally", "all"),
    "interval above all": put([10**9, 0.0], "tally", "interval"),
    "divergence": put("x", "divergence", "bad"),
    "divergence more": put(1, "divergence", "ugly"),
    "score": put({}, "score"),
    "score counts": put([1, 2, 3], "score", "counts"),
    "score negative": put([-1] * 256, "score", "counts"),
    "predicted_early": put(99, "predicted_early"),
    "seconds": put(-1.0, "seconds"),
    "seconds nan": put(float("nan"), "seconds"),
    "log outside": put({"../metrics.jsonl": 0}, "logs"),
    "log absolute": put({"/tmp/x": 0}, "logs"),
    "log unknown": put({"settings.toml": 0}, "logs"),
    "log length": put({"metrics.jsonl": -1}, "logs"),
    "log too long": put(10**9, "logs", "metrics.jsonl"),
    "settings": put([], "settings"),
    "settings other": put(7, "settings", "hidden"),
    "position": put(None, "position"),
    # Half a character, on which msgspec fails with an error of its own.
    **{f"half {name}": put("\ud800", name) for name in ("position", "tally", "seconds", "logs")},
    "half stream": put("\ud800", "position", "stream"),
    "half offset": put("\ud800", "position", "stream", "offset"),
    "half kind": put("\ud800", "position", "stream", "kind"),
    "half score": put("\ud800", "score", "counts"),
    "stream": put([], "position", "stream"),
    "kind": put("rows", "position", "stream", "kind"),
    "offset": put(-1, "position", "stream", "offset"),
    "previous": put("x", "position", "stream", "previous"),
    "previous large": put(999, "position", "stream", "previous"),
    "waiting": put([1, 2], "position", "partial_window"),
    "waiting numbers": put([np.zeros((), np.int32)] * 2, "position", "partial_window"),
    "waiting one": put([short], "position", "partial_window"),
    "waiting None": put([None, short], "position", "partial_window"),
    "waiting lengths": put([short, np.zeros(2, np.int32)], "position", "partial_window"),
    "waiting full": put([np.zeros(3, np.int32)] * 2, "position", "partial_window"),
    "tally above samples": put([10**6, 1.0], "tally", "all"),
    "divergence seen": put(10**6, "divergence", "seen"),
    "divergence good": put(10**6, "divergence", "good"),
    "divergence waiting": put([10**6, 1.0, 1.0], "divergence", "waiting"),
    "no previous symbol": put(None, "position", "stream", "previous"),
    "lines": put(10**6, "position", "stream", "lines"),
    "centuries": put(1e11, "seconds"),
    "log within a line": put(100, "logs", "metrics.jsonl"),
    "no metrics": put({}, "logs"),
    "more": put(1, "more"),
    **{
        f"without {name}": without(name)
        for name in ("position", "tally", "divergence", "score", "logs", "predicted_early")
    },
}


@pytest.fixture
def run(whole, tmp_path):
    shutil.copytree(whole / "bytes", tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("name", FORGED)
def test_forged_entries_are_rejected(run, capsys, name):
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    forge(run, FORGED[name])
    assert_rejected(capsys, norewind("resume", run))
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    assert not list(run.parent.glob("*.jsonl"))


def test_a_number_of_samples_other_than_in_the_name_is_rejected(run, capsys):
    forge(run, lambda entries: None, samples=10**6)
    assert_rejected(capsys, norewind("resume", run), "its sample counts disagree", "--damaged skip")


@pytest.mark.parametrize("part", [np.zeros(1), np.zeros((1, 1), np.int32), np.array([256], np.int32)])
def test_waiting_samples_of_another_kind_are_rejected(run, capsys, part):
    forge(run, put([part, part, None, None, None], "position", "partial_window"))
    code = norewind("predict", run, "--learn")
    assert_rejected(capsys, code, "the samples that wait for their window")


@pytest.mark.parametrize("name", ["previous", "previous large", "kind", "stream"])
def test_a_forged_position_is_not_written_from(run, capsys, name):
    forge(run, FORGED[name])
    assert_rejected(capsys, norewind("sample", run, "--length", 3))


@pytest.mark.parametrize("changed", [{"params": np.nan}, {"params": np.inf}, {"steps": -1}, {"skipped": -1}], ids=str)
@pytest.mark.parametrize("command", ["resume", "sample"])
def test_forged_arrays_are_rejected(run, capsys, command, changed):
    forge(run, lambda entries: None, **changed)
    assert_rejected(capsys, norewind(command, run), "damaged", next(iter(changed)))


@pytest.mark.parametrize("seen", [None, [1] * 256, [True]])
def test_nothing_is_written_with_forged_symbols(run, capsys, seen):
    forge(run, put(seen, "score", "seen"))
    assert_rejected(capsys, norewind("sample", run, "--length", 3), "its score does not fit")


def waiting(rows, width, value=0):
    part = np.full((rows, width), value, np.float32)
    return put([part, part, None, None, None], "position", "partial_window")


FORGED_ROWS = {
    "columns twice": put(["sun", "sun"], "position", "stream", "columns"),
    "times without a clock": put([1, 2], "position", "stream", "times"),
    "errors": lambda entries: entries["score"]["errors"].fill(np.nan),
    "negative errors": lambda entries: entries["score"]["errors"].fill(-1),
    "seasonal": lambda entries: entries["score"]["seasonal"].fill(np.inf),
    "waiting": waiting(2, 2),
    "wide": waiting(0, 5),
    "not finite": waiting(1, 2, np.nan),
}


@pytest.mark.parametrize("name", FORGED_ROWS)
@pytest.mark.parametrize("command", ["resume", "forecast"])
def test_forged_rows_are_rejected(whole, tmp_path, capsys, command, name):
    shutil.copytree(whole / "rows", tmp_path / "run")
    forge(tmp_path / "run", FORGED_ROWS[name])
    assert_rejected(capsys, norewind(command, tmp_path / "run"))


def test_a_forged_checkpoint_can_be_skipped(run, capsys):
    forge(run, FORGED["predicted_early"])
    assert norewind("resume", run, "--damaged", "skip", "--samples", 0) == 0
    assert "more samples were predicted early than are in the partial window" in capsys.readouterr().err
