"""braintrace's UORO on its own GRU and LSTM cells, with one update per character, in one compiled loop.

`vjp_method="single-step"` is its fastest mode with an update at every character (the
other mode needs windows of at least two). Its GRU leaves the reset gate's weights out of
the influence, so it does less work than Algorithm 1.
"""

import warnings

import brainstate
import braintools
import braintrace
import jax
import jax.numpy as jnp

from benchmarks.ours import SYMBOLS, text
from benchmarks.timing import Case

CELLS = {"gru": braintrace.nn.GRUCell, "lstm": braintrace.nn.LSTMCell}


class Network(brainstate.nn.Module):
    """A cell and a linear readout."""

    def __init__(self, cell: str, hidden: int):
        super().__init__()
        self.cell = CELLS[cell](SYMBOLS, hidden)
        self.readout = brainstate.nn.Linear(hidden, SYMBOLS)

    def update(self, x):
        return self.readout(self.cell(x))


def learning(name: str, length: int, cell: str = "gru", hidden: int = 64) -> Case:
    """The case of learning from characters.

    Args:
        name: the name of the case.
        length: the number of characters.
        cell: the cell, `"gru"` or `"lstm"`.
        hidden: the number of hidden units.
    """
    network = Network(cell, hidden)
    brainstate.nn.init_all_states(network)
    learner = braintrace.UORO(network, vjp_method="single-step")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about every weight that it leaves out
        learner.compile_graph(jnp.zeros(SYMBOLS))
    learner.init_etrace_state()
    weights = network.states(brainstate.ParamState)
    optimizer = braintools.optim.Adam(lr=1e-3)
    optimizer.register_trainable_weights(weights)

    def step(x, target):
        gradient = brainstate.transform.grad(
            lambda: -jax.nn.log_softmax(learner(x))[target], weights, return_value=True
        )
        grads, loss = gradient()
        optimizer.update(grads)
        return loss

    scan = brainstate.transform.jit(lambda xs, targets: brainstate.transform.for_loop(step, xs, targets))
    inputs, targets = text(length)
    vectors = jax.nn.one_hot(inputs, SYMBOLS)
    return Case(name, lambda: jax.block_until_ready(scan(vectors, targets)), length)
