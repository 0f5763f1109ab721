"""Compiled code is kept in the user's cache folder, unless that is impossible or turned off."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from jax._src.lru_cache import LRUCache
from jax.experimental.compilation_cache import compilation_cache

from norewind.engines.cache import keep_compiled, numba_folder

NAMES = ("JAX_COMPILATION_CACHE_DIR", "JAX_COMPILATION_CACHE_MAX_SIZE")


@pytest.fixture
def environment(monkeypatch, tmp_path):
    for name in (*NAMES, "NOREWIND_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


def kept() -> Path | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "jax")  # as before it is imported
        keep_compiled()
    return Path(os.environ[NAMES[0]]) if NAMES[0] in os.environ else None


def test_the_cache_is_in_the_users_folder_and_limited(environment, tmp_path):
    folder = kept()
    assert folder is not None
    assert folder.is_dir()
    assert folder.parent == tmp_path / ".cache/norewind"
    assert int(os.environ[NAMES[1]]) == 100_000_000


def test_the_cache_is_configured_even_if_jax_is_imported(environment, tmp_path):
    """If JAX is already imported, its configuration is changed instead of the environment."""
    before = {name: jax.config.values[name.lower()] for name in NAMES}
    jax.config.update(NAMES[0].lower(), None)
    try:
        keep_compiled()
        folder = Path(jax.config.values[NAMES[0].lower()])
        assert folder.parent == tmp_path / ".cache/norewind"
        keep_compiled()
        assert jax.config.values[NAMES[0].lower()] == str(folder)
    finally:
        for name, value in before.items():
            jax.config.update(name.lower(), value)
        compilation_cache.reset_cache()


def test_the_cache_can_be_in_another_folder(environment, tmp_path):
    environment.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    folder = kept()
    assert folder is not None
    assert folder.parent == tmp_path / "xdg/norewind"
    environment.delenv(NAMES[0])
    environment.setenv("NOREWIND_CACHE", str(tmp_path / "mine"))
    folder = kept()
    assert folder is not None
    assert folder.parent == tmp_path / "mine"


def test_the_cache_can_be_turned_off(environment, tmp_path):
    environment.setenv("NOREWIND_CACHE", "off")
    assert kept() is None
    # A folder that cannot be created, because its parent is a file.
    (tmp_path / "file").write_text("")
    environment.setenv("NOREWIND_CACHE", str(tmp_path / "file/cache"))
    assert kept() is None


def test_a_cache_configured_in_jax_stays(environment):
    environment.setenv(NAMES[0], "elsewhere")
    assert kept() == Path("elsewhere")
    assert NAMES[1] not in os.environ


def test_a_kill_while_a_program_is_stored_does_no_harm(environment):
    """A kill leaves a program without its access time, and JAX would then fail to store any other."""
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


def numba_kept() -> Path | None:
    return numba_folder()


@pytest.fixture(params=[kept, numba_kept], ids=["jax", "numba"])
def cached(request, environment):
    """The folder that one of the two caches uses, if any."""

    def used() -> Path | None:
        environment.delenv(NAMES[0], raising=False)
        return request.param()

    return used


def test_a_folder_is_used_only_if_nobody_else_can_write_to_its_path(cached, tmp_path):
    folder = cached()
    assert folder is not None
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700, 0o700]
    for path in (folder, folder.parent, folder.parent.parent, tmp_path):
        mode = path.stat().st_mode
        for others in (0o020, 0o002):
            path.chmod(mode | others)
            with pytest.warns(RuntimeWarning, match="can be written to by other users"):
                assert cached() is None
        path.chmod(mode)
    assert cached() == folder
    # With the sticky bit, as in /tmp, nobody can replace what belongs to another user.
    tmp_path.chmod(0o1777)
    assert cached() == folder


def test_a_new_cache_is_safe_even_if_new_folders_are_writable_by_the_group(cached, tmp_path):
    before = os.umask(0o002)
    try:
        folder = cached()
    finally:
        os.umask(before)
    assert folder is not None
    assert (tmp_path / ".cache").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_may_read_becomes_private(cached):
    folder = cached()
    assert folder is not None
    folder.chmod(0o755)
    assert cached() == folder
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_another_user_or_a_link_is_not_used(cached, environment, tmp_path):
    folder = cached()
    assert folder is not None
    folder.rename(tmp_path / "planted")
    folder.symlink_to(tmp_path / "planted")
    with pytest.warns(RuntimeWarning, match="symbolic link"):
        assert cached() is None
    folder.unlink()
    assert cached() == folder
    owner = folder.stat().st_uid
    with environment.context() as patch:
        patch.setattr(os, "getuid", lambda: owner + 1)
        with pytest.warns(RuntimeWarning, match="belongs to another user"):
            assert cached() is None
