"""The committed records are found by the plans that made them, and give the committed tables."""

import shutil
import sys
from pathlib import Path

from norewind.instruments.tables import markdown
from norewind.paper.balancing import influence_plan, influence_records
from norewind.paper.groups import grouped, of_paper
from norewind.paper.plans import TABLE, text_plan
from norewind.paper.report import load_records, table
from norewind.runs.record import read_record
from norewind.runs.settings import Settings
from norewind.runs.sweep import records

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"


def test_the_records_of_the_paper():
    out = RESULTS / "paper"
    found = records(text_plan(), out)
    assert {(r["settings"]["method"], r["settings"]["cell"]) for r in found.values()} >= set(TABLE)
    influence, runs = load_records(out)
    assert len(influence_records(influence_plan(), out)) == len(influence) == 42
    groups = of_paper(grouped(runs), "anbn")
    assert set(groups) == set(TABLE)
    assert set(of_paper(grouped(runs), "brackets")) == {(m, c) for m in ("uoro", "bptt:4") for c in ("gru", "lstm")}
    assert (out / "table.md").read_text() == markdown(*table(groups))
    # Every record is either in the plan or on the page as what was run before.
    assert len(influence) + len(runs) == len(list((out / "runs").glob("*.json")))


def test_the_records_of_real_data(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "examples/real_data")
    import plan
    import report

    cache, out = Path("runs/cache"), RESULTS / "real-data"
    tried = records(plan.first_plan(cache), out)
    again = records(plan.second_plan(cache, tried), out)
    assert set(tried) == set(plan.first_plan(cache))
    assert set(again) == set(plan.second_plan(cache, tried))
    assert len(tried) + len(again) == len(list((out / "runs").glob("*.json")))
    many = plan.seeds_plan(cache)
    assert set(records(many, out / "seeds")) == set(many)
    shutil.copytree(out, tmp_path / "copy", ignore=shutil.ignore_patterns("*.md", "*.csv", "*.png"))
    report.report(cache, tmp_path / "copy")
    for name in ("table.md", "table.csv", "verdict.md", "seeds.md", "compression.md"):
        assert (tmp_path / "copy" / name).read_text() == (out / name).read_text()
    for name in ("plan", "report", "fetch", "baselines", "disturb", "forecasts", "figure", "coded"):
        sys.modules.pop(name, None)


def test_the_records_of_defaults(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import defaults

    out = RESULTS / "defaults"
    found = records({**defaults.plan(), **defaults.clipping_plan()}, out)
    assert len(found) == len(list((out / "runs").glob("*.json")))
    assert f"{defaults.table(found)}\n{defaults.clipping_table(found)}" == (out / "table.md").read_text()


def test_every_record_has_valid_settings_and_says_what_made_it():
    paths = sorted(RESULTS.glob("*/runs/*.json"))
    assert len(paths) > 250
    for path in paths:
        record = read_record(path)
        assert record is not None, path
        if "settings" in record:
            assert Settings(**record["settings"]).as_json()["samples"] >= record["samples"], path
        assert all(record[name] is not None for name in ("norewind", "commit", "jax", "python", "seconds")), path
