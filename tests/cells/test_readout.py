"""A readout with a hidden layer on any cell: its formula and exact gradient, and the parts it does not change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import structured

from norewind import cells, declare, rtrl
from norewind.core.structure import Structure, structure_of
from norewind.estimators import snap1
from norewind.testing import check_exact, check_structure


def in_a_stack():
    """Return two layers, both with such a readout."""
    lower = cells.with_readout(cells.lru(3, 1, 2), 3, 2, **structured.SMALL)
    both = cells.stack(lower, cells.diagonal_gru(2, 1, 3, symbols=False))
    return structured.from_cell("stack", cells.with_readout(both, 3, 3, **structured.SMALL))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["stack", "lstm", "equinox_gru"])
def test_rtrl_is_exact(name):
    check_exact(rtrl, models=[in_a_stack() if name == "stack" else structured.of_cell(name, readout=True)])


def by_hand(readout, h, x):
    a = readout["hidden"]["weight"] @ h + readout["hidden"]["bias"] + readout["skip"][x]
    a = readout["norm"]["scale"] * (a - a.mean()) / np.sqrt(a.var() + 1e-5) + readout["norm"]["shift"]
    return readout["output"]["weight"] @ np.maximum(a, 0) + readout["output"]["bias"]


@pytest.mark.usefixtures("x64")
def test_formula_on_what_the_linear_readout_reads():
    cell = cells.rnn(3, 4, 3)
    model = structured.from_cell("rnn", cells.with_readout(cell, 3, 2, hidden=5))
    params = jax.tree.map(np.asarray, model.params)
    assert "readout" not in params["cell"]
    x = jnp.array(2)
    state, output = jax.jit(model.transition)(model.params, model.state, x)
    # The state is that of the cell alone, with any readout.
    any_readout = {"readout": {"weight": jnp.ones((3, 4)), "bias": jnp.ones(3)}}
    alone, _ = jax.jit(cell.transition)(model.params["cell"] | any_readout, model.state, x)
    np.testing.assert_array_equal(state, alone)
    np.testing.assert_allclose(output, by_hand(params["readout"], np.tanh(state), 2), rtol=1e-12)


def test_a_stack_and_a_readout_of_another_kind_keep_their_own():
    """In a stack, only the last readout is replaced, and only if it is linear; a second layer is added on top."""
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
    params, state = cell.init(jax.random.key(0)), cell.initial_state()
    state, output = jax.eval_shape(cell.transition, params, state, jnp.array([0.5, -1.0, 2.0]))
    assert output.shape == (2,)
    assert {leaf.dtype for leaf in jax.tree.leaves((params, state, output))} == {jnp.dtype(jnp.bfloat16)}
    assert np.abs(params["readout"]["skip"]).max() <= 3**-0.5


def test_an_output_that_is_not_a_vector_is_rejected():
    cell = cells.rnn(3, 4, 3)
    pair = cell._replace(transition=lambda params, state, x: (state, {"a": state, "b": state}))
    with pytest.raises(ValueError, match="output must be one vector"):
        jax.eval_shape(cells.with_readout(pair, 3, 2).init, jax.random.key(0))


@pytest.mark.usefixtures("x64")
def test_declarations_are_passed_on():
    for name in ("lru", "feedback_reservoir"):
        model, told_by_cell = structured.of_cell(name, readout=True), structured.of_cell(name).transition.structure
        told = structure_of(model.transition)
        assert told.elementwise == told_by_cell.elementwise
        assert told.output_units is None
        check_structure(model.transition, model.params, model.state, model.xs[0])
    undeclared = structure_of(structured.of_cell("equinox_gru", readout=True).transition)
    assert undeclared._replace(sizes=None) == Structure()


def test_a_declaration_that_is_false_of_the_cell_is_false_of_both():
    cell = cells.elman(3, 3, 3)
    units = cell.transition.structure.units
    liar = cell._replace(transition=declare(cell.transition, units=lambda params: {**units(params), "bias": None}))
    model = structured.from_cell("liar", cells.with_readout(liar, 3, 3, **structured.SMALL))
    with pytest.raises(AssertionError, match=r"params\['cell'\]\['bias'\] reaches the state"):
        check_structure(model.transition, model.params, model.state, model.xs[0])


@pytest.mark.usefixtures("x64")
def test_traces_stay_exact_under_a_hidden_layer():
    check_exact(snap1, models=[structured.of_cell("elstm", readout=True)])
