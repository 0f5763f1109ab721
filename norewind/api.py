"""The public names of norewind, in one place."""

from norewind import cells, checkpoint, estimators, losses, mesh, names, streams, tasks, testing
from norewind.checkpoint import CheckpointError
from norewind.checks import ModelError
from norewind.combinators import average, ensemble, parallel, window
from norewind.estimator import Estimate, Estimator, Model
from norewind.estimators import *  # noqa: F403
from norewind.fleets import Fleet, Keyed, fleet
from norewind.instruments.compare import Comparison, compare
from norewind.instruments.diagnose import diagnose
from norewind.learner import Online, online
from norewind.learners.ahead import Ahead
from norewind.learners.counts import counts
from norewind.learners.least_squares import LeastSquares
from norewind.learners.mix import mix
from norewind.learners.protocol import Learner
from norewind.learners.series import Series
from norewind.learners.text import TextLearner
from norewind.noise import random_signs
from norewind.optimizers import adam, inverse_sqrt
from norewind.packing import pack
from norewind.people import AnomalyDetector, Classifier, Forecaster, load
from norewind.run import NonFiniteError, Run
from norewind.runs.fit import Fitted, Hooks, Intervals, fit
from norewind.runs.metrics import Diverged
from norewind.runs.settings import Settings
from norewind.streams import StreamError
from norewind.structure import Layer, declare

__all__ = [
    "Ahead",
    "AnomalyDetector",
    "CheckpointError",
    "Classifier",
    "Comparison",
    "Diverged",
    "Estimate",
    "Estimator",
    "Fitted",
    "Fleet",
    "Forecaster",
    "Hooks",
    "Intervals",
    "Keyed",
    "Layer",
    "Learner",
    "LeastSquares",
    "Model",
    "ModelError",
    "NonFiniteError",
    "Online",
    "Run",
    "Series",
    "Settings",
    "StreamError",
    "TextLearner",
    "adam",
    "average",
    "cells",
    "checkpoint",
    "compare",
    "counts",
    "declare",
    "diagnose",
    "ensemble",
    "fit",
    "fleet",
    "inverse_sqrt",
    "load",
    "losses",
    "mesh",
    "mix",
    "names",
    "online",
    "pack",
    "parallel",
    "random_signs",
    "streams",
    "tasks",
    "testing",
    "window",
]
__all__ += estimators.__all__
