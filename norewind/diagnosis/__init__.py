"""The instrument to judge estimators by: bias, variance and cosine to the exact gradient."""

from norewind.diagnosis.findings import Diagnosis, Finding
from norewind.diagnosis.measure import diagnose

__all__ = ["Diagnosis", "Finding", "diagnose"]
