"""For people who have data: three estimators over the streams, learners and run folders of the command line."""

from norewind.people.classifier import Classifier
from norewind.people.loading import load
from norewind.people.models import AnomalyDetector, Forecaster

__all__ = ["AnomalyDetector", "Classifier", "Forecaster", "load"]
