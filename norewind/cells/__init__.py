"""Cells: recurrent models as (init, initial_state, transition)."""

from norewind.cells.adapters import from_equinox, from_flax, from_haiku
from norewind.cells.cell import Cell
from norewind.cells.elman import elman
from norewind.cells.feedback_reservoir import feedback_reservoir
from norewind.cells.gru import gru
from norewind.cells.liquid import liquid
from norewind.cells.lstm import lstm
from norewind.cells.reservoir import reservoir
from norewind.cells.rnn import rnn
from norewind.cells.stack import stack

__all__ = [
    "Cell",
    "elman",
    "feedback_reservoir",
    "from_equinox",
    "from_flax",
    "from_haiku",
    "gru",
    "liquid",
    "lstm",
    "reservoir",
    "rnn",
    "stack",
]
