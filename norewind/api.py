"""The public names of norewind, in one place."""

from norewind import cells, losses, streams, tasks, testing
from norewind.checkpoint import CheckpointError
from norewind.checks import ModelError
from norewind.combinators import average, parallel, window
from norewind.diagnosis import diagnose
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
from norewind.learner import Learner, NonFiniteError, Run, online
from norewind.noise import random_signs
from norewind.optimizers import adam
from norewind.schedules import inverse_sqrt
from norewind.streams import StreamError
from norewind.structure import declare
from norewind.training.fit import Fitted, fit
from norewind.training.watch import Diverged

__all__ = [
    "CheckpointError",
    "Diverged",
    "Estimate",
    "Estimator",
    "Fitted",
    "Learner",
    "Model",
    "ModelError",
    "NonFiniteError",
    "Run",
    "StreamError",
    "adam",
    "anchored",
    "average",
    "bpdc",
    "bptt",
    "cells",
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
