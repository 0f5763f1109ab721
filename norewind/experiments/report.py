"""Everything that is drawn and written from records: figures, table, page."""

from collections.abc import Sequence
from pathlib import Path

from norewind.experiments.figures import influence_figure, save_figure, text_figure
from norewind.experiments.groups import Group, grouped, load_records, text_of, usual
from norewind.experiments.page import page
from norewind.experiments.table import comma_separated, markdown
from norewind.files import write_atomically

MEMORYLESS = {"brackets": "memoryless", "anbn": "without counting"}


def write_report(out: Path, missing: Sequence[str] = ()) -> list[Path]:
    """Write figures, table and page about all records in a folder. `missing` names planned runs that have none."""
    records = load_records(out)
    if not records:
        return []
    groups = {task: grouped(records, task) for task in ("brackets", "anbn")}
    figures = out / "figures"
    influence = [record for record in records if "task" not in record["setting"]]
    if influence:
        save_figure(influence_figure(influence), figures, "influence")
    for task, found in groups.items():
        chosen = usual(found)
        if chosen:
            title = f"{text_of(chosen[0]).name}: median and range over {_seeds(chosen)}"
            save_figure(text_figure(chosen, title, memoryless=MEMORYLESS[task]), figures, task)
    if groups["anbn"]:
        write_atomically(out / "table.md", markdown(usual(groups["anbn"])).encode())
        write_atomically(out / "table.csv", comma_separated(usual(groups["anbn"])).encode())
    write_atomically(out / "index.html", page(records, groups, out, missing).encode())
    return sorted([out / "index.html", *out.glob("table.*"), *figures.glob("*.*")])


def _seeds(groups: Sequence[Group]) -> str:
    """How many seeds the curves of a figure have."""
    counts = sorted({len(group.records) for group in groups})
    if counts == [1]:
        return "one seed"
    return f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
