"""The public names of norewind, in one place."""

from norewind import cells, checkpoint, losses, names, streams, tasks, testing
from norewind.checkpoint import CheckpointError
from norewind.checks import ModelError
from norewind.combinators import average, parallel, window
from norewind.estimator import Estimate, Estimator, Model
from norewind.estimators import (
    anchored,
    bpdc,
    bptt,
    diffusion,
    dni,
    kf_rtrl,
    kronecker,
    lstm97,
    nobacktrack,
    readout_only,
    rflo,
    rtrl,
    sliding_bptt,
    snap1,
    uoro,
)
from norewind.instruments.compare import Comparison, compare
from norewind.instruments.diagnose import diagnose
from norewind.learner import Learner, NonFiniteError, Run, online
from norewind.noise import random_signs
from norewind.optimizers import adam
from norewind.runs.fit import Fitted, Hooks, Intervals, fit
from norewind.runs.metrics import Diverged
from norewind.runs.settings import Settings
from norewind.schedules import inverse_sqrt
from norewind.streams import StreamError
from norewind.structure import Layer, declare

__all__ = [
    "CheckpointError",
    "Comparison",
    "Diverged",
    "Estimate",
    "Estimator",
    "Fitted",
    "Hooks",
    "Intervals",
    "Layer",
    "Learner",
    "Model",
    "ModelError",
    "NonFiniteError",
    "Run",
    "Settings",
    "StreamError",
    "adam",
    "anchored",
    "average",
    "bpdc",
    "bptt",
    "cells",
    "checkpoint",
    "compare",
    "declare",
    "diagnose",
    "diffusion",
    "dni",
    "fit",
    "inverse_sqrt",
    "kf_rtrl",
    "kronecker",
    "losses",
    "lstm97",
    "names",
    "nobacktrack",
    "online",
    "parallel",
    "random_signs",
    "readout_only",
    "rflo",
    "rtrl",
    "sliding_bptt",
    "snap1",
    "streams",
    "tasks",
    "testing",
    "uoro",
    "window",
]
