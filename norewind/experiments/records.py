"""Records of runs: one JSON file each, written whole or not at all."""

import json
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import norewind
from norewind.files import write_atomically


def save(path: Path, record: dict[str, Any]) -> None:
    """Write a record, one line per entry so that a change of one shows as one."""
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in record.items()]
    write_atomically(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def load(path: Path) -> dict[str, Any] | None:
    """The record in a file; None when there is none, or none that can be read."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def versions() -> dict[str, str]:
    """What a run was made with."""
    return {
        "norewind": norewind.__version__,
        "commit": _commit(),
        "jax": version("jax"),
        "python": platform.python_version(),
    }


def _commit() -> str:
    """The commit of the checkout that the package runs from, with a + when files differ from it."""
    folder = Path(norewind.__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # An installed package may lie inside some other repository: only ours tracks this file.
        git("ls-files", "--error-unmatch", norewind.__file__)
        changed = git("status", "--porcelain", "--untracked-files=no", str(folder))
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
