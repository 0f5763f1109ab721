"""Runs on text: records, resuming, divergence, the table, the page."""

import csv
import io
import json
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import norewind
from norewind.experiments import plans, train
from norewind.experiments.findings import anbn_findings, control_findings, divergence, reascents
from norewind.experiments.groups import Group, find, grouped, load_records, usual
from norewind.experiments.paper import TABLE
from norewind.experiments.progress import Lines
from norewind.experiments.records import load, save
from norewind.experiments.report import write_report
from norewind.experiments.reproduce import FULL, run_experiments, text_settings
from norewind.experiments.settings import TextSetting
from norewind.experiments.table import agreement, comma_separated, markdown
from norewind.experiments.workers import finished, record_path, run_all

TINY = {"task": "anbn", "task_arguments": (1, 4), "cell": "gru", "units": 4, "characters": 600, "alpha": 0.03}


def setting(**changes):
    return TextSetting(**{**TINY, "method": "uoro", "memory": 2, "seed": 0, **changes})


def record(value, diverged_at=None, **changes):
    """A record as a run of the paper's length would leave it."""
    entries = {"task_arguments": (1, 32), "units": 64, "characters": 10**7, **changes}
    return {
        "setting": setting(**entries).as_json(),
        "norewind": "0",
        "commit": "0",
        "jax": "0",
        "python": "0",
        "seconds": 1.0,
        "recent": value,
        "recent_characters": 100_000,
        "cumulated": value,
        "finite": True,
        "diverged_at": diverged_at,
        "chunk": 10_000,
        "curve": [value] * 1000,
        "influence": [],
    }


@pytest.fixture(scope="module")
def made():
    """The record of a tiny run."""
    return train.train(setting())


def test_a_record_tells_all(made):
    assert made["setting"] == setting().as_json()
    assert made["chunk"] == 6
    assert len(made["curve"]) == 100
    assert made["recent_characters"] == 60
    assert made["recent"] == pytest.approx(np.mean(made["curve"][-10:]), abs=1e-4)
    assert made["cumulated"] == pytest.approx(np.mean(made["curve"]), abs=1e-4)
    assert made["finite"]
    assert {"norewind", "commit", "jax", "python", "seconds"} <= set(made)
    assert len(made["influence"]) == 100
    assert all(value > 0 for value in made["influence"])
    json.dumps(made, allow_nan=False)


def test_an_interrupted_run_goes_on_exactly(tmp_path, made):
    """Stopped after a third and resumed from the checkpoint, a run gives the same numbers as in one go."""
    checkpoint = tmp_path / "run"
    chunks = []
    with pytest.raises(train.Interrupted):
        train.train(
            setting(),
            checkpoint=checkpoint,
            report=lambda characters, bpc: chunks.append(characters),
            should_stop=lambda: len(chunks) == 33,
        )
    assert chunks[-1] == 33 * 6
    resumed = train.train(setting(), checkpoint=checkpoint, report=lambda n, bpc: chunks.append(n))
    assert chunks == [6 * (i + 1) for i in range(100)]
    for name in ("curve", "influence", "recent", "cumulated"):
        assert resumed[name] == made[name]


def test_weights_noise_and_text_depend_on_the_seed(made):
    other = train.train(setting(seed=1))
    assert made["curve"][0] != other["curve"][0]
    assert made["influence"][-1] != other["influence"][-1]
    runs = [train.start(setting(seed=seed))[1] for seed in (0, 1)]
    weights = [run.params["readout"]["weight"] for run in runs]
    assert not np.array_equal(*weights)
    keys = [jax.random.key_data(run.carry.key) for run in runs]
    assert not np.array_equal(*keys)


def test_losses_are_in_bits_per_character():
    """Without learning, a run gives what the untrained cell itself gives, in base 2."""
    still = setting(rate=0.0, method="bptt", memory=2, characters=60)
    cell = norewind.cells.gru(3, 4, 3)
    params, state = train.start(still)[1].params, cell.initial_state()
    symbols, bits = next(still.text().chunks(0, 61)), []
    for x, target in pairwise(symbols):
        state, logits = cell.transition(params, state, jnp.array(x))
        logits = np.asarray(logits, float)
        bits.append(np.log2(np.exp(logits).sum()) - logits[target] / np.log(2))
    assert train.train(still)["cumulated"] == pytest.approx(np.mean(bits), abs=1e-4)


def test_numbers_that_are_not_finite_are_a_result():
    """A learning rate of 1e38 overflows at once; the run ends and says when."""
    made = train.train(setting(rate=1e38, method="bptt", memory=1))
    assert not made["finite"]
    assert 0 < made["diverged_at"] <= 600
    json.dumps(made, allow_nan=False)


def test_a_run_that_forgets_counts_as_diverged():
    big = setting(task_arguments=(1, 32), characters=10**6)
    good, lost = [0.2] * 70, [1.26] * 30
    assert train.summary(big, good + lost)["diverged_at"] == 70 * 10_000
    assert train.summary(big, lost + good)["diverged_at"] is None
    assert train.summary(big, [1.26] * 100)["diverged_at"] == 0


def test_the_plan_is_the_papers():
    table = list(plans.anbn_table(seeds=3, characters=10**7))
    cells = {(s.method, s.memory, s.cell) for s in table}
    assert cells == set(TABLE)
    assert len(table) == 3 * len(TABLE)
    assert {(s.alpha, s.rate, s.units, s.task_arguments) for s in table} == {(0.03, 1e-3, 64, (1, 32))}
    brackets = list(plans.brackets_curves(seeds=3, characters=10**6))
    assert {(s.method, s.memory) for s in brackets} == {("uoro", 1), ("bptt", 4)}
    assert {(s.alpha, s.rate, s.units, s.task_arguments) for s in brackets} == {(0.015, 1e-3, 64, (1, 5, 10))}
    everything = text_settings("all", FULL, None, None, controls=True)
    assert len({s.slug for s in everything}) == len(everything)


def test_records_are_written_whole(tmp_path):
    path = tmp_path / "deep" / "run.json"
    save(path, {"a": 1, "b": [1, 2]})
    assert load(path) == {"a": 1, "b": [1, 2]}
    path.write_text('{"a": 1')
    assert load(path) is None
    assert [p.name for p in path.parent.iterdir()] == ["run.json"]


def test_a_record_of_another_setting_does_not_count(tmp_path):
    path = record_path(tmp_path, setting())
    save(path, {"setting": setting().as_json()})
    assert finished(tmp_path, setting())
    save(path, {"setting": setting(rate=0.5).as_json()})
    assert not finished(tmp_path, setting())


def test_agreement_is_judged_by_the_spread():
    def group(*values, **changes):
        return Group([record(value, seed=i, **changes) for i, value in enumerate(values)])

    spread = group(0.150, 0.160, 0.170)
    assert spread.mean == pytest.approx(0.16)
    assert spread.spread == pytest.approx(0.01)
    # 2 · 0.01 · √(1 + 1/3) + 0.0005
    assert agreement(spread, 0.16 + 0.0235) == "agrees"
    assert agreement(spread, 0.16 + 0.0237) == "better"
    assert agreement(spread, 0.16 - 0.0237) == "worse"
    # Seeds that happen to be equal do not make the text's own noise go away.
    assert agreement(group(0.15, 0.15, 0.15), 0.1535) == "agrees"
    assert agreement(group(0.15), 0.15) == "open"


def test_diverged_runs_are_counted_and_not_averaged():
    group = Group([record(0.15, seed=0), record(1.26, 2_000_000, seed=1), record(0.17, seed=2)])
    assert group.mean == pytest.approx(0.16)
    assert group.diverged == 1
    assert "1 more diverged" in group.text
    assert "1 of 3 runs" in divergence([group])
    assert "2,000,000 (seed 1)" in divergence([group])


def full_set():
    """Two seeds for every cell of the table exactly at the paper's value, but one cell, and a control."""
    records = [
        record(0.3 if key == ("bptt", 16, "lstm") else value, method=key[0], memory=key[1], cell=key[2], seed=seed)
        for key, value in TABLE.items()
        for seed in (0, 1)
    ]
    control = {"method": "uoro", "memory": 1, "cell": "gru", "rho": "released"}
    return records + [record(0.2, seed=seed, **control) for seed in (0, 1)]


def test_the_table_stands_beside_the_papers():
    groups = usual(grouped(full_set(), "anbn"))
    assert len(groups) == 12
    rows = list(csv.DictReader(io.StringIO(comma_separated(groups))))
    assert len(rows) == 12
    for row in rows:
        odd = (row["method"], row["memory"], row["cell"]) == ("bptt", "16", "lstm")
        assert row["verdict"] == ("worse" if odd else "agrees")
        assert float(row["paper"]) == TABLE[row["method"], int(row["memory"]), row["cell"]]
    text = markdown(groups)
    assert "| UORO, memory 2 | 0.149 | 0.1490 ± 0.0000 (2 seeds), agrees | 0.174 |" in text
    assert text.count("worse") == 1
    assert "no run yet" in markdown(groups[1:])


def test_findings_are_computed():
    groups = grouped(full_set(), "anbn")
    words = anbn_findings(groups)
    assert words[0].startswith("11 of 12 cells agree")
    assert words[1].startswith("1 of 12 cells have a higher loss")
    assert "LSTM truncated BPTT, T = 16 (paper 0.144, ours 0.3000" in words[1]
    (control,) = control_findings(groups)
    assert "GRU UORO with rho released: 0.2000" in control
    assert "does not reach the paper's value" in control


def test_a_run_that_was_better_before_is_named():
    falls, rises = record(0.15, seed=0), record(0.25, seed=1)
    rises["curve"] = [0.3] * 400 + [0.2] * 10 + [0.25] * 590
    words = reascents([Group([falls, rises])])
    assert words.startswith("1 of 2 runs")
    assert "seed 1, from 0.200 at 4,100,000 characters to 0.250 at the end" in words


def test_a_control_does_not_get_into_the_table():
    groups = usual(grouped(full_set(), "anbn"))
    chosen = find(groups, method="uoro", memory=1, cell="gru")
    assert chosen is not None
    assert chosen.mean == pytest.approx(0.155)


def test_curves_are_cumulated_or_recent():
    run = record(0.0)
    run["curve"] = [1.0] * 500 + [0.0] * 500
    characters, rows = Group([run]).curves(cumulated=True)
    assert characters[-1] == 10**7
    assert rows[0][-1] == pytest.approx(0.5)
    _, rows = Group([run]).curves(cumulated=False)
    assert rows[0][-1] == 0
    assert rows[0][504] == pytest.approx(0.5)


def test_a_report_holds_everything(tmp_path):
    for number, entry in enumerate(full_set()):
        save(tmp_path / "runs" / f"{number}.json", entry)
    (tmp_path / "notes.md").write_text("# Why\n\nBecause a < b.\n\n- one\n- two\n")
    written = {path.name for path in write_report(tmp_path, missing=["some-run"])}
    assert written == {"anbn.png", "anbn.pdf", "index.html", "table.md", "table.csv"}
    page = (tmp_path / "index.html").read_text()
    assert "data:image/png;base64," in page
    assert "http" not in page
    for words in ("11 of 12 cells agree", "Because a &lt; b.", "<li>two</li>", "some-run", "0.2857", "aaaa"):
        assert words in page
    assert len(load_records(tmp_path)) == 26


def test_an_empty_folder_gives_no_report(tmp_path):
    assert write_report(tmp_path) == []


def test_lines_tell_speed_and_time_left(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    out = io.StringIO()
    lines = Lines(out, interval=10)
    lines.begin("run", 1000)
    for second, done in ((5, 100), (6, 110), (16, 210)):
        now[0] = second
        lines.advance("run", done, 0.25)
    lines.end("run", 0.2, None)
    assert out.getvalue().splitlines() == [
        "run: starts",
        "run:  21% of 1000 characters, 0.2500 bpc, 10 characters/s, 79 s left",
        "run: finished, 0.2000 bpc",
    ]


@pytest.mark.slow
def test_processes_side_by_side_leave_records_and_are_not_run_again(tmp_path):
    settings = [setting(seed=0), setting(seed=1, precision="double"), setting(seed=2, method="bptt")]
    out = io.StringIO()
    run_all(settings, tmp_path, Lines(out), jobs=2)
    assert all(finished(tmp_path, one) for one in settings)
    assert list((tmp_path / "checkpoints").glob("*")) == []
    run_all(settings, tmp_path, Lines(out), jobs=2)
    assert out.getvalue().count("finished before") == 3
    made = load(record_path(tmp_path, settings[0]))
    assert made is not None
    assert made["curve"] == pytest.approx(train.train(settings[0])["curve"], abs=1e-3)


@pytest.mark.slow
def test_the_whole_command_in_small(tmp_path):
    run_experiments("all", out=tmp_path, quick=True, seeds=1, characters=200, controls=False, jobs=2)
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"{name}.{kind}" for name in ("influence", "brackets", "anbn") for kind in ("png", "pdf")
    }
    assert (tmp_path / "index.html").exists()
