"""The notebooks in the docs run from top to bottom, and their saved outputs are complete."""

import json

import pytest

from tools.notebooks import FOLDER, executed

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebooks_run_as_saved(path):
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package)
    notebook = executed(path)
    saved = json.loads(path.read_text(encoding="utf-8"))["cells"]
    # Numbers may differ by rounding, but not the kinds of output.
    assert [kinds(cell) for cell in notebook.cells] == [kinds(cell) for cell in saved]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_saved_outputs_match_the_run(path):
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]


def kinds(cell) -> list:
    return [(output["output_type"], sorted(output.get("data", ()))) for output in cell.get("outputs", ())]
