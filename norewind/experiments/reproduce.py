"""From the name of an experiment to its records, figures, table and page."""

from pathlib import Path

from norewind.experiments import plans
from norewind.experiments.progress import Lines
from norewind.experiments.settings import TextSetting
from norewind.experiments.workers import run_all

FULL = {"seeds": 3, "anbn": 10**7, "brackets": 3 * 10**6}
QUICK = {"seeds": 1, "anbn": 2 * 10**5, "brackets": 2 * 10**5}


def run_experiments(
    what: str,
    *,
    out: Path,
    quick: bool = False,
    seeds: int | None = None,
    characters: int | None = None,
    controls: bool = True,
    jobs: int | None = None,
) -> None:
    """Run one experiment, or `"all"`, and write everything about it to a folder."""
    run_all(text_settings(what, quick, seeds, characters, controls), out, Lines(), jobs)


def text_settings(
    what: str, quick: bool, seeds: int | None, characters: int | None, controls: bool
) -> list[TextSetting]:
    """The runs on text, the table first."""
    sizes = QUICK if quick else FULL
    seeds = seeds or sizes["seeds"]
    anbn_size = {"seeds": seeds, "characters": characters or sizes["anbn"]}
    settings = []
    if what in ("anbn", "all"):
        settings += plans.anbn_table(**anbn_size)
    if what in ("brackets", "all"):
        settings += plans.brackets_curves(seeds=seeds, characters=characters or sizes["brackets"])
    if what in ("anbn", "all") and controls:
        settings += plans.anbn_controls(**anbn_size)
    return settings
