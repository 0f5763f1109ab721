"""Cells: recurrent models as (init, initial_state, transition)."""

from norewind.cells.adapters import from_equinox, from_flax, from_haiku
from norewind.cells.cell import Cell, stack
from norewind.cells.gru import gru
from norewind.cells.liquid import liquid
from norewind.cells.lstm import lstm
from norewind.cells.reservoir import feedback_reservoir, reservoir
from norewind.cells.rnn import elman, rnn

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
