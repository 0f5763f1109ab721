"""norewind: train recurrent models on endless streams, online, without ever rewinding time."""

from importlib import import_module

TYPE_CHECKING = False  # importing `typing` takes long enough for a Ctrl-C, and nothing here could catch it
if TYPE_CHECKING:
    from norewind.api import *  # noqa: F403

__version__ = "0.3.0"


def __getattr__(name: str):
    """Import a public name on first use, so that the help of the command line need not wait for JAX."""
    submodule = f"{__name__}.{name}"
    try:
        return import_module(submodule)
    except ModuleNotFoundError as error:
        if error.name != submodule:
            raise
    api = import_module("norewind.api")
    if name == "__all__" or name in api.__all__:
        return globals().setdefault(name, getattr(api, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module("norewind.api").__all__})
