"""A readout with a hidden layer on any cell: its formula, its exact gradient, and what it leaves alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from norewind import cells, declare, losses, lstm97, rtrl
from norewind.structure import structure_of
from norewind.testing import Example, check_exact, check_structure

SMALL = {"hidden": 3}


def example(cell, name="", length=4, shift=0.3):
    symbols = np.random.default_rng(2).integers(0, 3, length + 1).astype(np.int32)
    params = jax.jit(cell.init)(jax.random.key(3))
    # No parameter at a special value: a norm starts as none at all.
    params = jax.tree.map(lambda leaf: leaf + 0.01 * jnp.arange(leaf.size).reshape(leaf.shape), params)
    state = jax.tree.map(lambda leaf: leaf + shift, cell.initial_state())
    return Example(name, params, state, cell.transition, losses.cross_entropy, symbols[:-1], symbols[1:])


def stacked(*sizes, **options):
    """Two layers, the lower one with a readout of its own."""
    lower = cells.with_readout(cells.lru(3, 1, 2), 3, 2, **SMALL)
    return cells.stack(lower, cells.diagonal_gru(2, 1, 3, symbols=False))


def in_equinox(*sizes):
    import equinox as eqx

    return cells.from_equinox(lambda key: eqx.nn.GRUCell(3, 2, key=key), 3, 3)


CELLS = {
    "lstm": cells.lstm,
    "lru": cells.lru,
    "elstm": cells.elstm,
    "stack": stacked,
    "equinox": in_equinox,
    "feedback_reservoir": cells.feedback_reservoir,
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["lstm", "lru", "stack", "equinox"])
def test_rtrl_is_exact(name):
    cell = cells.with_readout(CELLS[name](3, 2, 3), 3, 3, prenorm=True, **SMALL)
    check_exact(rtrl, models=[example(cell, name)])


def by_hand(readout, h, x, prenorm, skip, norm):
    def normed(part, values):
        values = (values - values.mean()) / np.sqrt(values.var() + 1e-5)
        return part["scale"] * values + part["shift"]

    if prenorm:
        h = normed(readout["prenorm"], h)
    a = readout["hidden"]["weight"] @ h + readout["hidden"]["bias"]
    if skip:
        a = a + readout["skip"][x]
    if norm:
        a = normed(readout["norm"], a)
    return readout["output"]["weight"] @ np.maximum(a, 0) + readout["output"]["bias"]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "options",
    [
        {"skip": True, "norm": True, "prenorm": True},
        {"skip": True, "norm": True, "prenorm": False},
        {"skip": False, "norm": False, "prenorm": False},
    ],
    ids=lambda options: "+".join(name for name, on in options.items() if on) or "plain",
)
def test_formula_on_what_the_linear_readout_reads(options):
    cell = cells.rnn(3, 4, 3)
    model = example(cells.with_readout(cell, 3, 2, hidden=5, **options))
    params = jax.tree.map(np.asarray, model.params)
    assert {*params["readout"]} == {"hidden", "output"} | {name for name, on in options.items() if on}
    assert "readout" not in params["cell"]
    x = jnp.array(2)
    state, output = jax.jit(model.transition)(model.params, model.state, x)
    # The cell alone, with any readout: the state is the same.
    any_readout = {"readout": {"weight": jnp.ones((3, 4)), "bias": jnp.ones(3)}}
    alone, _ = jax.jit(cell.transition)(model.params["cell"] | any_readout, model.state, x)
    np.testing.assert_array_equal(state, alone)
    np.testing.assert_allclose(output, by_hand(params["readout"], np.tanh(state), 2, **options), rtol=1e-12)


def test_a_stack_and_a_readout_of_another_kind_keep_their_own():
    """Of a stack only the last readout is replaced, and only a linear one: a second hidden layer comes on top."""
    both = cells.stack(cells.rnn(3, 4, 5), cells.gru(5, 6, 3, symbols=False))
    params = jax.eval_shape(cells.with_readout(both, 3, 2).init, jax.random.key(0))
    assert params["cell"][0]["readout"]["weight"].shape == (5, 4)
    assert "readout" not in params["cell"][1]
    assert params["readout"]["hidden"]["weight"].shape == (64, 6)
    twice = cells.with_readout(cells.with_readout(cells.rnn(3, 4, 5), 3, 7), 3, 2)
    params = jax.eval_shape(twice.init, jax.random.key(0))
    assert params["cell"]["readout"]["output"]["weight"].shape == (7, 64)
    assert params["readout"]["hidden"]["weight"].shape == (64, 7)


def test_vectors_and_dtypes():
    cell = cells.with_readout(cells.lru(3, 4, 3, symbols=False, dtype=jnp.bfloat16), 3, 2, symbols=False, hidden=9)
    params, state = jax.jit(cell.init)(jax.random.key(0)), cell.initial_state()
    state, output = jax.eval_shape(cell.transition, params, state, jnp.array([0.5, -1.0, 2.0]))
    assert output.shape == (2,)
    assert {leaf.dtype for leaf in jax.tree.leaves((params, state, output))} == {jnp.dtype(jnp.bfloat16)}
    assert np.abs(params["readout"]["skip"]).max() <= 3**-0.5


def test_an_output_that_is_no_vector_is_refused():
    cell = cells.rnn(3, 4, 3)
    pair = cell._replace(transition=lambda params, state, x: (state, {"a": state, "b": state}))
    with pytest.raises(ValueError, match="output must be one vector"):
        jax.eval_shape(cells.with_readout(pair, 3, 2).init, jax.random.key(0))


@pytest.mark.usefixtures("x64")
def test_declarations_go_through():
    for name in ("lru", "elstm", "feedback_reservoir"):
        cell = CELLS[name](3, 3, 3)
        model = example(cells.with_readout(cell, 3, 3, **SMALL))
        told, before = structure_of(model.transition), structure_of(cell.transition)
        assert (told.elementwise, told.memory) == (before.elementwise, before.memory)
        assert told.output_units is None
        check_structure(model.transition, model.params, model.state, model.xs[0])
    # a declaration that is false of the cell is false of both
    liar = cell._replace(
        transition=declare(cell.transition, units=lambda params: {**before.units(params), "bias": None})
    )
    model = example(cells.with_readout(liar, 3, 3, **SMALL))
    with pytest.raises(AssertionError, match=r"params\['cell'\]\['bias'\] reaches the state"):
        check_structure(model.transition, model.params, model.state, model.xs[0])


@pytest.mark.usefixtures("x64")
def test_traces_stay_exact_under_a_hidden_layer():
    cell = cells.with_readout(cells.elstm(3, 3, 3), 3, 3, prenorm=True, **SMALL)
    check_exact(lstm97, models=[example(cell, "elstm", length=6)])
