"""Gradient estimators, one file per method."""

from norewind.estimators.bptt import bptt
from norewind.estimators.nobacktrack import nobacktrack
from norewind.estimators.rtrl import rtrl
from norewind.estimators.uoro import uoro

__all__ = ["bptt", "nobacktrack", "rtrl", "uoro"]
