"""What a function is made of, as a checksum: two functions with the same one compile to the same program.

A function is its code, and the values that it holds on to: closures, defaults, the
arguments of a `partial`. What stands at the top of a module of this package, or of one
of those below, counts by its name: `environment` has the text of ours and the versions of
theirs. Anything else, such as a function of the user's own, has no identity.
"""

import hashlib
import os
import sys
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

import jax
import numpy as np

from norewind.machine import processor
from norewind.trees import is_key

PACKAGES = ("jax", "jaxlib", "numpy", "optax")
TRUSTED = {"norewind", "builtins", "functools", "math", "operator", *PACKAGES}
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))


class NoIdentity(Exception):
    """There is something whose identity cannot be known."""


def identity(*things: Any) -> str:
    """A checksum of functions and values; raises `NoIdentity`."""
    digest = hashlib.sha256()
    _add(things, digest, {})
    return digest.hexdigest()


@lru_cache
def environment() -> str:
    """A checksum of what programs depend on beside their functions: our text, versions, flags and the processor."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in sorted(folder.rglob("*.py")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(folder)} {len(text)} ".encode() + text)
    flags = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(("XLA_", "TF_")))
    about = [sys.version, *map(version, PACKAGES), processor(), *flags]
    digest.update(repr(about).encode())
    return digest.hexdigest()


def _add(thing: Any, digest: Any, seen: dict[int, tuple[int, Any]]) -> None:
    """Add a description of a thing. What was described before is named by its number."""
    kind = type(thing)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind in PLAIN:
        digest.update(f"{name} {thing!r};".encode())
        return
    if id(thing) in seen:
        digest.update(f"again {seen[id(thing)][0]};".encode())
        return
    seen[id(thing)] = len(seen), thing  # what is kept alive keeps its id to itself
    if (known := _global_name(thing)) is not None:
        digest.update(f"global {known};".encode())
        return
    if kind.__module__.partition(".")[0] not in TRUSTED or "<locals>" in name:
        raise NoIdentity(f"{thing!r} is a {name}")
    digest.update(f"{name} ".encode())
    for part in _parts(thing):
        _add(part, digest, seen)
    digest.update(b";")


def _parts(thing: Any) -> Iterable[Any]:
    """What a thing consists of, beside its type."""
    if isinstance(thing, FunctionType) and thing.__module__.partition(".")[0] in TRUSTED:
        held = [cell.cell_contents for cell in thing.__closure__ or ()]
        return (
            thing.__module__,
            thing.__qualname__,
            thing.__code__,
            held,
            thing.__defaults__,
            thing.__kwdefaults__,
            vars(thing),
        )
    if isinstance(thing, CodeType):
        return thing.co_firstlineno, thing.co_code, thing.co_names, thing.co_freevars, thing.co_consts
    if isinstance(thing, partial):
        return thing.func, thing.args, thing.keywords
    if isinstance(thing, MethodType):
        return thing.__func__, thing.__self__
    if isinstance(thing, np.ndarray | np.generic | jax.Array):
        array = np.asarray(jax.random.key_data(cast("Any", thing)) if is_key(thing) else thing)
        if array.dtype.hasobject:
            raise NoIdentity(f"{thing!r} holds objects, of which it has only the places in memory")
        return str(array.dtype), array.shape, getattr(thing, "weak_type", False), array.tobytes()
    if isinstance(thing, dict):
        return len(thing), *(part for pair in thing.items() for part in pair)
    if isinstance(thing, tuple | list):
        return len(thing), *thing
    if isinstance(thing, frozenset):
        return sorted(map(repr, thing))
    if is_dataclass(thing):
        return [getattr(thing, field.name) for field in fields(thing)]
    raise NoIdentity(f"{thing!r} is a {type(thing)}")


def _global_name(thing: Any) -> str | None:
    """The name under which a trusted module has this very function or class."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not callable(thing) or not isinstance(module, str) or not isinstance(name, str):
        return None
    if module.partition(".")[0] not in TRUSTED:
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}.{name}" if found is thing else None
