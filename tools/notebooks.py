"""Run the notebooks in docs/notebooks and save their outputs: `python -m tools.notebooks [NAME.ipynb ...]`."""

import os
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "docs/notebooks"
SECONDS = 600


def executed(path: Path) -> Any:
    """Run a notebook from top to bottom in a new process. A cell that fails raises an error.

    Args:
        path: the notebook.

    Returns:
        The notebook with its outputs.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    root = str(FOLDER.parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    # The saved outputs must not depend on how fast they were computed.
    client = NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", record_timing=False, coalesce_streams=True
    )
    client.execute(env=environment, cwd=str(path.parent))
    return notebook


def main(names: list[str]) -> None:
    import nbformat

    for path in [FOLDER / name for name in names] or sorted(FOLDER.glob("*.ipynb")):
        notebook = executed(path)
        nbformat.write(notebook, path)
        print(path.name)


if __name__ == "__main__":
    main(sys.argv[1:])
