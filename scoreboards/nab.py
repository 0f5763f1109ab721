"""The Numenta Anomaly Benchmark: `norewind.AnomalyDetector`, with its defaults, on every file from its beginning.

The data are a copy of the repository github.com/numenta/NAB, or of its `data` and `labels`. Settings were chosen on
the files whose name has an even CRC-32; the score is shown for these, for the others, and for all.
"""

import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import norewind
from norewind.plotting.tables import markdown
from norewind.sweeps.record import Record, read_records, versions, write_record
from norewind.training.hooks import Hooks
from scoreboards.board import Board
from scoreboards.nab_score import PROFILES, Series, best_result, read_corpus

# Rows with a lower score are no alarms at any threshold that is worth trying, and are not in the records.
LEAST_SCORE = 0.98
# The number of files of a quick run.
QUICK = 5


def is_even(name: str) -> bool:
    """Return whether settings may be chosen on a file.

    Args:
        name: the name of the file, with its folder.
    """
    return zlib.crc32(name.encode()) % 2 == 0


def run_on(series: Series) -> Record:
    """Score all rows of a file, each before it is learned from.

    Args:
        series: the file.

    Returns:
        The number of rows, those with the highest scores, and the processor time per row in microseconds.
    """
    entries = []
    began = time.process_time()
    model = norewind.AnomalyDetector("value")
    model.fit(({"value": value} for value in series.values.tolist()), hooks=Hooks(predictions=entries.extend))
    seconds = time.process_time() - began
    scores = [(row, entry.get("anomaly", 0.0)) for row, entry in enumerate(entries)]
    high = [[row, score] for row, score in scores if score >= LEAST_SCORE]
    return {"rows": len(entries), "scores": high, "microseconds": round(1e6 * seconds / len(entries), 1)}


def scores_of(record: Record) -> np.ndarray:
    """Return the scores of all rows; 0 for those that are not in the record.

    Args:
        record: the record of a file.
    """
    scores = np.zeros(record["rows"])
    for row, score in record["scores"]:
        scores[row] = score
    return scores


def results(corpus: Sequence[Series], records: dict[str, Record]) -> dict[str, dict[str, float]]:
    """Return the score of every profile, for all files with a record, and for both halves.

    Args:
        corpus: the files.
        records: the records by name.
    """
    known = [series for series in corpus if series.name in records]
    halves = {
        "all files": known,
        "even files": [series for series in known if is_even(series.name)],
        "odd files": [series for series in known if not is_even(series.name)],
    }
    return {
        half: {
            profile: round(best_result(files, [scores_of(records[one.name]) for one in files], weights).score, 1)
            for profile, weights in PROFILES.items()
        }
        for half, files in halves.items()
        if any(one.windows for one in files)
    }


def run(data: Path, out: Path, quick: bool) -> None:
    """Score the benchmark. Files that have a record are not run again.

    Args:
        data: a copy of github.com/numenta/NAB.
        out: the folder of the records.
        quick: use only the shortest files.
    """
    corpus = read_corpus(data)
    chosen = sorted(corpus, key=lambda series: len(series.values))[:QUICK] if quick else corpus
    for series in chosen:
        if series.name not in read_records(out):
            record = run_on(series)
            write_record(out, series.name, {**record, **versions()})
            print(series.name, f"{record['rows']} rows, {record['microseconds']} µs each", flush=True)
    records = {name: record for name, record in read_records(out).items() if name != "results"}
    found = results(corpus, records)
    costs = [record["microseconds"] for record in records.values()]
    files = len(records)
    summary = {"files": files, "scores": found, "microseconds": float(np.median(costs))}
    write_record(out, "results", {**summary, **versions()})
    print(markdown([f"{files} files", *PROFILES], [(half, *scores.values()) for half, scores in found.items()]))


def quote(records: dict[str, Record]) -> dict[str, str]:
    """Return the scores of all files and of both halves, and the time per row.

    Args:
        records: the records by name.
    """
    if "results" not in records:
        return {}
    scores = records["results"]["scores"]
    ours = f"{scores['all files']['standard']:.1f} (the half not developed on: {scores['odd files']['standard']:.1f})"
    lines = {half: " | ".join(f"{score:.1f}" for score in of_half.values()) for half, of_half in scores.items()}
    return {**lines, "ours": ours, "microseconds": f"{records['results']['microseconds']:.0f}"}


BOARD = Board(
    "nab",
    "Anomalies: the Numenta Anomaly Benchmark",
    "score of 100, higher is better",
    "74.9 (ARTime)",
    "nab",
    "https://github.com/numenta/NAB",
    run,
    quote,
)
