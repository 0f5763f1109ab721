"""norewind: train recurrent models on endless streams, online, without ever rewinding time."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

__version__ = "0.1.0"

# Where each name lives. They are imported when they are first used, so that the command
# line can print its help without waiting for JAX.
_HOMES = {
    "Estimate": "estimator",
    "Estimator": "estimator",
    "Learner": "learner",
    "Model": "estimator",
    "ModelError": "checks",
    "NonFiniteError": "learner",
    "Run": "learner",
    "average": "combinators",
    "bpdc": "estimators",
    "bptt": "estimators",
    "cells": None,
    "declare": "structure",
    "diagnose": "diagnosis",
    "diffusion": "estimators",
    "dni": "estimators",
    "inverse_sqrt": "schedules",
    "losses": None,
    "lstm97": "estimators",
    "nobacktrack": "estimators",
    "online": "learner",
    "parallel": "combinators",
    "random_signs": "noise",
    "readout_only": "estimators",
    "rtrl": "estimators",
    "sliding_bptt": "estimators",
    "tasks": None,
    "testing": None,
    "uoro": "estimators",
    "window": "combinators",
}

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


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    value = import_module(f"norewind.{name}") if home is None else getattr(import_module(f"norewind.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
