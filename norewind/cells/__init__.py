"""Cells: recurrent models as (init, initial_state, transition)."""

from norewind.cells.adapters import from_equinox, from_flax, from_haiku
from norewind.cells.cell import Cell, with_readout
from norewind.cells.dense import elman, gru, lstm, rnn
from norewind.cells.elementwise import diagonal_gru, elstm, lru, mingru, rtu
from norewind.cells.layers import sparse, stack
from norewind.cells.reservoir import feedback_reservoir, liquid, reservoir
from norewind.cells.selective import deltanet, selective_ssm
from norewind.cells.spiking import alif
from norewind.cells.torch_modules import from_torch, to_torch
from norewind.cells.xlstm import slstm

__all__ = [
    "Cell", "alif", "deltanet", "diagonal_gru", "elman", "elstm", "feedback_reservoir", "from_equinox", "from_flax",
    "from_haiku", "from_torch", "gru", "liquid", "lru", "lstm", "mingru", "reservoir", "rnn", "rtu", "selective_ssm",
    "slstm", "sparse", "stack", "to_torch", "with_readout",
]  # fmt: skip
