import os
import shutil
import tempfile

import jax
import pytest
from quick import SIMPLE_EMITTERS

from norewind.cache import numba_folder

# Processes that test side by side, and those they start, share what they compile. The first one makes the folder.
CACHE = os.environ.get("NOREWIND_TEST_CACHE") or tempfile.mkdtemp(prefix="norewind-compiled-")
IS_OWNER = "NOREWIND_TEST_CACHE" not in os.environ
os.environ["NOREWIND_TEST_CACHE"] = os.environ["JAX_COMPILATION_CACHE_DIR"] = CACHE
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
jax.config.update("jax_compilation_cache_dir", CACHE)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)

# Kernels are compiled once for all of them, whatever home and cache folder a test chooses.
if folder := numba_folder():
    os.environ.setdefault("NUMBA_CACHE_DIR", str(folder))

# Almost all the time of these tests is XLA compiling tiny programs: let it try less hard, also in the processes that
# the tests start. `quick.as_users_run` undoes it for the README's quickstart, the demo and tests/test_optimised.py.
collect_ignore = []
if not os.environ.get("NOREWIND_TEST_OPTIMISED"):
    collect_ignore = ["optimised.py"]
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    jax.config.update("jax_disable_most_optimizations", True)
    if jax.__version_info__ < (0, 11):  # newer ones do not know the option, and stop
        flags = os.environ.get("XLA_FLAGS", "").replace(SIMPLE_EMITTERS, "")
        os.environ["XLA_FLAGS"] = f"{flags} {SIMPLE_EMITTERS}".strip()


@pytest.fixture
def x64():
    """Claims of exactness are checked in double precision."""
    with jax.enable_x64(True):
        yield


def pytest_unconfigure():
    if IS_OWNER:
        shutil.rmtree(CACHE, ignore_errors=True)
