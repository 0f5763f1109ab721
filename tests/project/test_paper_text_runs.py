"""The paper's runs on text: plans, groups, the test of agreement, the table, the page, and the marks of quick runs."""

import csv
import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from examples.paper.__main__ import main
from examples.paper.balancing import influence_plan
from examples.paper.report import BRACKETS_COLUMNS, COLUMNS, reproduce, run_table, table_row, write_report
from examples.paper.text_runs import (
    ANBN,
    BRACKETS,
    SAMPLES,
    TABLE,
    SeedGroup,
    TextRuns,
    agreement,
    anbn_text_noise,
    grouped,
    paper_runs,
    run_name,
    text_plan,
)
from norewind.plotting.tables import markdown
from norewind.sweeps.record import read_records, write_record

ROOT = Path(__file__).parents[2]
VERSIONS = {"norewind": "0", "commit": "0", "jax": "0", "python": "0", "seconds": 1.0}


def record(value, diverged_at=None, base=ANBN, **changes):
    """The record of a run of the paper's length."""
    settings = replace(base, **{"samples": SAMPLES, **changes})
    every = settings.metrics_every or 10_000
    problem = None if diverged_at is None else "diverged: it was lost"
    curve = [value] * (int(settings.samples or 0) // every)
    rest = {"samples": int(settings.samples or 0), "every": every, "curve": curve, "unit": "bits", "mean": value}
    return {"settings": settings.as_json(), **VERSIONS, "problem": problem, "diverged_at": diverged_at, **rest}


def group(*values, **changes):
    return SeedGroup([record(value, seed=seed, **changes) for seed, value in enumerate(values)])


def test_the_plan_is_the_papers():
    plan = text_plan()
    assert [run_name(run) for run in plan.values()] == list(plan)
    runs = list(plan.values())
    table = [run for run in runs if run.source == "anbn" and (run.method, run.cell) in TABLE and run.samples == 1e7]
    single = [run for run in table if run.precision == "single"]
    seeds = {key: {run.seed for run in single if (run.method, run.cell) == key} for key in TABLE}
    assert seeds == {key: set(range(7 if key == ("uoro", "gru") else 5)) for key in TABLE}
    assert {(run.alpha, run.rate, run.hidden, run.parameters) for run in table} == {(0.03, 1e-3, 64, (1, 32))}
    brackets = [run for run in runs if run.source == "brackets"]
    assert {(run.method, run.cell) for run in brackets} == {(m, c) for m in ("uoro", "bptt:4") for c in ("gru", "lstm")}
    assert {(run.alpha, run.rate, run.hidden, run.parameters) for run in brackets} == {(0.015, 1e-3, 64, (1, 5, 10))}
    assert {(run.samples, run.seed) for run in brackets} == {(1e7, seed) for seed in range(3)}
    controls = [run for run in runs if run.precision == "double" or "rho" in run.method or run.samples == 3e7]
    assert len(controls) == 9
    assert len(runs) == 60 + 2 + 12 + 9
    # All runs of one seed come before the next seed.
    assert [run.seed for run in runs[:24]] == [0] * 12 + [1] * 12


def test_a_plan_can_be_made_smaller():
    assert text_plan("influence") == {}
    assert len(text_plan("anbn", seeds=1, samples=2_000, controls=False)) == 12
    quick = text_plan(quick=True).values()
    assert len(quick) == 16
    assert {(run.samples, run.metrics_every, run.seed) for run in quick} == {(5e4, 500, 0)}


def test_agreement_is_a_p_value():
    """The p-value equals scipy's, with the paper's run as one more draw of ours."""
    from scipy import stats

    ours = group(0.150, 0.160, 0.170)
    scale = 0.01 * np.sqrt(1 + 1 / 3)
    far = 0.16 + 0.05
    expected = 2 * stats.t(df=2, scale=scale).sf(0.05 - 0.0005)
    assert agreement(ours, far).p == pytest.approx(expected)
    half = stats.t(df=2, scale=scale).ppf(0.975) + 0.0005
    judged = agreement(ours, 0.16)
    assert (judged.low, judged.high) == pytest.approx((0.16 - half, 0.16 + half))
    assert judged.p == 1


def test_agreement_can_fail():
    """Just inside the interval it agrees, just outside it differs, on either side."""
    ours = group(0.150, 0.160, 0.170)
    interval = agreement(ours, 0.16)
    for edge, verdict in ((interval.high, "differs (better)"), (interval.low, "differs (worse)")):
        inward = np.sign(0.16 - edge) * 1e-6
        assert agreement(ours, edge + inward).verdict == "agrees"
        outside = agreement(ours, edge - inward)
        assert outside.verdict == verdict
        assert outside.p is not None
        assert outside.p < 0.05
    # More seeds with the same spread detect smaller differences.
    more = group(*[0.150, 0.160, 0.170] * 3)
    assert agreement(ours, 0.19).verdict == "agrees"
    assert agreement(more, 0.19).verdict == "differs (better)"


def test_agreement_needs_seeds_length_and_the_noise_of_the_text():
    assert agreement(group(0.15, 0.16), 0.15).verdict == "too few seeds"
    assert agreement(group(0.15, 0.16, 0.17, samples=10**6), 0.16).verdict == "too short to conclude"
    assert agreement(group(0.15, 0.16, 0.17, samples=3 * 10**7), 0.16).verdict == "agrees"
    # Even if all seeds give the same value, the noise of the text remains.
    noise = anbn_text_noise(1, 32, 100_000)
    assert agreement(group(0.15, 0.15, 0.15), 0.15 + 4 * noise).verdict == "agrees"
    assert agreement(group(0.15, 0.15, 0.15), 0.15 + 8 * noise).verdict == "differs (better)"


def test_diverged_runs_are_counted_and_not_averaged():
    lost = SeedGroup([record(0.15, seed=0), record(1.26, 2_000_000, seed=1), record(0.17, seed=2)])
    assert lost.mean == pytest.approx(0.16)
    assert lost.diverged == 1
    row = table_row(lost)
    assert (row["seeds"], row["diverged"]) == (3, 1)
    assert agreement(lost, 0.16).verdict == "too few seeds"


def full_set():
    """Return records of a control, and of three seeds for every cell of the table, all but one at the paper's value."""
    records = [
        record(0.3 if key == ("bptt:16", "lstm") else value, method=key[0], cell=key[1], seed=seed)
        for key, value in TABLE.items()
        for seed in range(3)
    ]
    return records + [record(0.2, method="uoro:rho=released", cell="gru", seed=seed) for seed in range(3)]


def test_the_table_shows_the_papers_values():
    groups = paper_runs(grouped(full_set()), "anbn")
    assert set(groups) == set(TABLE)
    rows = [table_row(group) for group in groups.values()]
    assert len(rows) == 12
    for row, paper in zip(rows, TABLE.values(), strict=True):
        odd = (row["method"], row["cell"]) == ("truncated BPTT, T = 16", "LSTM")
        assert row["verdict"] == ("differs (worse)" if odd else "agrees")
        assert float(row["paper"]) == paper
        assert (float(row["p"]) < 0.05) == odd
        low, high = map(float, row["95% of runs"].split(" to "))
        assert (low <= paper <= high) != odd
        assert len(row["runs"].split()) == 3
    text = markdown(COLUMNS, rows)
    assert "| UORO, T = 2 | LSTM | 0.149 | 0.1490 | 0.0000 | 3 | 0 | 0.141 to 0.157 | 1 | agrees |" in text


def test_verdicts_are_counted_and_controls_judged():
    groups = grouped(full_set())
    assert paper_runs(groups, "anbn").verdicts() == "11 of 12 cells: agrees; 1 of 12 cells: differs (worse)"
    (control,) = [table_row(group) for group in groups if group.changes]
    assert (control["change"], control["paper"], control["ours"]) == ("the released ρ", "0.155", "0.2000")
    assert control["verdict"] == "differs (worse)"


def test_runs_that_got_worse_are_reported():
    falls, rises = record(0.15, seed=0), record(0.25, seed=1)
    rises["curve"] = [0.3] * 400 + [0.2] * 10 + [0.25] * 590
    text = run_table({"falls": falls, "rises": rises, "influence": {**VERSIONS, "loss": 0.1, "problem": None}})
    assert "| falls | 0.15000 | 0.150 at " in text
    assert "| rises | 0.25000 | 0.200 at 4,100,000 samples |  | 1 |" in text
    assert "| influence | 0.1 |  |  | 1 |" in text


def test_controls_are_left_out_of_the_table():
    longer = [record(0.15, cell="gru", seed=seed, samples=3 * SAMPLES) for seed in range(3)]
    double = [record(0.15, cell="gru", seed=seed, precision="double") for seed in range(3)]
    chosen = paper_runs(grouped(full_set() + longer + double), "anbn")["uoro", "gru"]
    assert chosen.mean == pytest.approx(0.155)


def test_curves_are_cumulative_or_recent():
    run = record(0.0)
    run["curve"] = [1.0] * 500 + [0.0] * 500
    samples, rows = SeedGroup([run]).curves(cumulative=True)
    assert samples[-1] == 10**7
    assert rows[0][-1] == pytest.approx(0.5)
    _, rows = SeedGroup([run]).curves(cumulative=False)
    assert rows[0][-1] == 0
    assert rows[0][504] == pytest.approx(0.5)


def test_brackets_are_placed_between_memoryless_and_the_optimum():
    text = group(0.0, base=BRACKETS).text()
    halfway = (text.memoryless + text.floor) / 2
    kinds = {"uoro": halfway, "bptt:4": text.memoryless}
    groups = {(method, "gru"): group(value, base=BRACKETS, method=method) for method, value in kinds.items()}
    rows = [table_row(group) for group in groups.values()]
    assert [row["from memoryless to the optimum"] for row in rows] == ["50%", "0%"]
    assert f"| UORO | GRU | {halfway:.4f} |  | 1 | 0 | 50% |" in markdown(BRACKETS_COLUMNS, rows)
    above = table_row(group(2.0, base=BRACKETS))
    assert above["from memoryless to the optimum"].startswith("-")


def test_the_crossing_of_two_curves_is_found():
    late = record(0.1, base=BRACKETS)
    late["curve"] = [3.0] * 100 + [0.1] * 900
    groups = {("uoro", "gru"): SeedGroup([late]), ("bptt:4", "gru"): group(1.0, base=BRACKETS, method="bptt:4")}
    # 100 intervals of 3 and n of 0.1 have a mean of 1 after 222.2 more.
    assert TextRuns(groups).crossings() == [
        "GRU: UORO's mean loss from the start is below that of truncated BPTT after 3,220,000 samples."
    ]
    groups["uoro", "gru"] = group(2.0, base=BRACKETS)
    assert "still above" in TextRuns(groups).crossings()[0]
    groups["uoro", "gru"] = group(0.5, base=BRACKETS)
    assert "after 0 samples" in TextRuns(groups).crossings()[0]


def test_a_report_holds_everything(tmp_path):
    for number, entry in enumerate(full_set()):
        write_record(tmp_path, str(number), entry)
    (tmp_path / "notes.md").write_text("# Why\n\nBecause a < b.\n\n- one\n- two\n")
    written = {path.name for path in write_report(tmp_path, missing=["some-run"])}
    assert written == {"anbn.png", "anbn.pdf", "index.html", "table.md", "table.csv"}
    page = (tmp_path / "index.html").read_text()
    assert "data:image/png;base64," in page
    assert "http" not in page
    for words in ("11 of 12 cells: agrees", "Because a &lt; b.", "<li>two</li>", "some-run", "0.2857", "aaaa"):
        assert words in page
    assert "differs (worse)" in page
    assert "Too short" not in page
    rows = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))
    assert [*rows[0]] == [*COLUMNS, "runs"]
    assert len(rows[0]["runs"].split()) == 3
    assert "differs (worse)" in (tmp_path / "table.md").read_text()


def test_an_empty_folder_gives_no_report(tmp_path, capsys):
    assert write_report(tmp_path) == []
    reproduce(text_plan(quick=True), {}, tmp_path, report_only=True)
    assert "no records" in capsys.readouterr().err


def test_quick_runs_are_marked_as_too_short(tmp_path, capsys):
    """The required length is shown in the table, on the page and on the terminal."""
    plan = text_plan(quick=True)
    for name, run in plan.items():
        write_record(tmp_path, name, record(1.0, base=run, samples=run.samples))
    reproduce(plan, {}, tmp_path, report_only=True)
    err = capsys.readouterr().err
    for source in ("anbn", "brackets"):
        line = next(line for line in err.splitlines() if line.startswith(f"{source}: "))
        assert "Too short to conclude" in line
        assert "50,000 samples" in line
        assert "10,000,000 samples long" in line
        assert "three seeds" in line
    rows = (tmp_path / "table.md").read_text()
    assert rows.count("too short to conclude (50,000 samples)") == 12
    assert "open" not in rows
    assert (tmp_path / "index.html").read_text().count("<strong>Too short to conclude") == 2
    assert paper_runs(grouped(full_set()), "anbn").too_short() == ""


@pytest.mark.slow
def test_the_whole_command_in_a_short_version(tmp_path):
    plan = text_plan(samples=1_600, seeds=1, controls=False)
    reproduce(plan, influence_plan(seeds=1, rates=(1e-3,), windows=(1,)), tmp_path, jobs=2)
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"{name}.{kind}" for name in ("influence", "brackets", "anbn") for kind in ("png", "pdf")
    }
    assert "<td>truncated BPTT, T = 1</td>" in (tmp_path / "index.html").read_text()
    assert len(read_records(tmp_path)) == 12 + 4 + 2
    record = read_records(tmp_path)["anbn-gru-bptt-16-1600-seed0"]
    assert record["samples"] == 1_600
    assert len(record["curve"]) == 100


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--samples", "7"], "--samples must be at least 100"),
        (["--seeds", "0"], "--seeds must be at least 1"),
        (["--jobs", "0"], "--jobs must be at least 1"),
    ],
)
def test_impossible_options_are_rejected_in_one_sentence(options, words, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["paper", "all", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert f"python -m examples.paper: {words}" in capsys.readouterr().err


@pytest.mark.parametrize(("study", "option"), [("paper", "--quick"), ("real_data", "--cache")])
def test_the_help_of_a_study_does_not_wait_for_jax(study, option):
    code = (
        f"import sys; from examples.{study}.__main__ import main\n"
        "sys.argv = ['study', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.exit('jax' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert option in result.stdout
