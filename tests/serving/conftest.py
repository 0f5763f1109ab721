import pytest
from run_folders import norewind
from serving.servers import MODEL, lines, table


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A run that has learned from 300 rows."""
    folder = tmp_path_factory.mktemp("serving")
    source = folder / "rows.jsonl"
    source.write_text(lines(table(300)))
    assert norewind("train", source, "--out", folder / "run", *MODEL) == 0
    return folder / "run"


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it, to change."""
    import shutil

    return shutil.copytree(trained, tmp_path / "run")
