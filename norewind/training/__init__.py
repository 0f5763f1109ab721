"""Training: from settings through one loop to a run folder."""

from norewind._lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from norewind.training.training_api import *  # noqa: F403

__getattr__, __dir__ = lazy_names(__name__, "norewind.training.training_api")
