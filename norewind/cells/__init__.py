"""Cells: recurrent models as (init, initial_state, transition)."""

from norewind.cells.adapters import from_equinox, from_flax, from_haiku
from norewind.cells.cell import Cell, stack
from norewind.cells.diagonal_gru import diagonal_gru
from norewind.cells.elstm import elstm
from norewind.cells.gru import gru
from norewind.cells.liquid import liquid
from norewind.cells.lru import lru
from norewind.cells.lstm import lstm
from norewind.cells.mingru import mingru
from norewind.cells.readout import with_readout
from norewind.cells.reservoir import feedback_reservoir, reservoir
from norewind.cells.rnn import elman, rnn
from norewind.cells.rtu import rtu
from norewind.cells.torch_modules import from_torch, to_torch

__all__ = [
    "Cell",
    "diagonal_gru",
    "elman",
    "elstm",
    "feedback_reservoir",
    "from_equinox",
    "from_flax",
    "from_haiku",
    "from_torch",
    "gru",
    "liquid",
    "lru",
    "lstm",
    "mingru",
    "reservoir",
    "rnn",
    "rtu",
    "stack",
    "to_torch",
    "with_readout",
]
