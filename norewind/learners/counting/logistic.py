"""Probabilities and log-odds as integers, by tables that are the same on every processor.

A compressed file can be decoded only with the very same tables. `exp` and `log` may differ in the last bit from one
processor to another, but no entry of a table is that close to being rounded the other way, which the tests check.
"""

import numpy as np

from norewind.engines.kernels import kernel

# The unit of probabilities.
ONE = 1 << 16
# The unit of log-odds, and that of mixer inputs, small enough for weighted sums to fit into 32 bits.
LOGIT, INPUT = 1 << 12, 1 << 8
# The largest log-odds.
MAX_LOGIT = 12 * LOGIT
_STEP_BITS = 5
_STEP = 1 << _STEP_BITS
_FINE_BITS = 6


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Convert log-odds to probabilities, as fractions."""
    return 1 / (1 + np.exp(-logits))


_MIDDLES = (np.arange(4096) + 0.5) / 4096
_STRETCHED = np.rint((np.log(_MIDDLES) - np.log(1 - _MIDDLES)) * INPUT).astype(np.int16)
_POINTS = (np.arange(2 * MAX_LOGIT // _STEP + 2) * _STEP - MAX_LOGIT) / LOGIT
_SQUASHED = np.rint(probabilities(_POINTS) * (ONE << _FINE_BITS)).astype(np.int32)


@kernel
def stretch(p):
    """Return the log-odds ln(p/(1 − p)) of a probability in 12 bits, in the unit of mixer inputs."""
    return _STRETCHED[p]


@kernel
def squash(logit):
    """Return the probability of log-odds within ± MAX_LOGIT, interpolated from a table. It is never 0 or ONE."""
    offset = logit + MAX_LOGIT
    low, share = offset >> _STEP_BITS, offset & (_STEP - 1)
    p = (_SQUASHED[low] * (_STEP - share) + _SQUASHED[low + 1] * share) >> (_STEP_BITS + _FINE_BITS)
    return min(max(p, 1), ONE - 1)


@kernel
def clip_logit(logit):
    """Clip log-odds to ± MAX_LOGIT."""
    return min(max(logit, -MAX_LOGIT), MAX_LOGIT)
