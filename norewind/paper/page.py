"""Everything that is written from records: figures, the table, and one self-contained page."""

import base64
import re
from collections.abc import Mapping, Sequence
from html import escape
from itertools import product
from math import isnan
from pathlib import Path

from markdown_it import MarkdownIt

from norewind.files import write_atomically
from norewind.instruments.figures import save
from norewind.instruments.tables import comma_separated, markdown
from norewind.paper import findings
from norewind.paper.figures import influence_figure, text_figure
from norewind.paper.groups import RECENT, Group, agreement, grouped, of_paper
from norewind.paper.plans import CLAIMS, TABLE, method_words
from norewind.runs.record import Record, read_record

MEMORYLESS = {"brackets": "memoryless", "anbn": "without counting"}
TITLE = "Unbiased Online Recurrent Optimization: the paper's experiments with norewind"
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 16px/1.55 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }}
h1, h2 {{ line-height: 1.2 }}
h2 {{ margin-top: 2.5rem; border-bottom: 1px solid #ccc }}
img {{ max-width: 100%; height: auto }}
blockquote {{ margin: 1rem 0; padding: 0 1rem; border-left: 4px solid #888; color: #444 }}
table {{ border-collapse: collapse; margin: 1rem 0; font-size: .9rem; display: block; overflow-x: auto }}
td, th {{ border: 1px solid #bbb; padding: .3rem .6rem; text-align: left }}
pre {{ background: #f3f3f3; padding: .8rem; overflow-x: auto }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def write_report(out: Path, missing: Sequence[str] = ()) -> list[Path]:
    """Write figures, table and page about all records in a folder. `missing` names planned runs that have none."""
    influence, runs = load_records(out)
    if not influence and not runs:
        return []
    groups = grouped(runs)
    figures = {"influence": influence_figure(influence)} if influence else {}
    for source, words in MEMORYLESS.items():
        if chosen := of_paper(groups, source):
            figures[source] = text_figure(chosen, words)
    kinds = product(figures, ("png", "pdf"))
    written = [save(figures[name], out / "figures" / f"{name}.{kind}") for name, kind in kinds]
    texts = {
        "table.md": markdown(*table(of_paper(groups, "anbn"))),
        "table.csv": comma_separated(*table(of_paper(groups, "anbn"), every_run=True)),
        "index.html": render(page(influence, runs, out, missing), out),
    }
    for name, text in texts.items():
        write_atomically(out / name, text.encode())
    return [*written, *(out / name for name in texts)]


def load_records(out: Path) -> tuple[list[Record], list[Record]]:
    """All records in a folder: those of influence balancing, and those of runs on text."""
    found = [record for path in sorted((out / "runs").glob("*.json")) if (record := read_record(path))]
    return [record for record in found if "influence" in record], [record for record in found if "settings" in record]


def table(groups: Mapping[tuple[str, str], Group], *, every_run: bool = False) -> tuple[list[str], list[list]]:
    """Header and rows of the table on aⁿbⁿ, the paper's value beside ours."""
    header = ["method", "cell", "paper", "ours", "spread", "seeds", "diverged", "95% of runs", "p", "verdict"]
    rows = []
    for (method, cell), paper in TABLE.items():
        group = groups.get((method, cell))
        judged = agreement(group, paper)
        numbers, values, length = ["", "", 0, 0], [], ""
        if group is not None:
            mean, spread = ("" if isnan(value) else f"{value:.4f}" for value in (group.mean, group.spread))
            numbers, values = [mean, spread, len(group.records), group.diverged], group.values
            length = f" ({group.samples:,} samples)" if group.is_short else ""
        p = "" if judged.p is None else f"{judged.p:.2g}"
        verdict = judged.interval, p, judged.verdict + length
        row = [method_words(method), cell.upper(), f"{paper:.3f}", *numbers, *verdict]
        rows.append([*row, " ".join(f"{value:.5f}" for value in values)] if every_run else row)
    return [*header, "runs"] if every_run else header, rows


def page(influence: Sequence[Record], runs: Sequence[Record], out: Path, missing: Sequence[str]) -> str:
    groups = grouped(runs)
    brackets, anbn = of_paper(groups, "brackets"), of_paper(groups, "anbn")
    parts = [
        f"# {TITLE}",
        "The experiments of “Experiments illustrating truncation bias” in Tallec & Ollivier (2017), made by "
        "`norewind reproduce`. The paper reports one run per number; here are the mean and the standard deviation over "
        "seeds. Every number outside “Notes” was computed from the records of the runs.",
        made_with([*influence, *runs]),
    ]
    if old := sum("converted" in record for record in [*influence, *runs]):
        parts.append(
            f"> **Older records.** {old} of these records were converted from an earlier format. The commits that they "
            "name were rewritten since, and the noise of a seed has changed: they will be run again."
        )
    if missing:
        some = ", ".join(missing[:6]) + (", ..." if len(missing) > 6 else "")
        parts.append(f"> **Partial results.** {len(missing)} planned runs are not finished: {some}. The same command "
                     "continues with them.")  # fmt: skip
    if influence:
        parts += _section("Influence balancing", "influence", findings.influence_findings(influence))
        parts.append(findings.influence_table(influence))
    if brackets:
        parts += _section("Distant brackets", "brackets", findings.brackets_findings(brackets), brackets)
        parts.append(_sample(brackets, 72))
    if anbn:
        parts += _section("aⁿbⁿ", "anbn", [], anbn)
        parts += [_sample(anbn, 140), "### The table", table_note(anbn), markdown(*table(anbn))]
        parts += ["### Agreement with the paper", _list(findings.anbn_findings(anbn))]
        if controls := findings.control_findings(groups):
            parts += ["### Controls: what could explain a difference", _list(controls)]
    if (out / "notes.md").exists():
        # Its headings are one level below ours.
        parts += ["## Notes", re.sub("^#", "###", (out / "notes.md").read_text(), flags=re.MULTILINE)]
    return "\n\n".join([*parts, "## All runs", run_table(influence, runs)])


def render(source: str, out: Path) -> str:
    """A Markdown page as one HTML file, with its pictures inside."""
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(source)

    def inside(match: re.Match) -> str:
        return f'src="data:image/png;base64,{base64.b64encode((out / match[1]).read_bytes()).decode()}"'

    body = re.sub(r'src="([^":]+\.png)"', inside, body)
    return PAGE.format(title=escape(TITLE), body=body)


def _section(title: str, name: str, sentences: Sequence[str], groups: Mapping | None = None) -> list[str]:
    short = findings.too_short(groups) if groups else None
    parts = [f"## {title}", f"> {CLAIMS[name]} (the paper)", *([f"**{short}**"] if short else [])]
    return [*parts, f"![{title}](figures/{name}.png)", *([_list(sentences)] if sentences else [])]


def _list(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _sample(groups: Mapping[tuple[str, str], Group], length: int) -> str:
    text = next(iter(groups.values())).text()
    return f"The text looks like this:\n\n```\n{text.decode(next(text.chunks(0, length)))}\n```"


def made_with(records: Sequence[Record]) -> str:
    def all_of(name):
        return ", ".join(sorted({record[name][:12] for record in records}))

    hours = sum(record["seconds"] for record in records) / 3600
    return (
        f"{len(records)} runs, {hours:.2f} hours in total, one after the other. norewind {all_of('norewind')} (commit "
        f"{all_of('commit')}), JAX {all_of('jax')}, Python {all_of('python')}."
    )


def table_note(groups: Mapping[tuple[str, str], Group]) -> str:
    group = next(iter(groups.values()))
    text = group.text()
    return (
        f"Mean loss of the last {RECENT:,} samples (of a shorter run: of its last tenth) of {text.name}, in bits; the "
        f"entropy rate is {text.floor:.4f}, and a model that does not count reaches {text.memoryless:.4f}. *Ours* and "
        "*spread* are the mean and the standard deviation over the seeds that did not diverge. *95% of runs* is where "
        "one more run would end with this probability (a t prediction interval; the spread is taken as no less than "
        "the noise of the text itself). *p* is the probability that one more run of ours ends at least as far from our "
        "mean as the paper's. A cell agrees if p ≥ 0.05; a verdict needs three seeds and runs as long as the paper's. "
        "Few seeds give wide intervals: with three, agreement means little."
    )


def run_table(influence: Sequence[Record], runs: Sequence[Record]) -> str:
    rows = []
    for record in runs:
        s = record["settings"]
        name = f"{s['source']} {s['cell']} {s['method']}, {s['samples']:g} samples, {s['precision']}, seed {s['seed']}"
        values = Group([record]).values
        rows.append([name, f"{values[0]:.5f}" if values else "", record["problem"], f"{record['seconds']:.0f}"])
    for record in influence:
        s = record["influence"]
        name = f"influence {s['method']}, η {s['rate']:g}, seed {s['seed']}"
        rows.append([name, record["loss"], record["problem"], f"{record['seconds']:.0f}"])
    return markdown(["run", "final loss", "problem", "seconds"], rows)
