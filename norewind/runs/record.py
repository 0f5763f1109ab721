"""Records: what is kept of a run in one JSON file, with everything needed to repeat it."""

import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import norewind
from norewind.files import write_atomically

Record = dict[str, Any]


def write_record(path: Path, record: Record) -> None:
    """Write a record, one line per entry, so that a change of one entry shows as one line."""
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in record.items()]
    write_atomically(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def read_record(path: Path) -> Record | None:
    """The record in a file; None if there is none that can be read. One that cannot is named on standard error."""
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        record = None
    if isinstance(record, dict):
        return record
    print(f"{path} is not a record that can be read: it counts as none.", file=sys.stderr)
    return None


def record_path(out: Path, name: str) -> Path:
    return out / "runs" / f"{name}.json"


def records_of(plan: Sequence[Any], out: Path, entry: str) -> dict[str, Record]:
    """The records of the finished runs in a plan, by name: those that hold the run, a dataclass, as `entry`."""
    found = ((run, read_record(record_path(out, run.name))) for run in plan)
    return {run.name: record for run, record in found if record and record[entry] == asdict(run)}


def versions() -> dict[str, str]:
    python = platform.python_version()
    return {"norewind": norewind.__version__, "commit": _commit(), "jax": version("jax"), "python": python}


def _commit() -> str:
    """The commit of the checkout that the package runs from, with a + if files differ from it."""
    folder = Path(norewind.__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # An installed package may lie inside another repository: only ours tracks this file.
        git("ls-files", "--error-unmatch", norewind.__file__)
        changed = git("status", "--porcelain", "--untracked-files=no", str(folder))
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
