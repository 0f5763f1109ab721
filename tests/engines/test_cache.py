"""What was compiled is kept in the user's cache folder, unless that is impossible or not wanted."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from jax._src.lru_cache import LRUCache
from jax.experimental.compilation_cache import compilation_cache

from norewind.engines.cache import keep_compiled, keep_compiled_from_now

NAMES = ("JAX_COMPILATION_CACHE_DIR", "JAX_COMPILATION_CACHE_MAX_SIZE")


@pytest.fixture
def environment(monkeypatch, tmp_path):
    for name in (*NAMES, "NOREWIND_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


def kept() -> Path | None:
    keep_compiled()
    return Path(os.environ[NAMES[0]]) if NAMES[0] in os.environ else None


def test_in_the_cache_folder_of_the_user_with_a_bound(environment, tmp_path):
    folder = kept()
    assert folder is not None
    assert folder.is_dir()
    assert folder.parent == tmp_path / ".cache/norewind"
    assert int(os.environ[NAMES[1]]) == 100_000_000


def test_where_jax_is_imported_already(environment, tmp_path):
    """As for the estimators in Python: JAX is told."""
    before = {name: jax.config.values[name.lower()] for name in NAMES}
    jax.config.update(NAMES[0].lower(), None)
    try:
        keep_compiled_from_now()
        folder = Path(jax.config.values[NAMES[0].lower()])
        assert folder.parent == tmp_path / ".cache/norewind"
        keep_compiled_from_now()
        assert jax.config.values[NAMES[0].lower()] == str(folder)
    finally:
        for name, value in before.items():
            jax.config.update(name.lower(), value)
        compilation_cache.reset_cache()


def test_in_another_folder(environment, tmp_path):
    environment.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    folder = kept()
    assert folder is not None
    assert folder.parent == tmp_path / "xdg/norewind"
    environment.delenv(NAMES[0])
    environment.setenv("NOREWIND_CACHE", str(tmp_path / "mine"))
    folder = kept()
    assert folder is not None
    assert folder.parent == tmp_path / "mine"


def test_not_at_all(environment, tmp_path):
    environment.setenv("NOREWIND_CACHE", "off")
    assert kept() is None
    # A folder that cannot be made: its parent is a file.
    (tmp_path / "file").write_text("")
    environment.setenv("NOREWIND_CACHE", str(tmp_path / "file/cache"))
    assert kept() is None


def test_what_was_told_to_jax_stays(environment):
    environment.setenv(NAMES[0], "elsewhere")
    assert kept() == Path("elsewhere")
    assert NAMES[1] not in os.environ


def test_a_kill_while_a_program_is_stored_spoils_nothing(environment):
    """It leaves a program without the time of its use, and JAX would fail to store any other."""
    folder = kept()
    assert folder is not None
    cache = LRUCache(str(folder), max_size=10_000)
    cache.put("whole", b"program")
    (folder / "half-cache").write_bytes(b"pro")
    environment.delenv(NAMES[0])
    assert kept() == folder
    cache.put("next", b"program")
    assert [cache.get(name) for name in ("whole", "half", "next")] == [b"program", None, b"program"]


def test_a_cache_that_another_user_has_locked(environment):
    folder = kept()
    assert folder is not None
    environment.delenv(NAMES[0])
    environment.setattr("os.access", lambda path, mode: Path(path).name != ".lockfile")
    (folder / ".lockfile").touch()
    assert kept() is None


def test_the_choice_is_made_before_jax_is_imported():
    code = "import sys, norewind.engines.cache as cache; cache.keep_compiled(); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
