"""Small models that declare their structure, and references for the methods that use it."""

from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from norewind import cells, declare, window
from norewind.core import ModelError, losses
from norewind.core.estimator import Estimator
from norewind.core.structure import Layer, structure_of
from norewind.core.trees import real_leaves, with_real_leaves
from norewind.core.units import for_each_leaf
from norewind.testing import Example, exact_grads, path_signs, run_estimator, sign_paths
from norewind.testing.oracles import windows

ELEMENTWISE = {
    "lru": cells.lru,
    "rtu": cells.rtu,
    "linear_rtu": partial(cells.rtu, linear=True),
    "elstm": cells.elstm,
    "mingru": cells.mingru,
    "diagonal_gru": cells.diagonal_gru,
    "selective_ssm": cells.selective_ssm,
}
DENSE = {
    "rnn": cells.rnn,
    "elman": cells.elman,
    "reservoir": partial(cells.reservoir, leak=0.4),
    "lstm": partial(cells.lstm, embedding=False),
    "gru": cells.gru,
    "alif": cells.alif,
    "gru_after": partial(cells.gru, reset="after"),
}
OTHERS = {
    "embedding": cells.lstm,
    "feedback_reservoir": cells.feedback_reservoir,
    "equinox_gru": lambda inputs, hidden, outputs: cells.from_equinox(
        lambda key: eqx.nn.GRUCell(inputs, hidden, key=key), inputs, outputs
    ),
}
SMALL = {"hidden": 3}


def undeclared(transition):
    """Return the same transition as a black box."""
    return lambda params, state, x: transition(params, state, x)


def of_cell(name, hidden=2, length=4, readout=False):
    """Return one of these cells with a few samples, in the current precision."""
    return _of_cell(name, hidden, length, readout, jax.config.jax_enable_x64)


@cache  # the same functions every time, so that all tests share compiled programs
def _of_cell(name, hidden, length, readout, x64):
    cell = (ELEMENTWISE | DENSE | OTHERS)[name](3, hidden, 3)
    return from_cell(name, cells.with_readout(cell, 3, 3, **SMALL) if readout else cell, length)


def from_cell(name, cell, length=4, symbols=True):
    """Return a cell with a few samples. Its own initialisation would take longer than most tests."""
    rng = np.random.default_rng(3)
    shapes = jax.eval_shape(cell.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: jnp.asarray(0.6 * rng.normal(size=leaf.shape)), shapes)
    state = jax.tree.map(lambda leaf: jnp.asarray(0.3 + 0.1 * np.arange(leaf.size)), jax.eval_shape(cell.initial_state))
    if symbols:
        xs = rng.integers(0, 3, length + 1).astype(np.int32)
        return Example(name, params, state, cell.transition, losses.cross_entropy, xs[:-1], xs[1:])
    xs, targets = rng.normal(size=(2, length, 3))
    return Example(name, params, state, cell.transition, losses.squared_error, xs, targets)


def plain_lstm(hidden=3, length=8, **options):
    """Return an LSTM without an embedding, and a few symbols."""
    cell = cells.lstm(3, hidden, 3, embedding=False, **options)
    symbols = np.random.default_rng(3).integers(0, 3, length + 1).astype(np.int32)
    state = jax.tree.map(lambda leaf: leaf + 0.3, cell.initial_state())
    params = jax.jit(cell.init)(jax.random.key(4))
    return Example("plain_lstm", params, state, cell.transition, losses.cross_entropy, symbols[:-1], symbols[1:])


def grads_of(estimator, example, seed=0):
    """Return the gradient estimates of all steps."""
    carry = estimator.init(example.params, example.state, jax.random.key(seed))
    return jax.jit(lambda carry: run_estimator(estimator, example, carry)[2].grad)(carry)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@cache
def turning(length=4):
    """A model with two numbers per unit that rotate into each other nonlinearly, and a counter."""

    def transition(params, state, x):
        angle = params["angle"] + 0.3 * jnp.sin(state["tick"])
        drive = x @ params["input"]
        a = jnp.tanh(jnp.cos(angle) * state["a"] - jnp.sin(angle) * state["b"] + drive)
        b = jnp.tanh(params["decay"] * (jnp.sin(angle) * state["a"] + jnp.cos(angle) * state["b"]))
        new = {"a": a, "b": b, "tick": state["tick"] + 1}
        return new, params["out"] @ jnp.concatenate([a, b])

    rows = np.arange(2)
    units = {"angle": rows, "decay": rows, "input": rows, "out": None}
    told = declare(transition, units=lambda params: units, reads="own")
    params = {
        "angle": np.array([0.4, 1.1]),
        "decay": np.array([0.9, 0.7]),
        "input": np.array([[0.5, -0.3], [0.8, 0.2]]),
        "out": np.array([1.0, -0.6, 0.4, 0.9]),
    }
    state = {"a": np.array([0.2, -0.4]), "b": np.array([0.1, 0.3]), "tick": np.array(0, np.int32)}
    xs = np.sin(1.0 + np.arange(2.0 * length)).reshape(length, 2)
    return Example("turning", params, state, told, losses.squared_error, xs, np.cos(xs[:, 0]))


@cache
def spinning(length=4):
    """A model with one complex number per unit and complex weights that is not holomorphic."""

    def transition(params, state, x):
        z = params["turn"] * state + x * params["input"]
        z = z / jnp.sqrt(1 + jnp.abs(z) ** 2) + 0.2 * jnp.conj(state)
        return z, jnp.real(params["out"] @ z)

    rows = np.arange(2)
    told = declare(transition, units=lambda params: {"turn": rows, "input": rows, "out": None}, reads="own")
    params = {
        "turn": np.array([0.7 + 0.5j, 0.2 - 0.8j]),
        "input": np.array([0.4 - 0.3j, 0.9 + 0.1j]),
        "out": np.array([0.6 + 0.8j, -0.5 + 0.3j]),
    }
    xs = np.sin(1.0 + np.arange(length))
    return Example("spinning", params, np.array([0.2 + 0.1j, -0.3j]), told, losses.squared_error, xs, np.cos(xs))


def masked_rtrl(example, steps=1, near=None):
    """mask ⊙ (J G + I) by the full Jacobians, and the gradient of every window of this many steps, flat.

    The mask is one where a weight meets the unit that it feeds, or one that is near it (row: near column).
    """
    transition, loss, (flat, unravel) = example.transition, example.loss, ravel_pytree(example.params)
    leaves, unravel_leaves = ravel_pytree(real_leaves(example.state))
    n = jax.tree.leaves(example.state)[0].shape[0]
    fed = fed_units(example)
    near = np.eye(n, dtype=bool) if near is None else near
    mask = (fed >= 0) & near[np.arange(leaves.size) % n][:, fed]

    def state_of(leaves):
        return with_real_leaves(example.state, unravel_leaves(leaves))

    def step(theta, leaves, x):
        return ravel_pytree(real_leaves(transition(unravel(theta), state_of(leaves), x)[0]))[0]

    def window_loss(theta, leaves, xs, targets):
        def body(state, inputs):
            state, output = transition(unravel(theta), state, inputs[0])
            return state, loss(output, inputs[1])

        return jnp.sum(jax.lax.scan(body, state_of(leaves), (xs, targets))[1])

    jacobians, slopes, forward = (
        jax.jit(jax.jacrev(step, (0, 1))),
        jax.jit(jax.grad(window_loss, (0, 1))),
        jax.jit(step),
    )
    influence, grads = np.zeros(mask.shape), []
    for i, x in enumerate(example.xs):
        if i % steps == 0:
            here = example.xs[i : i + steps], example.targets[i : i + steps]
            direct, delta = map(np.asarray, slopes(flat, leaves, *here))
            grads.append(delta @ influence + direct)
        immediate, jacobian = map(np.asarray, jacobians(flat, leaves, x))
        influence = np.where(mask, jacobian @ influence + immediate, 0)
        leaves = forward(flat, leaves, x)
    return np.stack(grads), influence


def fed_units(example):
    """For every parameter, flat, the unit that it feeds; -1 without one."""
    units = structure_of(example.transition).units(example.params)
    fed = for_each_leaf(
        lambda own, leaf: np.broadcast_to(-1 if own is None else own, leaf.shape), units, example.params
    )
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(fed)])


def mean_errors(make, count, example, window=1):
    """The error of the mean gradient over every path of the noise, for `make(number)` with each number below count.

    `make(number)(transition, loss, noise=...)` gets a traced number, so that a right
    estimator and all its mutants are compiled once.
    """
    model, data = example[3:5], windows(example, window) if window > 1 else example
    steps = jax.tree.leaves(data.targets)[0].shape[0]
    width = sum(leaf.size for leaf in jax.tree.leaves(real_leaves(example.state)))
    init = make(0)(*model, noise=path_signs).init
    paths = sign_paths(jax.jit(init)(example.params, example.state, jax.random.key(0)), width * (steps - 1))
    exact = exact_grads(*model, example.params, example.state, example.xs, example.targets)
    exact = jax.tree.map(lambda leaf: leaf.reshape(-1, window, *leaf.shape[1:]).sum(axis=1), exact)

    def error(number):
        estimator = make(number)(*model, noise=path_signs)
        grads = jax.vmap(lambda carry: run_estimator(estimator, data, carry)[2].grad)(paths)
        apart = jax.tree.map(lambda g, e: jnp.max(jnp.abs(g.mean(axis=0) - e)), grads, exact)
        return jnp.max(jnp.stack(jax.tree.leaves(apart)))

    return np.asarray(jax.jit(jax.vmap(error))(jnp.arange(count)))


def scaled(factor, tree):
    return jax.tree.map(lambda leaf: factor * leaf, tree)


def choose(number, trees):
    """Select one of several trees by a traced number."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves)[number], *trees)


def with_carry(make, changes):
    """Return estimators for `mean_errors`: the unchanged one, then one for each change(old, new) of the carry."""

    def mutant(number):
        def wrong(*model, **options):
            estimator = make(*model, **options)

            def step(params, state, carry, x, target):
                state, new, estimate = estimator.step(params, state, carry, x, target)
                return state, choose(number, [new, *(change(carry, new) for change in changes)]), estimate

            return Estimator.build(estimator.init, step, estimator.model)

        return wrong

    return mutant


def check_mutants_of_the_carry(make, changes, example):
    """Assert that an estimator is unbiased, and that it is biased with any of these changes."""
    right, *wrong = mean_errors(with_carry(make, changes.values()), len(changes) + 1, example)
    assert right < 1e-10
    for name, error in zip(changes, wrong, strict=True):
        assert error > 1e-6, f"not caught: {name}"


def wrapped_layer(transition, layer):
    """Wrap a cell's transition (`params["cell"]`), and declare only the cell's layer."""

    def inside(function):
        return lambda params, *rest: dict.fromkeys(params) | {"cell": function(params["cell"], *rest)}

    bias = lambda params: layer.bias(params["cell"])  # noqa: E731
    return declare(transition, layer=Layer(inside(layer.rows), inside(layer.inputs), bias))


def black_box(params, state, x):
    return params["w"] * state, state


def check_it_rejects_models_without_units(make):
    """Models without units: a black box, and one whose weights are shared by several units."""
    for model in ((black_box, losses.squared_error), window(black_box, losses.squared_error)):
        with pytest.raises(ModelError, match=f"{make.__name__} needs to know how each unit depends on itself alone"):
            make(*model)
    cell = cells.lstm(3, 2, 3)
    estimator = make(cell.transition, losses.cross_entropy)
    params, state = jax.eval_shape(cell.init, jax.random.key(0)), cell.initial_state()
    carry = jax.eval_shape(estimator.init, params, state, jax.random.key(0))
    with pytest.raises(ModelError, match=f"{make.__name__}: params\\['embedding'\\] reaches the state"):
        jax.eval_shape(estimator.step, params, state, carry, np.int32(0), np.int32(1))
