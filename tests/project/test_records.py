"""The plans find their committed records, which give the committed tables."""

import shutil
from pathlib import Path

from benchmarks import defaults
from examples.paper.balancing import influence_plan
from examples.paper.report import COLUMNS, table_row
from examples.paper.text_runs import TABLE, grouped, paper_runs, text_plan
from examples.real_data import plan, report
from norewind.plotting.tables import markdown
from norewind.sweeps.record import RECORDS, read_records
from norewind.sweeps.sweep import finished_records
from norewind.training.settings import Settings

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


def test_the_records_of_the_paper():
    out = RESULTS / "paper"
    found = finished_records(text_plan(), out)
    assert {(r["settings"]["method"], r["settings"]["cell"]) for r in found.values()} >= set(TABLE)
    every = read_records(out)
    influence = [name for name, record in every.items() if "influence" in record]
    assert sorted(finished_records(influence_plan(), out, "influence")) == influence
    assert len(influence) == 42
    groups = grouped(every.values())
    assert set(paper_runs(groups, "anbn")) == set(TABLE)
    assert set(paper_runs(groups, "brackets")) == {(m, c) for m in ("uoro", "bptt:4") for c in ("gru", "lstm")}
    assert (out / "table.md").read_text() == markdown(COLUMNS, map(table_row, paper_runs(groups, "anbn").values()))


def test_the_records_of_real_data(tmp_path):
    cache, out = Path("runs/cache"), RESULTS / "real-data"
    tried = finished_records(plan.first_plan(cache), out)
    again = finished_records(plan.second_plan(cache, tried), out)
    assert set(tried) == set(plan.first_plan(cache))
    assert set(again) == set(plan.second_plan(cache, tried))
    many = plan.seeds_plan(cache)
    assert set(finished_records(many, out)) == set(many)
    others = [name for name in read_records(out) if name.startswith(("baseline_", "compression_"))]
    assert len(tried) + len(again) + len(many) + len(others) == len(read_records(out))
    shutil.copytree(out, tmp_path / "copy", ignore=shutil.ignore_patterns("*.md", "*.csv", "*.png"))
    report.report(cache, tmp_path / "copy")
    for name in ("table.md", "table.csv", "verdict.md", "seeds.md", "compression.md"):
        assert (tmp_path / "copy" / name).read_text() == (out / name).read_text()


def test_the_records_of_defaults():
    out = RESULTS / "defaults"
    found = finished_records({**defaults.plan(), **defaults.clipping_plan()}, out)
    assert len(found) == len(read_records(out))
    assert f"{defaults.table(found)}\n{defaults.clipping_table(found)}" == (out / "table.md").read_text()


def test_every_record_has_valid_settings_and_its_command():
    for study in ("paper", "defaults", "memory", "real-data"):
        found = read_records(RESULTS / study)
        assert len((RESULTS / study / RECORDS).read_text().splitlines()) == len(found)
        for name, record in found.items():
            if name.startswith("compression_"):
                continue
            if "unit" in record:
                assert Settings(**record["settings"]).as_json()["samples"] >= record["samples"], name
            assert all(record[entry] is not None for entry in ("norewind", "commit", "jax", "python", "seconds")), name
