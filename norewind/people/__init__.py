"""For people who have data: three estimators over the streams, learners and run folders of the command line."""

from norewind.people.models import AnomalyDetector, Classifier, Forecaster, load

__all__ = ["AnomalyDetector", "Classifier", "Forecaster", "load"]
