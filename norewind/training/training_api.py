"""The names that `norewind.training` offers."""

from norewind.training.fit import FitResult
from norewind.training.hooks import Hooks, Intervals
from norewind.training.settings import Settings, SettingsError
from norewind.training.training_loop import Training

__all__ = ["FitResult", "Hooks", "Intervals", "Settings", "SettingsError", "Training"]
