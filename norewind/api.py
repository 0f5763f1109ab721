"""The names that `import norewind` provides: those that most programs need, and the subpackages."""

from norewind import cells, core, errors, estimators, fleets, learners, streams, tasks, testing, training
from norewind.analysis.compare import compare
from norewind.analysis.diagnose import diagnose
from norewind.core import losses, mesh
from norewind.core.combinators import average, parallel, window
from norewind.core.optimizers import adam, inverse_sqrt
from norewind.core.structure import declare
from norewind.core.td import td
from norewind.estimators import bptt, rtrl, unbiased, uoro
from norewind.forecasting import AnomalyDetector, Classifier, Forecaster, load
from norewind.learners.online import online
from norewind.storage import checkpoint
from norewind.training import registry
from norewind.training.fit import fit

__all__ = [
    "AnomalyDetector", "Classifier", "Forecaster", "adam", "average", "bptt", "cells", "checkpoint", "compare",
    "core", "declare", "diagnose", "errors", "estimators", "fit", "fleets", "inverse_sqrt", "learners", "load",
    "losses", "mesh", "online", "parallel", "registry", "rtrl", "streams", "tasks", "td", "testing", "training",
    "unbiased", "uoro", "window",
]  # fmt: skip
