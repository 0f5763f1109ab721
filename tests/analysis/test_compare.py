"""Comparisons of methods on a task and on a file, in Python and on the command line."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from norewind.analysis import compare as module
from norewind.analysis.compare import Comparison, compare
from norewind.cli import main
from norewind.sweeps.sweep import train_run
from norewind.training.settings import Settings, SettingsError

pytestmark = pytest.mark.usefixtures("shared_programs")

SMALL = Settings("anbn", cell="elman", hidden=4, samples=400, metrics_every=20)


@pytest.fixture(autouse=True)
def in_process(monkeypatch, tmp_path_factory):
    """Train the runs of a sweep one after another in this process, so that nothing is imported or compiled again."""

    def sweep(plan, out, **_):
        folder = tmp_path_factory.mktemp("runs")
        return {name: train_run(run, folder / name) for name, run in plan.items()}

    monkeypatch.setattr(module, "sweep", sweep)


def test_all_methods_see_the_same_text_from_the_same_parameters():
    result = compare(["uoro", "uoro:rank=1", "bptt:4"], SMALL)
    one, same, other = result.records.values()
    assert one["curve"] == same["curve"]
    assert one["curve"] != other["curve"]
    assert len(one["curve"]) == 20
    # Before learning, all methods predict the same, which the first interval still shows.
    assert abs(one["curve"][0] - other["curve"][0]) < 0.2
    rows = {row["method"]: row for row in result.rows()}
    assert rows["uoro"]["bytes carried"] == 4 * (4 + 4 * 4 + 3 * 4 + 4 + 3 * 4 + 3) + 8
    assert rows["bptt:4"]["bytes carried"] == 0
    # A window makes one update.
    assert (rows["uoro"]["updates"], rows["bptt:4"]["updates"]) == (400, 100)
    assert rows["uoro"]["final loss"] == pytest.approx(np.mean(one["curve"][-2:]))
    assert "floor 0.1429, memoryless 0.2857" in result.note()


def test_a_method_that_diverges_with_its_first_seed_is_drawn(tmp_path):
    good = compare(["uoro"], SMALL, seeds=2)
    (first, one), *others = good.records.items()
    diverged = {**one, "problem": "diverged: it went wrong", "carried_bytes": None}
    result = Comparison(SMALL, {first: diverged, **dict(others)})
    assert result.rows()[0]["bytes carried"] == good.rows()[0]["bytes carried"]
    result.save(tmp_path)


def test_no_methods_are_rejected(tmp_path):
    with pytest.raises(SettingsError, match="at least one method"):
        compare([], SMALL, out=tmp_path)


@pytest.fixture
def rows_of_numbers(tmp_path):
    path = tmp_path / "waves.csv"
    t = np.arange(300)
    lines = [f"{a:.4f},{b:.4f}" for a, b in zip(np.sin(t / 7), np.cos(t / 11), strict=True)]
    path.write_text("\n".join(["sun,wind", *lines]))
    return path


def test_compare_on_the_command_line_takes_a_file(tmp_path, rows_of_numbers, capsys):
    arguments = ["--methods", "uoro:window=2,rank=2,lstm97,bptt", "--hidden", "4", "--targets", "wind"]
    main(["compare", str(rows_of_numbers), *arguments, "--metrics-every", "20", "--seeds", "2", "--out", str(tmp_path)])
    out = capsys.readouterr().out
    assert "| method | final squared error | updates | CPU µs per sample | bytes carried |" in out
    assert "| uoro:window=2,rank=2 | " in out
    assert "uoro:window=2,rank=2 makes one update per 2 samples." in out
    assert "| 150 | " in out
    assert "rejected: method lstm97 does not work with cell gru" in out
    assert "baseline" in out
    assert "persistence" in out
    rows = list(csv.DictReader((tmp_path / "comparison.csv").open()))
    assert [row["method"] for row in rows] == ["uoro:window=2,rank=2", "lstm97", "bptt"]
    assert [row["updates"] for row in rows] == ["150", "", "300"]
    assert float(rows[0]["standard error"]) > 0
    assert (tmp_path / "comparison.md").read_text() in out + "\n"
    assert (tmp_path / "comparison.png").stat().st_size > 10_000


def test_a_short_file_gives_a_curve_of_100_points(rows_of_numbers, tmp_path):
    result = compare(["uoro", "bptt:4", "auto"], Settings(str(rows_of_numbers), hidden=4, budget=1))
    one, other, default = result.records.values()
    # The default method chooses its networks itself, and learns from every row.
    assert (default["problem"], len(default["curve"]), result.rows()[2]["updates"]) == (None, 100, 300)
    assert (one["samples"], one["every"], len(one["curve"])) == (300, 3, 100)
    assert len(other["curve"]) == 75  # one point per window
    # Chunks this short are a poor measure of the time per sample.
    assert one["microseconds"] is None
    result.figure(tmp_path / "figure.png")


def test_seeds_start_at_the_one_in_the_settings():
    result = compare(["bptt"], replace(SMALL, seed=5, samples=40), seeds=2)
    assert [record["settings"]["seed"] for record in result.records.values()] == [5, 6]


def test_runs_that_stop_being_finite_stay_in_the_table():
    result = compare(["uoro", "bptt"], replace(SMALL, optimizer="sgd", rate=3e38, samples=200))
    assert all("not finite" in row["problem"] for row in result.rows())
    assert "not finite" in str(result)


def test_a_seed_that_diverged_is_not_part_of_the_mean():
    good = compare(["bptt"], SMALL)
    (record,) = good.records.values()
    lost = {**record, "problem": "diverged: it was lost", "curve": [9.0] * 3}
    row = Comparison(SMALL, {"good": record, "lost": lost}).rows()[0]
    assert row["final loss"] == good.rows()[0]["final loss"]
    assert (row["runs"], row["problem"]) == (2, "diverged: it was lost")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((SMALL, ["uoro"]), "second argument must be settings, not a list"),
        ((["uoro"], "anbn"), "second argument must be settings, not a str"),
        (("uoro", SMALL), "methods must be a list"),
        ((None, SMALL), "methods must be a list"),
    ],
)
def test_arguments_that_are_swapped_or_of_another_kind_are_named(arguments, words):
    with pytest.raises(SettingsError, match=words):
        compare(*arguments)


def test_standard_input_and_missing_files_are_rejected_once(tmp_path):
    with pytest.raises(SettingsError, match="can only be read once"):
        compare(["uoro", "bptt"], replace(SMALL, source="-"))
    with pytest.raises(ValueError, match="does not exist"):
        compare(["uoro", "bptt"], replace(SMALL, source=str(tmp_path / "none.csv")))


def test_diagnose_on_the_command_line_takes_a_task_or_a_file(tmp_path, rows_of_numbers, capsys):
    small = ["--methods", "uoro,bptt", "--hidden", "3", "--samples", "6", "--keys", "5", "--out", str(tmp_path)]
    main(["diagnose", "anbn", *small])
    assert "| uoro | 3 | " in capsys.readouterr().out
    assert (tmp_path / "diagnosis.png").exists()
    first = json.loads((tmp_path / "diagnosis.json").read_text())
    rows = ["diagnose", str(rows_of_numbers), "--targets", "wind", *small]
    with pytest.raises(SystemExit):
        main(rows)
    assert "none of the first 6 samples has a known target that varies" in capsys.readouterr().err
    main([*rows, "--samples", "20"])
    assert "| uoro | 3 | " in capsys.readouterr().out
    assert json.loads((tmp_path / "diagnosis.json").read_text()) != first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "anbn", "--methods", "x"], "norewind compare: no method is called 'x'"),
        (["compare", "anbn", "--method", "bptt"], "name the methods with --methods"),
        (["compare", "anbn", "--seeds", "0"], "norewind compare: compare: seeds must be at least 1"),
        (["diagnose", "anbn", "--hidden", "0"], "hidden must be at least 1"),
        (["diagnose", "anbn", "--keys", "0"], "keys must be at least 1"),
        (["diagnose", "anbn", "--samples", "0"], "--samples must be at least 1"),
        (["diagnose", "anbn", "--methods", "lstm97", "--hidden", "2"], "lstm97 needs to know each unit's memory cell"),
    ],
)
def test_impossible_requests_end_with_a_sentence(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([*arguments, "--out", str(tmp_path)])
    assert message in capsys.readouterr().err
