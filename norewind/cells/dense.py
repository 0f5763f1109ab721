"""Cells whose units read one another: two tanh networks, the GRU and the LSTM."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from norewind.cells.cell import Cell, affine_layer, dense_cell, init_readout, input_table, read_input, read_out, uniform
from norewind.core.combinators import WindowedTransition
from norewind.core.estimator import Transition
from norewind.core.structure import declare, structure_of
from norewind.core.trees import Tree


def rnn(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, dtype=float) -> Cell:
    """The tanh network of the paper's section "Background". Its state s is the pre-activation.

        s' = W_x x + W_s tanh(s) + b          o = W_o tanh(s') + b_o

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of hidden units.
        outputs: the number of outputs.
        symbols: scale the initial W_x for integer symbols; False for float vectors.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    >>> import jax, jax.numpy as jnp
    >>> cell = rnn(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state.shape, output.shape
    ((4,), (2,))
    """

    def transition(params, state, x, product=jnp.matmul):
        state = read_input(params["input"], x) + product(params["recurrent"], jnp.tanh(state)) + params["bias"]
        return state, read_out(params["readout"], jnp.tanh(state))

    return _tanh_network(transition, jnp.tanh, inputs, hidden, outputs, symbols, dtype)


def elman(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, dtype=float) -> Cell:
    """The usual tanh network. Its state h is the activation.

        h' = tanh(W_x x + W_h h + b)          o = W_o h' + b_o

    It computes the same outputs as `rnn`, but the noise of a stochastic estimator enters
    after the tanh instead of before it.

    Reference: Elman, Finding structure in time (1990).

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of hidden units.
        outputs: the number of outputs.
        symbols: scale the initial W_x for integer symbols; False for float vectors.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    >>> import jax, jax.numpy as jnp
    >>> cell = elman(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state.shape, output.shape
    ((4,), (2,))
    """

    def transition(params, state, x, product=jnp.matmul):
        state = jnp.tanh(read_input(params["input"], x) + product(params["recurrent"], state) + params["bias"])
        return state, read_out(params["readout"], state)

    return _tanh_network(transition, lambda state: state, inputs, hidden, outputs, symbols, dtype)


def _tanh_network(transition, activation, inputs: int, hidden: int, outputs: int, symbols: bool, dtype) -> Cell:
    def init(key):
        keys = jax.random.split(key, 4)
        return {
            "input": input_table(keys[0], inputs, hidden, symbols, dtype),
            "recurrent": uniform(keys[1], (hidden, hidden), hidden, dtype),
            "bias": uniform(keys[2], (hidden,), hidden, dtype),
            "readout": init_readout(keys[3], hidden, outputs, dtype),
        }

    return dense_cell(init, transition, activation, (inputs, outputs), hidden, dtype)


def gru(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, reset: str = "before", dtype=float) -> Cell:
    """The authors' GRU: the reset gate is applied before the matrix product.

        r = σ(E_r x + U_r h + b_r)            z = σ(E_z x + U_z h + b_z)
        c = tanh(E_c x + U_c (r ⊙ h) + b_c)
        h' = z ⊙ c + (1 − z) ⊙ h              o = W_o h' + b_o

    `params["input"]` holds [E_r, E_z, E_c] side by side, `params["gates"]` stacks U_r
    on U_z, and `params["bias"]` is [b_r, b_z, b_c].

    With `reset="after"` it is the GRU of PyTorch and cuDNN, where the reset gate is
    applied to the product, which has its own bias, and z keeps the old state:

        c = tanh(E_c x + b_c + r ⊙ (U_c h + b_u))            h' = (1 − z) ⊙ c + z ⊙ h

    `params["bias"]` is then [b_r, b_z, b_c, b_u]. In this form every weight feeds one unit,
    which some methods need.

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of hidden units.
        outputs: the number of outputs.
        symbols: scale the initial E for integer symbols; False for float vectors.
        reset: apply the reset gate `"before"` or `"after"` the matrix product.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    Raises:
        ValueError: `reset` is neither `"before"` nor `"after"`.

    >>> import jax, jax.numpy as jnp
    >>> cell = gru(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state.shape, output.shape
    ((4,), (2,))
    """
    if reset not in ("before", "after"):
        raise ValueError(f'gru: reset must be "before" or "after" (the matrix product), not {reset!r}.')
    after = reset == "after"
    blocks = 4 if after else 3

    def init(key):
        keys = jax.random.split(key, 5)
        return {
            "input": input_table(keys[0], inputs, 3 * hidden, symbols, dtype),
            "gates": uniform(keys[1], (2 * hidden, hidden), hidden, dtype),
            "candidate": uniform(keys[2], (hidden, hidden), hidden, dtype),
            "bias": uniform(keys[3], (blocks * hidden,), hidden, dtype),
            "readout": init_readout(keys[4], hidden, outputs, dtype),
        }

    def gates_of(params, state, x, product):
        drive = read_input(params["input"], x) + params["bias"][: 3 * hidden]
        gates = jax.nn.sigmoid(drive[: 2 * hidden] + product(params["gates"], state))
        return gates[:hidden], gates[hidden:], drive[2 * hidden :]

    def transition(params, state, x, product=jnp.matmul):
        reset_gate, update_gate, drive = gates_of(params, state, x, product)
        if after:
            inner = product(params["candidate"], state) + params["bias"][3 * hidden :]
            state = (1 - update_gate) * jnp.tanh(drive + reset_gate * inner) + update_gate * state
        else:
            candidate = jnp.tanh(drive + product(params["candidate"], reset_gate * state))
            state = update_gate * candidate + (1 - update_gate) * state
        return state, read_out(params["readout"], state)

    def fed_by(row):
        matrices = {"input": row[: 3 * hidden], "gates": row[: 2 * hidden, None], "candidate": row[-hidden:, None]}
        return {**matrices, "bias": row, "readout": None}

    def units(params):
        return fed_by(np.tile(np.arange(hidden), blocks))

    def recurrent_inputs(params, state, x):
        seen = state if after else gates_of(params, state, x, jnp.matmul)[0] * state
        return {"gates": state, "candidate": seen}

    declared = declare(
        transition,
        # A reset gate reaches all units through the product: only where that is cut does every weight feed one unit.
        units=units if after else None,
        mixing=lambda product: declare(partial(transition, product=product), units=units),
        layer=affine_layer(lambda params: fed_by(np.arange(blocks * hidden)), recurrent_inputs),
        sizes=(inputs, outputs),
    )
    return Cell(init, lambda: jnp.zeros(hidden, dtype), declared, linear_readout=True)


class GruWindow(WindowedTransition):
    """A window of steps of `gru` with `reset="before"`, as `window` makes it, but with a faster derivative.

    The derivative of a loop over steps adds an outer product to the gradient of every
    matrix at every step. Here the loop contains only what depends on the state: inputs
    are read before it and outputs are computed after it, for all steps at once. A recurrent
    matrix U with aₜ = U vₜ + E xₜ + b gets its gradient as one product, Σₜ ∂ℓ/∂aₜ vₜᵀ, and
    ∂ℓ/∂aₜ is the gradient of the loop's input E xₜ + b.
    """

    def __call__(self, params: Tree, state: Tree, x: Tree) -> tuple[Tree, Tree]:
        drives = jax.vmap(read_input, (None, 0))(params["input"], x) + params["bias"]
        matrices = {name: params[name] for name in ("gates", "candidate")}
        states: Any = _gru_states(self.transition, matrices, drives, state)
        return states[-1], jax.vmap(read_out, (None, 0))(params["readout"], states)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gru_states(transition: Transition, matrices: Tree, drives: jax.Array, state: jax.Array) -> jax.Array:
    """Return the state after each step, given E x + b of each step."""
    return _gru_loop(transition, matrices, drives, state)[0]


def _gru_loop(transition: Transition, matrices: Tree, drives: jax.Array, state: jax.Array) -> tuple[jax.Array, Any]:
    """Return the state after each step, and the vectors by which the matrices were multiplied."""
    mixing: Any = structure_of(transition).mixing

    def step(state, drive):
        factors = []

        def product(matrix, vector):
            factors.append(vector)
            return matrix @ vector

        params = {**matrices, "input": drive[None], "bias": jnp.zeros_like(drive), "readout": None}
        state, _ = mixing(product)(params, state, jnp.array(0))
        return state, (state, factors)

    return jax.lax.scan(step, state, drives)[1]


def _gru_forward(transition, matrices, drives, state):
    states, pullback, factors = jax.vjp(partial(_gru_loop, transition, matrices), drives, state, has_aux=True)
    return states, (pullback, factors)


def _gru_backward(_, residuals, states_grad):
    pullback, (gates_factors, candidate_factors) = residuals
    drives_grad, state_grad = pullback(states_grad)
    of_gates, of_candidate = jnp.split(drives_grad, [2 * state_grad.shape[-1]], axis=1)
    matrices_grad = {"gates": of_gates.T @ gates_factors, "candidate": of_candidate.T @ candidate_factors}
    return matrices_grad, drives_grad, state_grad


_gru_states.defvjp(_gru_forward, _gru_backward)


def lstm(inputs: int, hidden: int, outputs: int, *, symbols: bool = True, embedding: bool = True, dtype=float) -> Cell:
    """The authors' LSTM: one embedding for all gates, and −0.3 on the forget gate.

        e = E x                               a = W e + b + U h + d
        i, f, o, g = σ(a_i), σ(a_f − 0.3), σ(a_o), tanh(a_g)
        c' = f ⊙ c + i ⊙ g                    h' = o ⊙ tanh(c')             y = W_o h' + b_o

    The four blocks of a are in the order i, f, o, g.

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of hidden units.
        outputs: the number of outputs.
        symbols: scale the initial E for integer symbols; False for float vectors.
        embedding: feed the gates from an embedding. Otherwise the input feeds the gates directly, e = x, as in 1997:
            then every weight feeds one unit, which some methods need.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    >>> import jax, jax.numpy as jnp
    >>> cell = lstm(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state["h"].shape, state["c"].shape, output.shape
    ((4,), (4,), (2,))
    """

    def init(key):
        keys = jax.random.split(key, 6)
        if embedding:
            feed = {
                "embedding": input_table(keys[0], inputs, hidden, symbols, dtype),
                "input": uniform(keys[1], (4 * hidden, hidden), hidden, dtype),
            }
        else:
            feed = {"input": input_table(keys[0], inputs, 4 * hidden, symbols, dtype)}
        return feed | {
            "input_bias": uniform(keys[2], (4 * hidden,), hidden, dtype),
            "recurrent": uniform(keys[3], (4 * hidden, hidden), hidden, dtype),
            "recurrent_bias": uniform(keys[4], (4 * hidden,), hidden, dtype),
            "readout": init_readout(keys[5], hidden, outputs, dtype),
        }

    def initial_state():
        return {"h": jnp.zeros(hidden, dtype), "c": jnp.zeros(hidden, dtype)}

    def transition(params, state, x, product=jnp.matmul):
        fed = params["input"] @ read_input(params["embedding"], x) if embedding else read_input(params["input"], x)
        drive = fed + params["input_bias"]
        drive = drive + product(params["recurrent"], state["h"]) + params["recurrent_bias"]
        input_gate, forget_gate, output_gate, candidate = drive.reshape(4, hidden)
        c = jax.nn.sigmoid(forget_gate - 0.3) * state["c"] + jax.nn.sigmoid(input_gate) * jnp.tanh(candidate)
        h = jax.nn.sigmoid(output_gate) * jnp.tanh(c)
        return {"h": h, "c": c}, read_out(params["readout"], h)

    def fed_by(row):
        feed = {"embedding": None, "input": row[:, None]} if embedding else {"input": row}
        return feed | {"input_bias": row, "recurrent": row[:, None], "recurrent_bias": row, "readout": None}

    def others(params, state, x):
        return {"recurrent": state["h"], "input_bias": jnp.ones(())}

    layer = affine_layer(lambda params: fed_by(np.arange(4 * hidden)), others, "recurrent_bias")
    declared = declare(
        transition,
        units=lambda params: fed_by(np.tile(np.arange(hidden), 4)),
        memory=lambda state: state["c"],
        mixing=lambda product: partial(transition, product=product),
        layer=None if embedding else layer,
        sizes=(inputs, outputs),
    )
    return Cell(init, initial_state, declared, linear_readout=True)
