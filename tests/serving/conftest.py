import pytest
from run_folders import norewind
from servers import MODEL, lines, table

from norewind.errors import Diverged


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
    """A copy of that run, which a test may change."""
    import shutil

    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def diverge(monkeypatch):
    """`diverge(n)`: from now on every run diverges at its next line of metrics, at sample n."""

    def at(sample):
        def check(*_):
            raise Diverged(f"at sample {sample} it went wrong.", sample)

        monkeypatch.setattr("norewind.scoring.divergence.DivergenceDetector.check", check)

    return at
