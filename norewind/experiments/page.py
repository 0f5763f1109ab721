"""One self-contained page with everything: figures, table, findings, notes, runs."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from norewind.experiments import findings
from norewind.experiments.groups import Group, Record, text_of, usual
from norewind.experiments.paper import CHARACTERS, CLAIMS
from norewind.experiments.settings import TASKS
from norewind.experiments.table import markdown

STYLE = """
body { font: 16px/1.55 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
h1, h2 { line-height: 1.2 }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc }
img { width: 100%; height: auto }
blockquote { margin: 1rem 0; padding: 0 1rem; border-left: 4px solid #888; color: #444 }
table { border-collapse: collapse; margin: 1rem 0 }
td, th { border: 1px solid #bbb; padding: .3rem .6rem; text-align: left }
pre { background: #f3f3f3; padding: .8rem; overflow-x: auto }
.runs { font-size: .8rem }
.partial { background: #fff3cd; padding: .8rem }
.wide { overflow-x: auto }
"""


def page(records: Sequence[Record], groups: dict[str, list[Group]], out: Path, missing: Sequence[str]) -> str:
    """The page of a folder whose figures have been drawn."""
    influence = [record for record in records if "task" not in record["setting"]]
    parts = [
        "<h1>Unbiased Online Recurrent Optimization: the paper's experiments with norewind</h1>",
        _paragraph(
            "The experiments of the section “Experiments illustrating truncation bias” of Tallec & Ollivier (2017), "
            "made by “norewind reproduce”. The paper reports one run per number; here are the mean and the standard "
            "deviation over seeds. Every sentence with a number in it was computed from the records of the runs, "
            "except where “Notes” says otherwise."
        ),
        _made_with(records),
    ]
    if missing:
        names = ", ".join(missing[:6]) + (", ..." if len(missing) > 6 else "")
        parts.append(
            f'<p class="partial"><b>Partial results.</b> {len(missing)} runs of the full plan are not finished: '
            f"{escape(names)}. The same command goes on with them.</p>"
        )
    shorter = [group for group in usual(groups["anbn"]) if group.setting["characters"] != CHARACTERS]
    if shorter:
        parts.append(
            f'<p class="partial"><b>A small version.</b> These runs on aⁿbⁿ see {shorter[0].setting["characters"]:,} '
            f"characters and the paper's {CHARACTERS:,}: the numbers cannot be expected to agree.</p>"
        )
    if influence:
        parts += _section("Influence balancing", "influence", out, findings.influence_findings(influence))
        parts.append(_html_table(findings.influence_table(influence)))
    if groups["brackets"]:
        parts += _section("Distant brackets", "brackets", out, findings.brackets_findings(groups["brackets"]))
        parts.append(_sample(groups["brackets"][0], 72))
    if groups["anbn"]:
        parts += _section("aⁿbⁿ", "anbn", out, [])
        parts.append(_sample(groups["anbn"][0], 140))
        parts += ["<h3>The table</h3>", _table_note(groups["anbn"]), _html_table(markdown(usual(groups["anbn"])))]
        parts += ["<h3>Agreement with the paper</h3>", _list(findings.anbn_findings(groups["anbn"]))]
        controls = findings.control_findings(groups["anbn"])
        if controls:
            parts += ["<h3>Controls: what could explain a difference</h3>", _list(controls)]
    notes = out / "notes.md"
    if notes.exists():
        parts += ["<h2>Notes</h2>", _from_markdown(notes.read_text())]
    parts += ["<h2>All runs</h2>", _runs(records)]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>norewind: the paper</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _section(title: str, name: str, out: Path, sentences: Sequence[str]) -> list[str]:
    picture = base64.b64encode((out / "figures" / f"{name}.png").read_bytes()).decode()
    return [
        f"<h2>{escape(title)}</h2>",
        f"<blockquote>{escape(CLAIMS[name])}<br>– the paper</blockquote>",
        f'<img alt="{escape(title)}" src="data:image/png;base64,{picture}">',
        _list(sentences) if sentences else "",
    ]


def _made_with(records: Sequence[Record]) -> str:
    def all_of(name):
        return ", ".join(sorted({record[name] for record in records}))

    hours = sum(record["seconds"] for record in records) / 3600
    commits = ", ".join(sorted({record["commit"][:10] for record in records}))
    return _paragraph(
        f"{len(records)} runs that took {hours:.2f} hours in all, one after the other. norewind {all_of('norewind')} "
        f"(commit {commits}), JAX {all_of('jax')}, Python {all_of('python')}."
    )


def _table_note(groups: Sequence[Group]) -> str:
    group = usual(groups)[0]
    text = text_of(group)
    return _paragraph(
        f"Mean loss of the last {group.records[0]['recent_characters']:,} of {group.setting['characters']:,} "
        f"characters of {text.name}, in bits per character; the entropy rate is {text.floor:.4f}, and a model that "
        f"does not count reaches {text.naive:.4f}. Ours: mean ± standard deviation over the seeds that did not "
        "diverge. A cell “agrees” when the paper's run is at most two standard deviations of the difference away "
        "(never less than the noise of the text itself); “better” or “worse” says on which side we are otherwise."
    )


def _sample(group: Group, length: int) -> str:
    text = TASKS[group.setting["task"]](*group.setting["task_arguments"])
    return f"<p>The text looks like this:</p><pre>{escape(text.decode(next(text.chunks(0, length))))}</pre>"


def _runs(records: Sequence[Record]) -> str:
    lines = ["| run | final loss | diverged at | seconds |", "|---|---|---|---|"]
    for record in records:
        setting = record["setting"]
        if "task" in setting:
            name = (
                f"{setting['task']} {setting['cell']} {setting['method']} {setting['memory']}, "
                f"{setting['characters']:g} characters, {setting['precision']}, ρ {setting['rho']}, "
                f"seed {setting['seed']}"
            )
            final, diverged = record["recent"], record["diverged_at"]
        else:
            name = f"influence {setting['method']} {setting['window']}, η {setting['rate']:g}, seed {setting['seed']}"
            final, diverged = record["loss"], None
        lines.append(f"| {name} | {final} | {'' if diverged is None else f'{diverged:,}'} | {record['seconds']:.0f} |")
    return _html_table("\n".join(lines), "runs")


def _paragraph(words: str) -> str:
    return f"<p>{escape(words)}</p>"


def _list(sentences: Sequence[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "\n</ul>"


def _html_table(source: str, kind: str = "") -> str:
    """A Markdown table as HTML."""
    head, _, *rows = source.strip().splitlines()

    def cells(line, tag):
        return "".join(f"<{tag}>{escape(cell.strip())}</{tag}>" for cell in line.strip("|").split("|"))

    body = "\n".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f'<div class="wide"><table class="{kind}"><tr>{cells(head, "th")}</tr>\n{body}</table></div>'


def _from_markdown(source: str) -> str:
    """Headings, paragraphs, lists and tables: what notes are written in."""
    parts = []
    for block in source.strip().split("\n\n"):
        lines = block.strip().splitlines()
        if lines[0].startswith("#"):
            parts.append(f"<h3>{escape(lines[0].lstrip('# '))}</h3>")
        elif lines[0].startswith("- "):
            parts.append(_list([" ".join(item.split()) for item in ("\n" + block.strip()).split("\n- ")[1:]]))
        elif lines[0].startswith("|"):
            parts.append(_html_table(block))
        else:
            parts.append(_paragraph(" ".join(lines)))
    return "\n".join(parts)
