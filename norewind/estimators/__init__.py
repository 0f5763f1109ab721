"""Gradient estimators: one file per method, or per family of methods that carry the same thing."""

from norewind.estimators.bpdc import bpdc
from norewind.estimators.bptt import bptt, sliding_bptt
from norewind.estimators.diffusion import diffusion
from norewind.estimators.dni import dni
from norewind.estimators.eprop import eprop
from norewind.estimators.kronecker import kf_rtrl, kronecker
from norewind.estimators.nobacktrack import nobacktrack
from norewind.estimators.perturbation import evolution, forward_gradient
from norewind.estimators.readout_only import readout_only
from norewind.estimators.rtrl import rtrl
from norewind.estimators.shrunk import shrunk
from norewind.estimators.sketched import sketched
from norewind.estimators.snapn import snapn
from norewind.estimators.traces import lstm97, rflo, snap1
from norewind.estimators.uoro import unbiased, uoro

__all__ = [
    "bpdc", "bptt", "diffusion", "dni", "eprop", "evolution", "forward_gradient", "kf_rtrl", "kronecker", "lstm97",
    "nobacktrack", "readout_only", "rflo", "rtrl", "shrunk", "sketched", "sliding_bptt", "snap1", "snapn", "unbiased",
    "uoro",
]  # fmt: skip
