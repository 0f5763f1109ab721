"""Gradient estimators, one file per method."""

from norewind.estimators.anchored import anchored
from norewind.estimators.bpdc import bpdc
from norewind.estimators.bptt import bptt
from norewind.estimators.diffusion import diffusion
from norewind.estimators.dni import dni
from norewind.estimators.kf_rtrl import kf_rtrl
from norewind.estimators.kronecker import kronecker
from norewind.estimators.lstm97 import lstm97
from norewind.estimators.nobacktrack import nobacktrack
from norewind.estimators.readout_only import readout_only
from norewind.estimators.rflo import rflo
from norewind.estimators.rtrl import rtrl
from norewind.estimators.sliding_bptt import sliding_bptt
from norewind.estimators.snap1 import snap1
from norewind.estimators.uoro import uoro

__all__ = [
    "anchored",
    "bpdc",
    "bptt",
    "diffusion",
    "dni",
    "kf_rtrl",
    "kronecker",
    "lstm97",
    "nobacktrack",
    "readout_only",
    "rflo",
    "rtrl",
    "sliding_bptt",
    "snap1",
    "uoro",
]
