import random

import jax
import numpy as np
import pytest
from run_folders import ROWS, TEXT, cached_build, norewind


@pytest.fixture(autouse=True)
def shared_programs(monkeypatch):
    monkeypatch.setattr("norewind.runs.train.build", cached_build)
    monkeypatch.setattr("norewind.runs.predict.build", cached_build)
    monkeypatch.setattr("norewind.instruments.figures.draw_curves", lambda *_: None)
    monkeypatch.setattr("norewind.instruments.row_figures.draw_stretch", lambda *_: None)


@pytest.fixture(autouse=True)
def single_precision():
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture(scope="session")
def text() -> bytes:
    letters = random.Random(0)
    return "".join(letters.choice("abcä") * letters.randint(1, 4) for _ in range(1_000)).encode()[:2_002]


@pytest.fixture(scope="session")
def table() -> bytes:
    values = np.cumsum(np.random.default_rng(0).normal(size=(1_500, 2)), axis=0)
    return b"sun,wind\n" + b"".join(b"%.3f,%.3f\n" % tuple(row) for row in values)


@pytest.fixture(scope="session")
def whole(tmp_path_factory, text, table):
    """Runs that nothing has happened to: on bytes and on rows."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "text").write_bytes(text)
    (folder / "table.csv").write_bytes(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("norewind.runs.train.build", cached_build)
        assert norewind("train", folder / "text", "--out", folder / "bytes", *TEXT) == 0
        assert norewind("train", folder / "table.csv", "--out", folder / "rows", *ROWS) == 0
    assert (folder / "bytes" / "curve.png").read_bytes().startswith(b"\x89PNG")
    return folder
