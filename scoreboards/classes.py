"""Classes: `norewind.Classifier` on Elec2, on data sets of River, and on River's generators with drift.

The score is the share of rows whose class was predicted, each before it was learned from. The same is computed for
River's forests and nearest neighbours, with River's defaults, except on Elec2, where others have published theirs.
"""

import csv
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import norewind
from norewind.plotting.tables import markdown
from norewind.sweeps.record import Record, read_records, versions, write_record
from norewind.training.hooks import Hooks
from scoreboards.board import Board

# Pairs of inputs by name and a class.
Rows = Iterable[Any]
CLASS = "(class)"
SEEDS = (0, 1, 2)
QUICK_ROWS = 200
# Generators: the number of rows, and after how many of them the concept is replaced by another one.
ROWS, CONCEPT = 10_000, 2_500
# The functions of Agrawal that follow one another. (River has ten.)
AGRAWAL = (0, 3, 6, 4)
RIVALS = ("adaptive random forest", "Mondrian forest", "nearest neighbours")
OURS = "norewind"


def read_elec2(data: Path) -> Rows:
    """Return the rows of Elec2.

    Args:
        data: the folder with `electricity.csv`, whose last column is the class.
    """
    with (data / "electricity.csv").open(newline="") as lines:
        names, *rows = csv.reader(lines)
    return [(dict(zip(names, map(float, row[:-1]), strict=False)), row[-1]) for row in rows]


def concepts(make: Callable[[int], Any]) -> Rows:
    """Return the rows of one generator after another.

    Args:
        make: returns the generator of a concept, by its number.
    """
    return [row for number in range(ROWS // CONCEPT) for row in islice(make(number), CONCEPT)]


def streams(data: Path) -> dict[str, Callable[[int], Rows]]:
    """Return a function for each stream that takes a seed and returns its rows.

    Args:
        data: the folder of Elec2.
    """
    from river import datasets
    from river.datasets import synth

    def drifting(seed: int) -> Rows:
        return synth.RandomRBFDrift(seed_model=seed, seed_sample=seed, change_speed=0.01).take(ROWS)

    return {
        "Elec2": lambda seed: read_elec2(data),
        "Bananas": lambda seed: datasets.Bananas(),
        "ImageSegments": lambda seed: datasets.ImageSegments(),
        "Phishing": lambda seed: datasets.Phishing(),
        "RBF with drift": drifting,
        "Agrawal with drift": lambda seed: concepts(
            lambda number: synth.Agrawal(AGRAWAL[number], seed=seed + 10 * number, perturbation=0.05)
        ),
        "Sine with switches": lambda seed: concepts(lambda number: synth.Sine(number, seed=seed + 10 * number)),
        "SEA": lambda seed: synth.SEA(noise=0.1, seed=seed).take(ROWS),
    }


def share_right(rows: Rows, seed: int) -> float:
    """Return the share of rows whose class norewind predicts.

    Args:
        rows: the rows.
        seed: the seed of the networks.
    """
    named = [({str(name): value for name, value in x.items()}, y) for x, y in rows]
    right: list[bool] = []

    def count(entries: list[dict[str, Any]]) -> None:
        right.extend(entry["prediction"] == entry["target"] for entry in entries)

    model = norewind.Classifier(CLASS, inputs=list(named[0][0]), seed=seed)
    model.fit(({**x, CLASS: str(y)} for x, y in named), hooks=Hooks(predictions=count))
    return float(np.mean(right))


def share_right_of_river(rows: Rows, rival: str) -> float:
    """Return the share of rows whose class a model of River predicts.

    Args:
        rows: the rows.
        rival: the name of the model.
    """
    from river import forest, neighbors, preprocessing

    make = {
        "adaptive random forest": lambda: forest.ARFClassifier(seed=42),
        "Mondrian forest": lambda: forest.AMFClassifier(seed=42),
        "nearest neighbours": lambda: preprocessing.StandardScaler() | neighbors.KNNClassifier(),
    }
    model, right = make[rival](), []
    for x, y in rows:
        right.append(model.predict_one(x) == y)
        model.learn_one(x, y)
    return float(np.mean(right))


def run(data: Path, out: Path, quick: bool) -> None:
    """Predict all streams. Runs that have a record are not repeated.

    Args:
        data: the folder of Elec2.
        out: the folder of the records.
        quick: use only the first rows, one seed, and no other models.
    """
    made = streams(data)
    plan = [(name, seed, OURS) for name in made for seed in (SEEDS[:1] if quick else SEEDS)]
    # The results of others on Elec2 are published.
    plan += [] if quick else [(name, 0, rival) for rival in RIVALS for name in made if name != "Elec2"]
    for name, seed, method in plan:
        key = f"{name}/{method}/seed {seed}"
        if key in read_records(out):
            continue
        rows = list(islice(made[name](seed), QUICK_ROWS if quick else None))
        began = time.process_time()
        share = share_right(rows, seed) if method == OURS else share_right_of_river(rows, method)
        cost = 1e6 * (time.process_time() - began) / len(rows)
        found = {"stream": name, "method": method, "seed": seed, "share": share, "rows": len(rows)}
        write_record(out, key, {**found, "microseconds": round(cost), **versions()})
        print(key, round(share, 4), f"{cost:.0f} µs a row", flush=True)


def quote(records: dict[str, Record]) -> dict[str, str]:
    """Return the table of all streams, and the figures of Elec2.

    The least time counts, since the first run of a process also compiles.

    Args:
        records: the records by name.
    """
    rows, costs, spreads = [], [], {}
    for name in dict.fromkeys(record["stream"] for record in records.values() if record["method"] == OURS):
        own = [record for record in records.values() if record["stream"] == name]
        ours = [record["share"] for record in own if record["method"] == OURS]
        costs += [record["microseconds"] for record in own if record["method"] == OURS]
        others = [[record["share"] for record in own if record["method"] == rival] for rival in RIVALS]
        spread = f" ({100 * min(ours):.1f} to {100 * max(ours):.1f})" if len(ours) > 1 else ""
        spreads[name] = f"{100 * np.mean(ours):.1f}{spread}"
        shown = (f"{100 * shares[0]:.1f}" if shares else "" for shares in others)
        rows.append((name, own[0]["rows"], len(ours), spreads[name], *shown))
    if not rows:
        return {}
    table = markdown(
        ["stream", "rows", "seeds", f"{OURS} (least to most)", *(f"River's {one}" for one in RIVALS)], rows
    )
    first = "Elec2" if "Elec2" in spreads else next(iter(spreads))
    return {"table": table, "ours": f"{first} {spreads[first]}", "microseconds": f"{min(costs):.0f}"}


BOARD = Board(
    "classes",
    "Classes: Elec2 and River's streams",
    "% right, higher is better",
    "Elec2 89.3 (adaptive random forest)",
    "classes",
    "https://www.openml.org/d/151 (electricity.csv, the class last); the other streams are in the package river",
    run,
    quote,
)
