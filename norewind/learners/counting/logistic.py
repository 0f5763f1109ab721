"""Probabilities and log-odds as integers, by tables that are the same on every processor.

The tables are computed with the four basic operations of IEEE 754 only. `exp` and `log` of a mathematical
library may differ in the last bit from one processor to another, and a compressed
file could then not be decoded there.
"""

import numpy as np

from norewind.engines.kernels import kernel

# The unit of probabilities.
ONE = 1 << 16
# The unit of log-odds, and that of mixer inputs, small enough for weighted sums to fit into 32 bits.
LOGIT, INPUT = 1 << 12, 1 << 8
# The largest log-odds.
LARGEST = 12 * LOGIT
_STEP_BITS = 5
_STEP = 1 << _STEP_BITS
_FINE_BITS = 6
_LN_2 = 0.6931471805599453


def _exponentials(x: np.ndarray) -> np.ndarray:
    """e^x: the Taylor series of e^(x/1024), squared ten times."""
    term, total = np.ones_like(x), np.ones_like(x)
    for k in range(1, 12):
        term = term * (x / 1024) / k
        total = total + term
    for _ in range(10):
        total = total * total
    return total


def _logarithms(x: np.ndarray) -> np.ndarray:
    """ln x: with x = m 2ᵏ, it is k ln 2 + 2 artanh((m − 1)/(m + 1)), which has a series."""
    mantissa, exponent = np.frexp(x)
    z = (mantissa - 1) / (mantissa + 1)
    term, total = z, z
    for k in range(3, 60, 2):
        term = term * z * z
        total = total + term / k
    return exponent * _LN_2 + 2 * total


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Convert log-odds to probabilities, as fractions."""
    return 1 / (1 + _exponentials(-logits))


_MIDDLES = (np.arange(4096) + 0.5) / 4096
_STRETCHED = np.rint((_logarithms(_MIDDLES) - _logarithms(1 - _MIDDLES)) * INPUT).astype(np.int16)
_POINTS = (np.arange(2 * LARGEST // _STEP + 2) * _STEP - LARGEST) / LOGIT
_SQUASHED = np.rint(probabilities(_POINTS) * (ONE << _FINE_BITS)).astype(np.int32)


@kernel
def stretch(p):
    """Return the log-odds ln(p/(1 − p)) of a probability in 12 bits, in the unit of mixer inputs."""
    return _STRETCHED[p]


@kernel
def squash(logit):
    """Return the probability of log-odds within ± LARGEST, interpolated from a table. It is never 0 or ONE."""
    place = logit + LARGEST
    low, share = place >> _STEP_BITS, place & (_STEP - 1)
    p = (_SQUASHED[low] * (_STEP - share) + _SQUASHED[low + 1] * share) >> (_STEP_BITS + _FINE_BITS)
    return min(max(p, 1), ONE - 1)


@kernel
def clipped(logit):
    """Clip log-odds to ± LARGEST."""
    return min(max(logit, -LARGEST), LARGEST)
