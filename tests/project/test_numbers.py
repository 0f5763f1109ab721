"""The numbers in the pages match their records, and an outdated page is found."""

import shutil
from pathlib import Path

import pytest

from norewind.sweeps.record import read_records, write_record
from tools.records import SOURCES, values
from tools.stamp import ROOT, pages, run, stamped


def test_pages_quote_their_records(capsys):
    assert run(ROOT, check=True) == 0, capsys.readouterr().err


@pytest.fixture
def copy(tmp_path):
    """Copies of the pages and records, which a test may change."""
    for name in ("docs", "results"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("_*", "*.png", "*.pdf", "*.html"))
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


def change_bench(root: Path):
    record = read_records(root / "results/bench")["jax-0.12.0.1/step"]
    next(row for row in record["rows"] if row["case"] == "uoro")["us"] = 99.87
    write_record(root / "results/bench", "jax-0.12.0.1/step", record)


def change_defaults(root: Path):
    name = "anbn-gru-defaults-1M-seed0"
    record = read_records(root / "results/defaults")[name]
    write_record(root / "results/defaults", name, {**record, "problem": "diverged: it was lost"})


def change_real_data(root: Path):
    path = root / "results/real-data/table.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    stream, method, setting, _, *rest = lines[1].split(",")
    assert (stream, method) == ("bible", "auto")
    lines[1] = ",".join([stream, method, setting, "9.876", *rest])
    path.write_text("\n".join(lines), encoding="utf-8")


def change_text(name: str, old: str, new: str):
    def change(root: Path):
        text = (root / name).read_text(encoding="utf-8")
        assert old in text
        (root / name).write_text(text.replace(old, new), encoding="utf-8")

    return change


@pytest.mark.parametrize(
    ("change", "page", "now"),
    [
        (change_bench, "docs/speed.md", "99.9"),
        (change_bench, "docs/speed.md", "7.75"),
        (change_defaults, "docs/streams.md", "1 of 10"),
        (change_real_data, "docs/real-data.md", "9.876"),
        (change_text("results/real-data/table.md", " runs, ", " trials, "), "docs/real-data.md", " trials, "),
        (change_text("docs/streams.md", "0 of 10", "2 of 10"), "docs/streams.md", "0 of 10"),
    ],
)
def test_a_changed_record_fails_and_is_written_into_the_page(copy, capsys, change, page, now):
    assert run(copy, check=True) == 0
    before = (copy / page).read_text(encoding="utf-8")
    change(copy)
    changed = (copy / page).read_text(encoding="utf-8")
    capsys.readouterr()

    assert run(copy, check=True) == 1
    found = [line for line in capsys.readouterr().err.splitlines() if line.startswith(f"{page}:")]
    assert any(now in line.partition("on the page, ")[2] for line in found), found
    assert (copy / page).read_text(encoding="utf-8") == changed

    assert run(copy, check=False) == 0
    assert run(copy, check=True) == 0
    after = (copy / page).read_text(encoding="utf-8")
    assert now in after
    assert before == changed or after == before


def test_the_reported_line_is_the_line_in_the_page():
    page = "one\ntwo <!--n:a-->1<!--/n--> and <!--n:b-->2<!--/n-->\n\n<!--n:table-->\n| 1 |\n| 2 |\n<!--/n-->\n"
    renewed, findings = stamped(page, {"a": "1", "b": "3", "table": "| 1 |\n| 4 |\n"})
    assert [(finding.line, finding.text) for finding in findings] == [
        (2, "b is '2' on the page, '3' on record"),
        (4, "table is '| 2 |' on the page, '| 4 |' on record"),
    ]
    assert renewed == page.replace("2<!--", "3<!--").replace("| 2 |", "| 4 |")


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("a <!--n:gone-->1<!--/n-->", "gone is not in tools/records.py"),
        ("a\n<!--n:a-->1<!--/n--> b", "a begins a line, which Markdown would not render"),
        ("a\n> <!--n:a-->1<!--/n--> b", "a begins a line, which Markdown would not render"),
        ("a <!--n:a-->1 b", "<!--n:a--> has no partner"),
        ("a 1<!--/n--> b", "<!--/n--> has no partner"),
        ("a <!--n:a-->1 <!--n:b-->2<!--/n-->", "<!--n:a--> has no partner"),
    ],
)
def test_wrong_marks_fail_even_when_writing_and_stay_unchanged(page, text):
    renewed, findings = stamped(page, {"a": "1", "b": "2"})
    assert [finding.text for finding in findings] == [text]
    assert findings[0].wrong
    assert renewed == page


def test_a_wrong_mark_makes_make_numbers_fail(copy, capsys):
    with (copy / "docs/speed.md").open("a", encoding="utf-8") as page:
        page.write("\nIt takes <!--n:nobody/knows-->1<!--/n--> s.\n")
    assert run(copy, check=False) == 1
    assert "nobody/knows is not in tools/records.py" in capsys.readouterr().err


def test_every_source_is_quoted_somewhere():
    text = "".join(path.read_text(encoding="utf-8") for path in pages(ROOT))
    for source in SOURCES:
        names = [name for name, _ in source(ROOT)]
        assert any(f"<!--n:{name}-->" in text for name in names), source.__name__
    assert len(values(ROOT)) == sum(len(list(source(ROOT))) for source in SOURCES)
