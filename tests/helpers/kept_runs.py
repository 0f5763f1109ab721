"""Run folders as this version writes them, kept in tests/data/runs, so that a later version reads or rejects them.

    python tests/helpers/kept_runs.py [KIND ...]    # makes them again: when checkpoint.FORMAT has changed on purpose

Each is an archive of a folder with a stream and `run`, the run that has learned from it.
"""

import gzip
import io
import os
import random
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from run_folders import norewind

from norewind.serving.late_labels import LateLabels

RUNS = Path(__file__).parent.parent / "data/runs"
NETWORK = ("--method", "bptt", "--hidden", 2, "--predictions", "file", "--metrics-every", 40, "--keep", 2)
COLUMNS = ("--inputs", "sun", "wind", "--targets", "sun")
# The source and the options of every kind of run. `kafka` is made by itself.
KINDS = {
    "bytes": ("letters.txt", *NETWORK, "--optimizer", "sgd", "--keep", 1),
    "text": ("letters.txt", "--format", "text", "--alphabet-size", 8, *NETWORK),
    "lines": ("letters.txt", "--format", "text", "--alphabet-size", 8, "--per", "line", *NETWORK),
    "rows": ("rows.csv", "--horizon", 2, *COLUMNS, *NETWORK),
    "classes": ("rows.csv", "--inputs", "sun", "--targets", "mode", "--loss", "classes", *NETWORK),
    "fleet": ("rows.csv", "--key", "mode", *COLUMNS, *NETWORK),
    "shards": ("rows.csv", "--key", "mode", "--shards", 2, "--jobs", 1, *COLUMNS, *NETWORK),
    "late-labels": ("rows.csv", "--only-steps", 3, *COLUMNS, *NETWORK),
}
ALL = (*KINDS, "kafka")


def write_streams(folder: Path) -> None:
    """Write the streams that the runs learn from."""
    draw = random.Random(1)
    (folder / "letters.txt").write_text("".join(draw.choice(["ab", "c", "ä\n"]) for _ in range(100)) + "\n")
    rows = [f"{draw.gauss(0, 1):.3f},{draw.gauss(5, 2):.3f},{draw.choice('xyz')}\n" for _ in range(120)]
    (folder / "rows.csv").write_text("sun,wind,mode\n" + "".join(rows))


def make(kind: str, folder: Path) -> None:
    """Make a run of a kind in `run` in a folder, with its stream next to it. Changes to this folder.

    Args:
        kind: a name in `KINDS`.
        folder: an empty folder.
    """
    os.chdir(folder)
    write_streams(folder)
    assert norewind("train", *KINDS[kind], "--out", "run", "--checkpoint-every", 50, "--quiet") == 0
    if kind == "late-labels":
        labels = LateLabels(folder / "run", ("sun", "wind"), most=10, durable=120)
        labels.add("a", {"wind": 4.5})
        labels.add("b", {"wind": 5.5})
        labels.accept("b", 121)
        labels.save()


def make_kafka(folder: Path) -> None:
    """Make a run on a topic, whose answers are messages of another topic."""
    from kafka_cluster import Cluster, rows

    os.chdir(folder)
    cluster = Cluster()
    try:
        cluster.send("readings", rows(120))
        cluster.create("answers")
        answers = ("--predictions", "kafka://answers", "--group", "kept", "--checkpoint-seconds", 5)
        options = ("--brokers", cluster.brokers, "--final", "--out", "run", "--checkpoint-every", 50, "--quiet")
        plain = (*NETWORK[:4], "--metrics-every", 40, "--keep", 2)
        assert norewind("train", "kafka://readings", *plain, *answers, *options) == 0
    finally:
        cluster.close()


def pack(folder: Path, path: Path) -> None:
    """Archive a folder, without anything that differs between two machines."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and file.suffix != ".png":
                entry = tarfile.TarInfo(str(file.relative_to(folder)))
                entry.size, entry.mode = file.stat().st_size, 0o644
                archive.addfile(entry, io.BytesIO(file.read_bytes()))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content.getvalue(), mtime=0))


def unpack(kind: str, folder: Path) -> Path:
    """Unpack the kept run of a kind, and return its run folder."""
    with tarfile.open(RUNS / f"{kind}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "run"


if __name__ == "__main__":
    for kind in sys.argv[1:] or ALL:
        made = Path(tempfile.mkdtemp())
        make_kafka(made) if kind == "kafka" else make(kind, made)
        pack(made, RUNS / f"{kind}.tar.gz")
        shutil.rmtree(made)
        print(f"{kind}: {(RUNS / f'{kind}.tar.gz').stat().st_size:,} bytes")
