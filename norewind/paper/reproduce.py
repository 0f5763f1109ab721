"""From plans to records, figures, table and page."""

import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from norewind.paper.findings import anbn_findings, influence_findings, too_short
from norewind.paper.groups import grouped, of_paper
from norewind.paper.influence import Balancing, influence_records, run_influence
from norewind.paper.page import load_records, write_report
from norewind.runs.sweep import Plan, records, sweep


def reproduce(
    plan: Plan,
    influence: Sequence[Balancing],
    out: Path,
    *,
    jobs: int | None = None,
    ray: str | None = None,
    report_only: bool = False,
) -> None:
    """Make the runs that have no record in `out` yet, and write figures, table and page about all that have one.

    `plan` are the runs on text, of which `jobs` (by default one per core) are trained at the
    same time, in a cluster if `ray` is given (see `sweep`), and `influence` those of influence
    balancing. `report_only` trains nothing.
    """
    began = time.perf_counter()
    if threading.current_thread() is threading.main_thread():
        # A request to end is treated as Ctrl-C, also in the background.
        for request in (signal.SIGINT, signal.SIGTERM):
            signal.signal(request, signal.default_int_handler)
    try:
        if influence and not report_only:
            run_influence(influence, out, say)
        if plan and not report_only:
            sweep(plan, out, jobs=jobs, ray=ray)
    except KeyboardInterrupt:
        say("interrupted: finished runs and checkpoints are kept, the same command continues from there")
        raise SystemExit(130) from None
    finally:
        wanted = [*(run.name for run in influence), *plan]
        found = {**influence_records(influence, out), **records(plan, out)}
        written = write_report(out, [name for name in wanted if name not in found])
    for line in summary(out):
        say(line)
    say(f"done in {time.perf_counter() - began:.0f} s: see {written[-1]}" if written else f"no records in {out}")


def summary(out: Path) -> list[str]:
    influence, runs = load_records(out)
    groups = grouped(runs)
    sentences = influence_findings(influence)[1:] if influence else []
    lines = [f"influence balancing: {sentence}" for sentence in sentences]
    for source in ("brackets", "anbn"):
        chosen = of_paper(groups, source)
        short = too_short(chosen) if chosen else None
        if short:
            lines.append(f"{source}: {short}")
        elif source == "anbn" and chosen:
            # The details are on the page.
            lines += [f"anbn: {sentence.partition(': ')[0].rstrip('.')}" for sentence in anbn_findings(chosen)]
    return lines


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
