"""Training: from settings through one loop to a run folder."""

from norewind._lazy import exported

__getattr__, __all__ = exported(
    __name__,
    {
        "fit": ("Fitted",),
        "settings": ("Settings", "SettingsError"),
        "training_loop": ("Hooks", "Intervals", "Training"),
    },
)
