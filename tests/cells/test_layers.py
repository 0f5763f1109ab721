"""Stacks that declare their units: a trace per weight in every layer, and what that drops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import structured

from norewind import cells, losses, rtrl, unbiased, window
from norewind.core import ModelError
from norewind.core.structure import structure_of
from norewind.core.trees import real_leaves
from norewind.estimators import rflo, snap1
from norewind.testing import check_structure, check_unbiased

PAIRS = {
    "lru on lru": lambda: cells.stack(cells.lru(3, 2, 4), cells.lru(4, 3, 3, symbols=False)),
    "gru on mingru": lambda: cells.stack(cells.mingru(3, 2, 3), cells.gru(3, 2, 3, symbols=False)),
    "deltanet on deltanet": lambda: cells.stack(
        cells.deltanet(3, 2, 2, keys=2), cells.deltanet(2, 3, 3, keys=2, symbols=False)
    ),
    "three": lambda: cells.stack(
        cells.mingru(3, 1, 2), cells.diagonal_gru(2, 2, 2, symbols=False), cells.selective_ssm(2, 1, 3, symbols=False)
    ),
}


def model_of(name, length=5):
    cell = PAIRS[name]()
    model = structured.from_cell(name, cell, length)
    shapes = jax.eval_shape(cell.initial_state)
    state = jax.tree.map(lambda leaf, like: jnp.reshape(leaf, like.shape), model.state, shapes)
    return model._replace(state=state)


def rtrl_within_layers(model):
    """RTRL that forgets after every step how the weights of each layer act on the other layers."""
    exact = rtrl(model.transition, model.loss)
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(real_leaves(layer))) for layer in model.state]
    ends = np.cumsum(sizes)

    def step(params, state, carry, x, target):
        state, carry, estimate = exact.step(params, state, carry, x, target)
        cut = tuple(
            jax.tree.map(
                lambda rows, end=end, size=size: (
                    rows
                    * ((np.arange(ends[-1]) >= end - size) & (np.arange(ends[-1]) < end)).reshape(
                        -1, *(1,) * (rows.ndim - 1)
                    )
                ),
                layer,
            )
            for layer, end, size in zip(carry, ends, sizes, strict=True)
        )
        return state, cut, estimate

    return exact._replace(step=step)


def assert_same_gradients(got, wanted, tolerance=1e-10):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=tolerance), got, wanted)


ELEMENTWISE = ["lru on lru", *(pytest.param(n, marks=pytest.mark.slow) for n in ("deltanet on deltanet", "three"))]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_the_traces_of_a_layer_are_exact_within_it_and_drop_the_rest(name):
    model = model_of(name)
    got = structured.grads_of(snap1(model.transition, losses.cross_entropy), model)
    assert_same_gradients(got, structured.grads_of(rtrl_within_layers(model), model))
    exact = structured.grads_of(rtrl(model.transition, losses.cross_entropy), model)
    assert_same_gradients(got[-1], exact[-1])
    below = [np.max(np.abs(a - b)) for a, b in zip(*map(jax.tree.leaves, (got[0], exact[0])), strict=True)]
    assert max(below) > 1e-4


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in PAIRS])
def test_declarations_are_true(name):
    model = model_of(name)
    check_structure(model.transition, model.params, model.state, model.xs[0])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["gru on mingru"])
def test_dense_and_elementwise_layers_can_be_mixed(name):
    """The first gradient passes through both layers; nothing has been dropped yet."""
    model = model_of(name)
    traces = jax.eval_shape(snap1(model.transition, losses.cross_entropy).init, model.params, model.state, None)
    assert len(traces) == 1
    grads = structured.grads_of(snap1(model.transition, losses.cross_entropy), model)
    exact = structured.grads_of(rtrl(model.transition, losses.cross_entropy), model)
    assert_same_gradients(jax.tree.map(lambda leaf: leaf[0], grads), jax.tree.map(lambda leaf: leaf[0], exact))
    with pytest.raises(ModelError, match="rflo: in a stack it would also cut"):
        rflo(model.transition, losses.cross_entropy)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_unbiased_restores_what_is_dropped_without_bias():
    cell = cells.stack(cells.mingru(3, 1, 2), cells.mingru(2, 1, 3, symbols=False))
    model = structured.from_cell("two", cell, 4)
    check_unbiased(lambda *parts, noise: unbiased(snap1(*parts), noise=noise), models=[model])


def test_layers_of_different_kinds_of_state_and_undeclared_ones():
    cell = cells.stack(cells.lru(3, 2, 2), cells.mingru(2, 2, 3, symbols=False))
    params, state = jax.eval_shape(cell.init, jax.random.key(0)), cell.initial_state()
    with pytest.raises(ModelError, match="every unit must have the same number"):
        jax.eval_shape(snap1(cell.transition, losses.cross_entropy).init, params, state, jax.random.key(0))
    embedding = cells.stack(cells.lstm(3, 2, 2), cells.lstm(2, 2, 3, symbols=False, embedding=False))
    model = structured.from_cell("lstms", embedding)
    with pytest.raises(ModelError, match=r"a stack: params\['embedding'\] reaches the state"):
        structured.grads_of(snap1(model.transition, losses.cross_entropy), model)
    black_box = cells.mingru(2, 2, 3, symbols=False)
    black_box = black_box._replace(transition=structured.undeclared(black_box.transition))
    assert structure_of(cells.stack(cells.lru(3, 2, 2), black_box).transition).mixing is None


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_within_a_window_nothing_is_dropped():
    model = model_of("lru on lru", 4)
    whole = model._replace(xs=model.xs[None], targets=model.targets[None])
    estimator = snap1(*window(model.transition, losses.cross_entropy))
    exact = structured.grads_of(rtrl(model.transition, losses.cross_entropy), model)
    got = structured.grads_of(estimator, whole)
    assert_same_gradients(
        jax.tree.map(lambda leaf: leaf[0], got), jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), exact)
    )
