"""Lazy exports: the names of a package, without importing their modules before they are used."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def exported(package: str, modules: dict[str, tuple[str, ...]]) -> tuple[Callable[[str], Any], list[str]]:
    """Make the `__getattr__` and `__all__` of a package whose modules are imported on first use.

    Args:
        package: the name of the package.
        modules: the public names of each of its modules.

    Returns:
        The two values, in this order.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return find, sorted(homes)
