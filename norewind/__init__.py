"""norewind: train recurrent models on endless streams, online, without ever rewinding time."""

from norewind._lazy import lazy_names

TYPE_CHECKING = False  # importing `typing` takes long enough for a Ctrl-C, and nothing here could catch it
if TYPE_CHECKING:
    from norewind.api import *  # noqa: F403

__version__ = "0.3.0"
__getattr__, __dir__ = lazy_names(__name__, "norewind.api")
