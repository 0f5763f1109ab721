"""Programs that are kept: a later process loads them, and need not trace, lower or compile them.

JAX's own cache is asked with a program that was traced and lowered, which takes longer than
loading it. Here the key is made of the function itself (`identity`), of what it is called
with, and of everything else that a program depends on (`environment`, JAX's settings). Where
a function has no identity, and in processes that keep nothing, this is `jax.jit`.
"""

import hashlib
import inspect
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from norewind.cache import LARGEST, PROGRAMS
from norewind.files import write_atomically
from norewind.identity import NoIdentity, environment, identity
from norewind.trees import is_key

SUFFIX = ".program"
CHECKSUM = 32  # bytes
LARGEST_RESULT = 16_000_000  # bytes: more takes longer to read than to compute
# JAX's cache is turned off and on for the whole process, and what one thread compiles, others load.
_ONE_AT_A_TIME = threading.RLock()


class Program:
    """`jax.jit(function, **options)`, kept for later processes where `cache.keep_compiled` was called.

    `hints` are options of the compiler. They are left out inside a caller's own jit, whose
    options apply, and if `known()` is false: then this compiler does not have them. Static
    arguments are named, and come last.
    """

    def __init__(
        self,
        function: Callable,
        options: dict[str, Any],
        hints: dict[str, Any] | None = None,
        known: Callable[[], bool] = lambda: True,
    ):
        self._made_of, self._known = (function, options, hints), known
        self._plain = jax.jit(function, **options)
        self._hinted = self._plain if hints is None else jax.jit(function, **options, compiler_options=hints)
        names = options.get("static_argnames", ())
        self._static = (names,) if isinstance(names, str) else tuple(names)
        self._signature = inspect.signature(function) if self._static else None
        self._programs: dict[Any, Callable | None] = {}

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if _inside_a_jit():
            return self._plain(*arguments, **keywords)
        folder = _folder()
        if folder is None or jax.config.values["jax_disable_jit"]:
            return self._compiled(*arguments, **keywords)
        arguments, keywords, static = self._split(arguments, keywords)
        leaves, tree = jax.tree.flatten((arguments, keywords))
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return self._compiled(*arguments, **keywords, **static)
        like = tree, tuple(map(jax.typeof, leaves)), tuple(static.items()), tuple(_settings().values())
        if like not in self._programs:
            self._programs[like] = self._program(folder, like[:2], arguments, keywords, static)
        program = self._programs[like]
        if program is None:
            return self._compiled(*arguments, **keywords, **static)
        return program(*arguments, **keywords)

    @property
    def _compiled(self) -> Any:
        return self._hinted if self._known() else self._plain

    def _split(self, arguments: tuple, keywords: dict[str, Any]) -> tuple[tuple, dict[str, Any], dict[str, Any]]:
        """The arguments without the static ones, and these."""
        if self._signature is None:
            return arguments, keywords, {}
        bound = self._signature.bind(*arguments, **keywords)
        static = {name: bound.arguments[name] for name in self._static if name in bound.arguments}
        named = zip(self._signature.parameters, arguments, strict=False)
        return (
            tuple(value for name, value in named if name not in static),
            {name: value for name, value in keywords.items() if name not in static},
            static,
        )

    def _program(self, folder: Path, like: tuple, arguments: tuple, keywords: dict, static: dict) -> Callable | None:
        """The program for such arguments, from the folder if it is there; None if it cannot be kept."""
        try:
            key = _key(self._made_of, like, static)
        except NoIdentity:
            return None
        path = folder / (key + SUFFIX)
        with _ONE_AT_A_TIME:
            program = _load(path)
            if program is None:
                lowered = self._compiled.lower(*arguments, **keywords, **static)
                with _without_jax_cache():
                    program = lowered.compile()
                _write(path, lambda: serialize_executable.serialize(program))
        return program


def remembered(function: Callable, *arguments: Any) -> Any:
    """`function(*arguments)`, a tree of JAX's arrays, which later processes read instead of computing it.

    That takes less time than loading the many small programs that compute it, one for each operation.
    """
    folder = None if _inside_a_jit() else _folder()
    try:
        name = folder and _key((remembered, function), (None, ()), {"arguments": arguments})
    except NoIdentity:
        name = None
    if not folder or not name:
        return function(*arguments)
    path = folder / f"{name}.result"
    found = _read(path)
    if found is not None:
        return jax.tree.map(_as_array, found, is_leaf=lambda leaf: isinstance(leaf, _Stored))
    result = function(*arguments)
    leaves = jax.tree.leaves(result)
    if sum(leaf.nbytes for leaf in leaves) <= LARGEST_RESULT and not any(jax.typeof(leaf).weak_type for leaf in leaves):
        _write(path, lambda: jax.tree.map(_stored, result))
    return result


class _Stored(NamedTuple):
    """An array as it is written: numbers, and for a key the name of what it is for."""

    numbers: np.ndarray
    key: str | None


def _stored(leaf: Any) -> _Stored:
    if is_key(leaf):
        return _Stored(np.asarray(jax.random.key_data(leaf)), str(jax.random.key_impl(leaf)))
    return _Stored(np.asarray(leaf), None)


def _as_array(stored: _Stored) -> jax.Array:
    numbers = jax.device_put(stored.numbers)
    return numbers if stored.key is None else jax.random.wrap_key_data(numbers, impl=stored.key)


def _inside_a_jit() -> bool:
    return isinstance(jax.device_put(np.float32(0)), Tracer)


def _settings() -> dict[str, Any]:
    """JAX's settings, without those of its cache: programs do not depend on them, and we change one ourselves."""
    return {name: value for name, value in jax.config.values.items() if "cache" not in name}


def _key(made_of: tuple, like: tuple, static: dict[str, Any]) -> str:
    tree, types = like
    shapes = [(kind.shape, str(kind.dtype), kind.weak_type) for kind in types]
    settings = {name: str(value) for name, value in sorted(_settings().items())}
    parts = environment(), identity(*made_of, static), str(tree), repr(shapes), repr(settings)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@lru_cache
def _folder() -> Path | None:
    """Where programs are kept, if they are. Nobody else may write there: what is loaded is also run."""
    name = os.environ.get(PROGRAMS)
    if not name or jax.default_backend() != "cpu" or jax.device_count() > 1:
        return None
    try:
        Path(name).mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(name)
    except OSError:
        return None
    mine = not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o022)
    return Path(name) if mine else None


@contextmanager
def _without_jax_cache() -> Iterator[None]:
    """A program that JAX took out of its own cache could not be kept: it lacks a part when it is loaded again."""
    before = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX looks only once whether there is one
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def _load(path: Path) -> Callable | None:
    parts = _read(path)
    try:
        return None if parts is None else serialize_executable.deserialize_and_load(*parts)
    except Exception:
        return None  # whatever is wrong with it, it can be compiled again


def _read(path: Path) -> Any:
    """What was written, or None where nothing was, or something else."""
    try:
        content = path.read_bytes()
        if hashlib.sha256(content[CHECKSUM:]).digest() != content[:CHECKSUM]:
            return None
        with suppress(OSError):
            os.utime(path)
        return pickle.loads(content[CHECKSUM:])
    except Exception:
        return None


def _write(path: Path, make: Callable[[], Any]) -> None:
    """Write what `make()` returns, and keep to the bound: what was not used for the longest time goes."""
    try:
        content = pickle.dumps(make())
        write_atomically(path, hashlib.sha256(content).digest() + content)
        sizes = {file.name: file.stat() for file in os.scandir(path.parent)}
        total = sum(found.st_size for found in sizes.values())
        for name in sorted(sizes, key=lambda name: sizes[name].st_mtime):
            if total <= LARGEST:
                break
            (path.parent / name).unlink(missing_ok=True)
            total -= sizes[name].st_size
    except Exception:
        return  # it is only about time: a full disk there, for instance, is none of the user's troubles
