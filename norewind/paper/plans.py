"""The numbers that the paper reports (one run each), and the runs that reproduce them, in the order of training."""

import re
from dataclasses import replace

from norewind.training.settings import Settings

# The length of the paper's runs on aⁿbⁿ.
SAMPLES = 10**7
SEEDS = {"anbn": 5, "brackets": 3, "controls": 3}
# UORO with GRUs varies most between seeds, so that cell of the table has more of them.
GRU_SEEDS = 7
# The length of a run that only checks that everything works.
QUICK = 50_000

# Mean loss on the last 10⁵ of 10⁷ samples of aⁿbⁿ(1, 32), in bits, by (method, cell).
TABLE = {
    ("uoro", "lstm"): 0.147,
    ("uoro", "gru"): 0.155,
    ("uoro:window=2", "lstm"): 0.149,
    ("uoro:window=2", "gru"): 0.174,
    ("uoro:window=16", "lstm"): 0.154,
    ("uoro:window=16", "gru"): 0.149,
    ("bptt:1", "lstm"): 0.178,
    ("bptt:1", "gru"): 0.231,
    ("bptt:2", "lstm"): 0.149,
    ("bptt:2", "gru"): 0.285,
    ("bptt:16", "lstm"): 0.144,
    ("bptt:16", "gru"): 0.207,
}

CELLS = ("gru", "lstm")
# The methods in the table, the fast ones first.
METHODS = ("bptt:16", "uoro:window=16", "bptt:2", "uoro:window=2", "bptt:1", "uoro")
ANBN = Settings("anbn", parameters=(1, 32), method="uoro", alpha=0.03)
BRACKETS = Settings("brackets", parameters=(1, 5, 10), method="uoro", alpha=0.015)


def text_plan(
    what: str = "all",
    *,
    quick: bool = False,
    seeds: int | None = None,
    samples: int | None = None,
    controls: bool = True,
) -> dict[str, Settings]:
    """Plan the runs on text.

    All methods and cells with one seed precede the next seed, so that an interrupted sweep
    is a complete table with fewer seeds.

    Args:
        what: the experiment, `"anbn"` or `"brackets"`, or `"all"`.
        quick: one seed, and runs that are far too short to conclude anything.
        seeds: the runs of each kind; by default 5 for the table and 3 for the rest.
        samples: the length of each run; by default that of the paper's.
        controls: also plan the runs that could explain a difference from the paper.

    Returns:
        The settings of each run, by name.
    """
    samples = samples or (QUICK if quick else SAMPLES)
    sized = {"samples": samples, "metrics_every": min(10_000, max(1, samples // 100))}
    counts = {name: seeds or (1 if quick else count) for name, count in SEEDS.items()}
    # On brackets, the window of BPTT is shorter than the distance that has to be remembered.
    kinds = {
        "anbn": (ANBN, [(method, cell) for cell in CELLS for method in METHODS]),
        "brackets": (BRACKETS, [(method, cell) for method in ("bptt:4", "uoro") for cell in CELLS]),
    }
    runs = [
        replace(base, method=method, cell=cell, seed=seed, **sized)
        for name, (base, chosen) in kinds.items()
        if what in (name, "all")
        for seed in range(counts[name])
        for method, cell in chosen
    ]
    if what in ("anbn", "all") and controls and not quick:
        gru = replace(ANBN, cell="gru", **sized)
        for change in ({"method": "uoro:rho=released"}, {"precision": "double"}, {"samples": 3 * samples}):
            runs += [replace(gru, seed=seed, **change) for seed in range(counts["controls"])]
        runs += [replace(gru, seed=seed) for seed in range(counts["anbn"], counts["anbn"] if seeds else GRU_SEEDS)]
    return {run_name(run): run for run in runs}


def run_name(run: Settings) -> str:
    """The unique name of a run's record.

    >>> run_name(replace(ANBN, method="uoro:window=16", samples=1e7, seed=3))
    'anbn-gru-uoro-window-16-10M-seed3'
    """
    samples = run.samples or 0
    length = f"{samples:.15g}" if samples % 10**5 else f"{samples / 10**6:g}M"
    method = re.sub(r"\W+", "-", run.method)
    double = ["double"] if run.precision == "double" else []
    return "-".join([run.source, run.cell, method, length, *double, f"seed{run.seed}"])


def method_words(method: str) -> str:
    """The paper's name of a method.

    >>> method_words("uoro"), method_words("uoro:window=16"), method_words("bptt:4"), method_words("uoro:rho=released")
    ('UORO', 'UORO, T = 16', 'truncated BPTT, T = 4', 'UORO with the released ρ')
    """
    name, _, option = method.partition(":")
    words = {"uoro": "UORO", "bptt": "truncated BPTT"}[name]
    if option == "rho=released":
        return f"{words} with the released ρ"
    return f"{words}, T = {option.removeprefix('window=')}" if option else words
