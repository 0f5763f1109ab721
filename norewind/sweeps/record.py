"""Records: everything needed to repeat each run of a study, and its results, as one line of JSON per run."""

import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import filelock

import norewind
from norewind.storage.files import write_atomically

Record = dict[str, Any]

# All records of a study are in this file of its folder, sorted by name.
RECORDS = "records.jsonl"


def read_records(folder: Path) -> dict[str, Record]:
    """Read the records of a study.

    Args:
        folder: the folder of the study, which may not exist yet.

    Returns:
        The records by name. A line that is not a record is reported on standard error and ignored.
    """
    path, records = folder / RECORDS, {}
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], 1):
        try:
            record = json.loads(line)
            records[record.pop("name")] = record
        except (ValueError, RecursionError, TypeError, AttributeError, KeyError):
            print(f"{path}: line {number} is not a record and is ignored.", file=sys.stderr)
    return records


def write_record(folder: Path, name: str, record: Record) -> None:
    """Add a record to a study, or replace the record of the same name. This is safe from several processes at a time.

    Args:
        folder: the folder of the study, which is created if it does not exist.
        name: the name of the run.
        record: the settings and results of the run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder / f"{RECORDS}.lock"):
        records = {**read_records(folder), name: record}
        lines = [json.dumps({"name": name, **records[name]}) + "\n" for name in sorted(records)]
        write_atomically(folder / RECORDS, "".join(lines).encode())


def versions() -> dict[str, str]:
    """Return the versions of norewind, JAX and Python."""
    python = platform.python_version()
    return {"norewind": norewind.__version__, "commit": _commit(), "jax": version("jax"), "python": python}


def _commit() -> str:
    """Return the commit of the checkout that the package runs from, with a + if files have changed."""
    folder = Path(norewind.__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # An installed package may be inside another repository, which does not track this file.
        git("ls-files", "--error-unmatch", norewind.__file__)
        changed = git("status", "--porcelain", "--untracked-files=no", str(folder))
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
