"""Cells that choose by the input what they keep: a selective state space model, and linear attention (DeltaNet)."""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from norewind.cells.cell import Cell, init_readout, input_table, read_input, read_out, uniform
from norewind.core.structure import declare


def selective_ssm(
    inputs: int,
    hidden: int,
    outputs: int,
    *,
    symbols: bool = True,
    times: tuple[float, float] = (1.0, 1000.0),
    dtype=float,
) -> Cell:
    """A selective state space model, as in Mamba: a linear recurrence whose step size depends on the input.

        Δ = log(1 + exp(E_Δ x + b_Δ))         a = exp(−Δ ⊙ e^ν)
        h' = a ⊙ h + (1 − a) ⊙ e^−ν ⊙ E_B x   o = W_o [(E_C x + b_C) ⊙ h'] + b_o

    A large Δ_i replaces the state of unit i by the input, and a small one keeps it. `params["input"]`
    holds [E_Δ, E_B] side by side, and `params["bias"]` is b_Δ. E_C and b_C do not reach the state.

    In Mamba, the units of a channel share Δ, and the channels share B and C. Here each unit has its own,
    so the recurrence is elementwise: a trace per weight is exact.

    Reference: Gu & Dao, Mamba: Linear-Time Sequence Modeling with Selective State Spaces (2023), equation 4.

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the number of units.
        outputs: the number of outputs.
        symbols: scale the initial E_B and E_C for integer symbols; False for float vectors.
        times: the shortest and the longest time constant in steps for x = 0, between which they start log-spaced.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    Raises:
        ValueError: `times` are not above 0 and in order.

    >>> import jax, jax.numpy as jnp
    >>> cell = selective_ssm(inputs=3, hidden=4, outputs=2)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state.shape, output.shape
    ((4,), (2,))
    """
    if not 0 < times[0] <= times[1]:
        raise ValueError(f"selective_ssm: times must be two numbers of steps above 0, the shorter first, not {times}.")

    def init(key):
        keys = jax.random.split(key, 4)
        # Δ is drawn as for vectors in either case: with N(0, 1), symbols would change the times by factors.
        step = uniform(keys[0], (inputs, hidden), inputs, dtype)
        return {
            "nu": jnp.zeros(hidden, dtype),
            "input": jnp.concatenate([step, input_table(keys[1], inputs, hidden, symbols, dtype)], axis=1),
            "bias": jnp.log(jnp.expm1(1 / jnp.geomspace(*times, hidden))).astype(dtype),
            "output_gate": {
                "input": input_table(keys[2], inputs, hidden, symbols, dtype),
                "bias": jnp.ones(hidden, dtype),
            },
            "readout": init_readout(keys[3], hidden, outputs, dtype),
        }

    def transition(params, state, x):
        step, drive = jnp.split(read_input(params["input"], x), 2)
        rate = jnp.exp(params["nu"])
        exponent = -jax.nn.softplus(step + params["bias"]) * rate
        state = jnp.exp(exponent) * state - jnp.expm1(exponent) / rate * drive
        gate = read_input(params["output_gate"]["input"], x) + params["output_gate"]["bias"]
        return state, read_out(params["readout"], gate * state)

    row = np.arange(hidden)

    def units(params):
        return {"nu": row, "input": np.tile(row, 2), "bias": row, "output_gate": None, "readout": None}

    declared = declare(transition, units=units, memory=lambda state: state, reads="own", sizes=(inputs, outputs))
    return Cell(init, lambda: jnp.zeros(hidden, dtype), declared, linear_readout=True)


def deltanet(
    inputs: int,
    hidden: int,
    outputs: int,
    *,
    symbols: bool = True,
    keys: int | None = None,
    rule: Literal["delta", "gated", "additive"] = "delta",
    dtype=float,
) -> Cell:
    """Linear attention with one head. Its state is a matrix S that maps keys to values.

        q, k = unit vectors along silu(W_q x), silu(W_k x)              v = W_v x
        S' = S + β (v − S k) kᵀ                                         o = W_o S' q + b_o

    with β = σ(w_β x + b_β): this is DeltaNet, which replaces the value stored under k. With
    `rule="gated"` (gated DeltaNet), S is first multiplied by α = σ(w_α x + b_α). With
    `rule="additive"` (gated linear attention), each column of S is multiplied by its own α, and the value is
    added, S' = S diag(α) + v kᵀ.

    The rows of S do not read one another: traces are exact, but the weights of keys and gates, which all rows
    share, need one for every entry of S.

    Reference: Schlag, Irie & Schmidhuber, Linear Transformers Are Secretly Fast Weight Programmers (2021); Yang et al.,
    Parallelizing Linear Transformers with the Delta Rule over Sequence Length (2024), Gated Delta Networks (2025) and
    Gated Linear Attention Transformers with Hardware-Efficient Training (2024).

    Args:
        inputs: the number of symbols, or of entries in x.
        hidden: the size of a value.
        outputs: the number of outputs.
        symbols: scale the initial W for integer symbols; False for float vectors.
        keys: the size of a key; by default `hidden`.
        rule: the way in which S changes: `"delta"`, `"gated"` or `"additive"`.
        dtype: the dtype of the parameters and the state.

    Returns:
        The cell.

    Raises:
        ValueError: there is no such rule.

    >>> import jax, jax.numpy as jnp
    >>> cell = deltanet(inputs=3, hidden=4, outputs=2, keys=5)
    >>> state, output = cell.transition(cell.init(jax.random.key(0)), cell.initial_state(), jnp.array(1))
    >>> state.shape, output.shape
    ((4, 5), (2,))
    """
    if rule not in ("delta", "gated", "additive"):
        raise ValueError(f'deltanet: rule must be "delta", "gated" or "additive", not {rule!r}.')
    width = hidden if keys is None else keys
    # The widths of the gates. A gate of one column serves the whole matrix.
    gates = {"delta": {"rate": 1}, "gated": {"rate": 1, "keep": 1}, "additive": {"keep": width}}[rule]

    def init(key):
        table = partial(input_table, inputs=inputs, symbols=symbols, dtype=dtype)
        drawn = jax.random.split(key, 4 + len(gates))
        return {
            "query": table(drawn[0], width=width),
            "key": table(drawn[1], width=width),
            "value": table(drawn[2], width=hidden),
            "readout": init_readout(drawn[3], hidden, outputs, dtype),
        } | {
            name: {
                "input": uniform(own, (inputs, size), inputs, dtype),
                # A new state keeps nearly everything.
                "bias": jnp.full(size, 4.0 if name == "keep" else 0.0, dtype),
            }
            for (name, size), own in zip(gates.items(), drawn[4:], strict=True)
        }

    def transition(params, state, x):
        def gate(name):
            return jax.nn.sigmoid(read_input(params[name]["input"], x) + params[name]["bias"])

        key, query = (_unit_vector(jax.nn.silu(read_input(params[name], x))) for name in ("key", "query"))
        new = read_input(params["value"], x)
        kept = gate("keep") * state if "keep" in gates else state
        change = new if rule == "additive" else gate("rate") * (new - kept @ key)
        state = kept + jnp.outer(change, key)
        return state, read_out(params["readout"], state @ query)

    def initial_state():
        return jnp.zeros((hidden, width), dtype)

    row = np.arange(hidden)

    def units(params):
        # All rows of S share the key and the gates.
        shared = {name: {"input": row[:, None, None], "bias": row[:, None]} for name in gates}
        return {"query": None, "key": row[:, None, None], "value": row, "readout": None} | shared

    declared = declare(
        transition, units=units, entries=lambda state: row[:, None], reads="own", sizes=(inputs, outputs)
    )
    return Cell(init, initial_state, declared, linear_readout=True)


def _unit_vector(vector: jax.Array) -> jax.Array:
    return vector * jax.lax.rsqrt(jnp.sum(vector**2) + 1e-6)
