"""Packages whose names are imported on first use, so that the help of the command line need not wait for JAX."""

from importlib import import_module


def lazy_names(package: str, api: str):
    """Make the `__getattr__` and `__dir__` of a package that offers its own modules and the names of an API module.

    Args:
        package: the package.
        api: the module that imports those names, and lists them in its `__all__`.

    Returns:
        The two functions, in this order.
    """

    def get(name: str):
        module = f"{package}.{name}"
        try:
            return import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
        offered = import_module(api)
        if name == "__all__" or name in offered.__all__:
            return vars(import_module(package)).setdefault(name, getattr(offered, name))
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted({*vars(import_module(package)), *import_module(api).__all__})
