"""Methods side by side: trained on the same stream from the same parameters."""

from norewind.comparison.report import Comparison, Result
from norewind.comparison.run import compare

__all__ = ["Comparison", "Result", "compare"]
