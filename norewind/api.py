"""The public names of norewind, in one place."""

from norewind import cells, losses, tasks, testing
from norewind.checks import ModelError
from norewind.combinators import average, parallel, window
from norewind.diagnosis import diagnose
from norewind.estimator import Estimate, Estimator, Model
from norewind.estimators import (
    bpdc,
    bptt,
    diffusion,
    dni,
    lstm97,
    nobacktrack,
    readout_only,
    rtrl,
    sliding_bptt,
    uoro,
)
from norewind.learner import Learner, NonFiniteError, Run, online
from norewind.noise import random_signs
from norewind.schedules import inverse_sqrt
from norewind.structure import declare

__all__ = [
    "Estimate",
    "Estimator",
    "Learner",
    "Model",
    "ModelError",
    "NonFiniteError",
    "Run",
    "average",
    "bpdc",
    "bptt",
    "cells",
    "declare",
    "diagnose",
    "diffusion",
    "dni",
    "inverse_sqrt",
    "losses",
    "lstm97",
    "nobacktrack",
    "online",
    "parallel",
    "random_signs",
    "readout_only",
    "rtrl",
    "sliding_bptt",
    "tasks",
    "testing",
    "uoro",
    "window",
]
