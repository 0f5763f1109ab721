"""Update the numbers that the pages quote from their records, or check them.

    python -m tools.stamp            # as `make numbers` does
    python -m tools.stamp --check    # change nothing; fail if a page and a record disagree

In a page, a number or a table is enclosed in two invisible comments, `<!--n:NAME-->13.5<!--/n-->`; for a table, they
are on separate lines. tools/records.py defines how the value of each NAME is computed.
"""

import argparse
import re
import sys
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from tools.records import values

ROOT = Path(__file__).parent.parent
MARK = re.compile(r"<!--(?:n:(.+?)|/n)-->")


class Finding(NamedTuple):
    """A place where a page is out of date or wrong.

    Attributes:
        line: the number of the line.
        text: the problem.
        wrong: whether a person has to fix it; otherwise it is updated automatically.
    """

    line: int
    text: str
    wrong: bool = False


def pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def stamped(page: str, known: dict[str, str]) -> tuple[str, list[Finding]]:
    """Update the numbers of a page.

    Args:
        page: the text of the page.
        known: the values by name.

    Returns:
        The updated page, and the findings.

    >>> page, findings = stamped("It takes <!--n:speed-->12<!--/n--> µs.", {"speed": "13"})
    >>> page
    'It takes <!--n:speed-->13<!--/n--> µs.'
    >>> findings[0].text
    "speed is '12' on the page, '13' on record"
    """
    marks = list(MARK.finditer(page))
    lines = [page.count("\n", 0, mark.start()) + 1 for mark in marks]
    lonely = _lonely(marks)
    if lonely is not None:
        return page, [Finding(lines[lonely], f"{marks[lonely][0]} has no partner", wrong=True)]
    parts, findings, end = [], [], 0
    for opening, closing, line in zip(marks[::2], marks[1::2], lines[::2], strict=True):
        name, old = opening[1], page[opening.end() : closing.start()]
        before = page[: opening.start()].rpartition("\n")[2]
        new = _renewed(name, known)
        if new is None:
            findings.append(Finding(line, f"{name} is not in tools/records.py", wrong=True))
        elif "\n" not in new and not before.strip(" >"):
            # Markdown treats a line that begins with a comment as HTML, and does not render it.
            findings.append(Finding(line, f"{name} begins a line, which Markdown would not render", wrong=True))
        elif new != old:
            findings.append(Finding(line, f"{name} is {_difference(old, new)}"))
        parts += [page[end : opening.end()], old if new is None else new]
        end = closing.start()
    return "".join([*parts, page[end:]]), findings


def _lonely(marks: list[re.Match[str]]) -> int | None:
    """The index of the first mark without a partner; None if there is none."""
    opened = None
    for i, mark in enumerate(marks):
        opens = mark[1] is not None
        if opens and opened is not None:
            return opened
        if not opens and opened is None:
            return i
        opened = i if opens else None
    return opened


def _renewed(name: str, known: dict[str, str]) -> str | None:
    """The text between the marks: a number within the line, or a table on separate lines."""
    new = known.get(name)
    return "\n" + new.strip("\n") + "\n" if new and "\n" in new else new


def _difference(old: str, new: str) -> str:
    """Describe a difference by both values; for a table, by the first lines that differ."""
    lines = zip_longest(old.strip("\n").split("\n"), new.strip("\n").split("\n"), fillvalue="")
    return next((f"{was!r} on the page, {now!r} on record" for was, now in lines if was != now), "laid out differently")


def run(root: Path, *, check: bool) -> int:
    """Update or check all pages.

    Args:
        root: the folder of the project.
        check: change nothing.

    Returns:
        The exit code.
    """
    known = values(root)
    failed = False
    for path in pages(root):
        page = path.read_text(encoding="utf-8")
        renewed, findings = stamped(page, known)
        if renewed != page and not check:
            path.write_text(renewed, encoding="utf-8")
        for finding in findings:
            failed |= check or finding.wrong
            print(f"{path.relative_to(root)}:{finding.line}: {finding.text}", file=sys.stderr)
    if check and failed:
        print("Run `make numbers`, and check the sentences around these numbers.", file=sys.stderr)
    return int(failed)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.stamp", description="Update the numbers in the pages from their records."
    )
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page and a record disagree")
    raise SystemExit(run(ROOT, check=parser.parse_args().check))


if __name__ == "__main__":
    main()
