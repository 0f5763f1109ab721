"""Cells, tasks and optimizers by name, as the command line writes them."""

from collections.abc import Callable
from functools import partial

import optax

from norewind import cells
from norewind.optimizers import adam
from norewind.tasks import Text, anbn, distant_brackets

TASKS: dict[str, Callable[..., Text]] = {"anbn": anbn, "brackets": distant_brackets}

CELLS: dict[str, Callable[..., cells.Cell]] = {
    "elman": cells.elman,
    "feedback_reservoir": cells.feedback_reservoir,
    "gru": cells.gru,
    "liquid": cells.liquid,
    "lstm": cells.lstm,
    "plain_lstm": partial(cells.lstm, embedding=False),
    "reservoir": cells.reservoir,
    "rnn": cells.rnn,
}
"""`plain_lstm` is the LSTM without embedding, where every weight feeds one unit."""

OPTIMIZERS = {"adam": adam, "adagrad": optax.adagrad, "rmsprop": optax.rmsprop, "sgd": optax.sgd}
