import gc
import os
import random
import shutil
import signal
import tempfile

import jax
import numpy as np
import pytest
from quick import ONE_THREAD, SIMPLE_EMITTERS

from norewind.engines.cache import numba_folder

# Under nohup, or in the background of a shell, these signals are ignored, which child processes would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Parallel test processes and their child processes share compiled programs. The first one creates the folder.
CACHE = os.environ.get("NOREWIND_TEST_CACHE") or tempfile.mkdtemp(prefix="norewind-compiled-")
IS_OWNER = "NOREWIND_TEST_CACHE" not in os.environ
os.environ["NOREWIND_TEST_CACHE"] = os.environ["JAX_COMPILATION_CACHE_DIR"] = CACHE
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
jax.config.update("jax_compilation_cache_dir", CACHE)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)

# Kernels are compiled once for all of them, even if a test sets another home or cache folder.
if folder := numba_folder():
    os.environ.setdefault("NUMBA_CACHE_DIR", str(folder))

# Almost all the time of these tests is XLA compiling tiny programs: let it try less hard, also in the processes that
# the tests start. `quick.as_users_run` undoes it for the README's quickstart, the demo and tests/engines.
collect_ignore = []
if not os.environ.get("NOREWIND_TEST_OPTIMISED"):
    collect_ignore = ["engines/optimised_claims.py"]
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    jax.config.update("jax_disable_most_optimizations", True)
    flags = os.environ.get("XLA_FLAGS", "").replace(SIMPLE_EMITTERS, "").replace(ONE_THREAD, "")
    # Newer versions of JAX reject the first option.
    flags += f" {SIMPLE_EMITTERS} {ONE_THREAD}" if jax.__version_info__ < (0, 11) else f" {ONE_THREAD}"
    os.environ["XLA_FLAGS"] = flags.strip()

# Tracing makes many objects and hardly any garbage, which Python would search again and again.
gc.set_threshold(200_000, 20, 20)


@pytest.fixture
def x64():
    """Use double precision, in which claims of exactness are checked."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def shared_programs(monkeypatch):
    """Make runs in this process share compiled programs, draw no figures, and leave the precision unchanged."""
    from run_folders import cached_build  # imports the package, which must see the environment above

    from norewind.plotting.figures import save

    monkeypatch.setattr("norewind.training.train_folder.build", cached_build)
    monkeypatch.setattr("norewind.forecasting.predict.build", cached_build)
    monkeypatch.setattr("norewind.plotting.figures.curves_figure", lambda *_: None)
    monkeypatch.setattr("norewind.plotting.figures.rows_figure", lambda *_, **__: None)
    monkeypatch.setattr("norewind.plotting.figures.save", lambda figure, path: save(figure, path) if figure else path)
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
    """A folder with a text, a table, and an uninterrupted run on each: `bytes` and `rows`."""
    from run_folders import ROWS, TEXT, cached_build, norewind

    folder = tmp_path_factory.mktemp("whole")
    (folder / "text").write_bytes(text)
    (folder / "table.csv").write_bytes(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("norewind.training.train_folder.build", cached_build)
        assert norewind("train", folder / "text", "--out", folder / "bytes", *TEXT) == 0
        assert norewind("train", folder / "table.csv", "--out", folder / "rows", *ROWS) == 0
    assert (folder / "bytes" / "curve.png").read_bytes().startswith(b"\x89PNG")
    return folder


@pytest.fixture(scope="module")
def cluster():
    """A Kafka cluster: the mock of librdkafka."""
    from kafka_cluster import Cluster

    cluster = Cluster()
    yield cluster
    cluster.close()


def pytest_unconfigure():
    if IS_OWNER:
        shutil.rmtree(CACHE, ignore_errors=True)
