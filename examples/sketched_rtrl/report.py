"""The tables from the records: mean NMSE and cosine with t prediction intervals, next to the published ones."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.stats import t as student

from examples.sketched_rtrl.runs import LEAKY, MASKED, METHODS, PUBLISHED
from examples.sketched_rtrl.series import CHAOTIC, REAL, SERIES, TITLES
from norewind.plotting.tables import markdown
from norewind.storage.files import write_atomically
from norewind.sweeps.record import Record, read_records

# NMSE ± standard deviation over seeds as published (SK-RTRL, 2026, Tables 6 and 7), in the order of SERIES, and the
# mean cosine with the exact gradient on the chaotic and the real series.
PAPER = {
    "rtrl": (".0052 ± .0010", ".0180 ± .0218", ".0051 ± .0040", ".1451 ± .0061", ".0199 ± .0041", None, None),
    "sketched:terms=32": (".0069 ± .0016", ".0070 ± .0030", ".0130 ± .0184", None, None, ".954", None),
    "sketched:terms=16": (".0064 ± .0007", ".0105 ± .0091", ".0128 ± .0296", ".1456 ± .0042", ".0217 ± .0021",
                          ".938", ".883"),
    "sketched:terms=4": (".0059 ± .0007", ".0065 ± .0053", ".0038 ± .0021", ".1460 ± .0049", ".0239 ± .0037",
                         ".927", ".867"),
    MASKED: (".0052 ± .0012", ".0050 ± .0010", ".0024 ± .0008", ".1437 ± .0019", ".0214 ± .0012", ".505", ".439"),
    "kf_rtrl": (".0384 ± .0709", ".0286 ± .0181", ".0126 ± .0079", ".1613 ± .0153", ".1788 ± .2339", ".512", ".431"),
    LEAKY: (".0704 ± .0163", ".0572 ± .0331", ".0442 ± .0124", ".1536 ± .0038", ".2759 ± .2241", ".288", ".186"),
    "uoro": (".6583 ± .2966", ".0497 ± .0238", ".0425 ± .0431", ".2119 ± .0461", ".4145 ± .1523", ".056", ".046"),
    "bptt:25": (".0311 ± .0030", ".0080 ± .0010", ".0054 ± .0007", None, None, None, None),
}  # fmt: skip


def report(out: Path, samples: int) -> str:
    """Write the tables of all runs of one length.

    Args:
        out: the folder of the study.
        samples: the number of samples of the runs to report.

    Returns:
        The text of the tables, which is also written to table.md.
    """
    records = [record for record in read_records(out).values() if record["table"]["samples"] == samples]
    text = f"{nmse_table(records)}\n{cosine_table(records)}"
    write_atomically(out / "table.md", text.encode())
    return text


def nmse_table(records: Sequence[Record]) -> str:
    """Format the NMSE of every method on every series, with the published numbers below ours.

    Args:
        records: the records.
    """
    rows = []
    for method in METHODS:
        ours = [summary([found["nmse"] for found in _of(records, method, [series])]) for series in SERIES]
        spent = [found["microseconds"] for found in _of(records, method, SERIES) if found["microseconds"]]
        if any(ours):
            rows.append([f"`{method}`", *ours, f"{min(spent):.0f}" if spent else None])
            if method in PAPER:
                rows.append([f"published: {PUBLISHED[method]}", *PAPER[method][:5], None])
    return markdown(["NMSE", *(TITLES[series] for series in SERIES), "µs"], rows)


def cosine_table(records: Sequence[Record]) -> str:
    """Format the cosine of every method with the exact gradient, as a mean over the runs on the series of a kind.

    Args:
        records: the records.
    """
    rows = []
    for method in METHODS:
        of_kinds = [[found["cosine"] for found in _of(records, method, kind)] for kind in (CHAOTIC, REAL)]
        ours = [_mean([cosine for cosine in cosines if cosine is not None]) for cosines in of_kinds]
        if any(ours):
            rows.append([f"`{method}`", *ours, *PAPER.get(method, (None,) * 7)[5:]])
    return markdown(["cosine", "chaotic", "real", "published, chaotic", "published, real"], rows)


def _mean(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3f} ({len(values)})" if values else ""


def _of(records: Sequence[Record], method: str, series: Sequence[str]) -> list[Record]:
    return [found for found in records if found["table"]["method"] == method and found["table"]["series"] in series]


def summary(values: Sequence[float | None]) -> str:
    """Format a mean and the half-width of the 95 % t prediction interval for one more seed.

    Args:
        values: one value per run; None for a run that diverged.

    >>> summary([0.1, 0.12, 0.11]), summary([0.5]), summary([0.1, None])
    ('0.1100 ± 0.0497 (3)', '0.5000 (1)', '0.1000 (1), 1 diverged')
    """
    known = np.array([value for value in values if value is not None])
    lost = len(values) - len(known)
    ending = f", {lost} diverged" if lost else ""
    if not len(known):
        return ending[2:]
    width = ""
    if len(known) > 1:
        half = student.ppf(0.975, len(known) - 1) * known.std(ddof=1) * np.sqrt(1 + 1 / len(known))
        width = f" ± {half:.4f}"
    return f"{known.mean():.4f}{width} ({len(known)}){ending}"
