"""norewind: train recurrent models on endless streams, online, without ever rewinding time."""

from norewind._lazy import lazy_names

TYPE_CHECKING = False  # `typing` is not imported, since nothing could catch a Ctrl-C in the meantime
if TYPE_CHECKING:
    from norewind.api import *  # noqa: F403

__version__ = "0.3.0"
__getattr__, __dir__ = lazy_names(__name__, "norewind.api")
