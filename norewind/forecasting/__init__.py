"""Applying models: predictions and forecasts of trained runs, and the forecasting models for Python and River."""

from norewind.forecasting.models import AnomalyDetector, Classifier, Forecaster, load

__all__ = ["AnomalyDetector", "Classifier", "Forecaster", "load"]
