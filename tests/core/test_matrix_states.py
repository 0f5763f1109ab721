"""States of any shape, weights that several units share, and declarations of wrapped transitions."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import structured

from norewind import cells, declare, unbiased
from norewind.core import ModelError, losses
from norewind.estimators import bpdc, kf_rtrl, lstm97, nobacktrack, snap1
from norewind.testing import Example, check_exact, check_structure, check_unbiased

pytestmark = pytest.mark.usefixtures("x64")


def of_shapes(name, transition, shapes, state, **declared):
    """A model with drawn parameters on four vectors of two numbers."""
    rng = np.random.default_rng(5)
    params = {key: 0.6 * rng.normal(size=shape) for key, shape in shapes.items()}
    xs = rng.normal(size=(4, 2))
    told = declare(transition, **declared)
    return Example(name, params, state, told, losses.squared_error, xs, xs[:, 0])


@cache
def selective():
    """A matrix of channels and slots without interaction; slots share a step size, channels share what they write."""
    cells_of = np.arange(6).reshape(2, 3)

    def transition(params, state, x):
        step = jax.nn.softplus(params["step"] @ x)  # a number per channel
        kept = jnp.exp(-step[:, None] * jnp.exp(params["rate"]))
        state = kept * state + step[:, None] * jnp.outer(jnp.tanh(params["in"] @ x), params["write"] @ x)
        return state, jnp.sum(params["out"] * state)

    def units(params):
        by_channel, by_slot = cells_of.T[:, :, None], cells_of[:, :, None]
        return {"rate": cells_of, "step": by_channel, "in": by_channel, "write": by_slot, "out": None}

    shapes = {"rate": (2, 3), "step": (2, 2), "in": (2, 2), "write": (3, 2), "out": (2, 3)}
    state = 0.3 + 0.1 * np.arange(6.0).reshape(2, 3)
    return of_shapes("selective", transition, shapes, state, units=units, reads="own")


@cache
def delta_rule():
    """The rows of a matrix do not read one another, but each mixes its own entries; all rows share their keys."""
    rows = jnp.arange(3)

    def transition(params, state, x):
        key = jnp.tanh(params["key"] @ x)
        state = state + jnp.outer(params["value"] @ x - state @ key, key) / 2
        return state, jnp.sum(params["out"] @ state)

    def units(params):
        return {"value": rows[:, None], "key": rows[:, None, None], "out": None}

    shapes = {"value": (3, 2), "key": (2, 2), "out": (3,)}
    state = 0.3 + 0.1 * np.arange(6.0).reshape(3, 2)
    kept = {"units": units, "entries": lambda state: rows[:, None], "reads": "own"}
    return of_shapes("delta rule", transition, shapes, state, **kept)


@cache
def rows_of_a_matrix():
    """An affine layer whose units keep two numbers each, which read one another and those of other units."""
    rows = jnp.arange(2)

    def transition(params, state, x):
        drive = params["w"] @ jnp.concatenate([state.ravel(), x])
        state = jnp.stack([jnp.tanh(drive), jnp.sin(drive) * state[:, 0]], axis=1)
        return state, jnp.sum(params["out"] * state)

    def units(params):
        return {"w": rows[:, None], "out": None}

    state = 0.3 + 0.1 * np.arange(4.0).reshape(2, 2)
    shapes = {"w": (2, 6), "out": (2, 2)}
    return of_shapes("rows", transition, shapes, state, units=units, entries=lambda state: rows[:, None])


MODELS = [selective, delta_rule]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_traces_are_exact(model):
    check_exact(snap1, models=[model()])


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_the_declarations_are_true(model):
    example = model()
    check_structure(example.transition, example.params, example.state, example.xs[0])


def test_weights_without_units_are_left_to_noise():
    """Without a declared unit for the keys, `unbiased` carries them by noise, and snap1 rejects."""
    example = delta_rule()
    units = example.transition.structure.units
    told = declare(
        example.transition.transition, units=lambda params: units(params) | {"key": None}, like=example.transition
    )
    with pytest.raises(ModelError, match=r"params\['key'\] reaches the state"):
        structured.grads_of(snap1(told, example.loss), example)
    two_steps = example._replace(transition=told, xs=example.xs[:2], targets=example.targets[:2])
    check_unbiased(lambda *model, noise: unbiased(snap1(*model), noise=noise), models=[two_steps])


def test_nobacktrack_finds_the_same_norms_with_and_without_the_declaration():
    example = rows_of_a_matrix()
    check_structure(example.transition, example.params, example.state, example.xs[0])
    both = example.transition, structured.undeclared(example.transition)
    told, untold = (structured.grads_of(nobacktrack(model, example.loss), example) for model in both)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-10), told, untold)


@pytest.mark.parametrize(
    ("model", "wrong", "message"),
    [
        (selective, {"rate": np.arange(6).reshape(3, 2).T}, r"params\['rate'\] feeds a unit that is not the declared"),
        (selective, {"step": np.arange(6).reshape(2, 3)[:, :2]}, r"params\['step'\] feeds a unit that is not"),
        (delta_rule, {"value": np.arange(3)[::-1, None]}, r"params\['value'\] feeds a unit that is not the declared"),
    ],
)
def test_false_units_are_found(model, wrong, message):
    example = model()
    units = example.transition.structure.units
    told = declare(example.transition.transition, units=lambda params: units(params) | wrong, like=example.transition)
    with pytest.raises(AssertionError, match=message):
        check_structure(told, example.params, example.state, example.xs[0])


def test_false_entries_are_found():
    example = delta_rule()

    def check(entries):
        told = declare(example.transition.transition, entries=entries, like=example.transition)
        check_structure(told, example.params, example.state, example.xs[0])

    with pytest.raises(AssertionError, match="not elementwise|not the declared one"):
        check(lambda state: np.array([0, 0, 1, 1, 2, 2]).reshape(2, 3).T)
    with pytest.raises(ModelError, match="between 2 and 4 entries, but every unit must have the same number"):
        check(lambda state: np.array([[0], [0], [1]]))
    with pytest.raises(ModelError, match="entries are None"):
        check(lambda state: None)


def test_methods_for_one_unit_per_weight_reject_others():
    example = selective()
    told = declare(example.transition.transition, memory=lambda state: state, like=example.transition)
    with pytest.raises(ModelError, match=r"lstm97 needs weights that feed one unit each, but params\['in'\]"):
        structured.grads_of(lstm97(told, example.loss), example)
    example = rows_of_a_matrix()
    told = declare(example.transition, output_units=(0,), like=example.transition)
    with pytest.raises(ModelError, match="bpdc needs units with one entry"):
        structured.grads_of(bpdc(told, example.loss), example)


def test_a_unit_named_twice_is_rejected():
    example = selective()
    units = example.transition.structure.units
    twice = {"write": np.zeros((2, 3, 1), int)}
    told = declare(example.transition.transition, units=lambda params: units(params) | twice, like=example.transition)
    with pytest.raises(ModelError, match="names? several|name one of them twice"):
        structured.grads_of(snap1(told, example.loss), example)


def test_leaves_of_different_shapes_need_entries():
    def transition(params, state, x):
        return {"a": params * state["a"], "b": state["b"]}, state["a"]

    told = declare(transition, units=lambda params: np.arange(2), reads="own")
    state = {"a": np.ones(2), "b": np.ones((2, 3))}
    with pytest.raises(ModelError, match=r"state\['b'\] has shape \(2, 3\).*declare which entries"):
        snap1(told, losses.squared_error).init(np.ones(2), state, jax.random.key(0))


def doubled(cell):
    """A cell in a wrapper that scales its input."""

    def wrapped(params, state, x):
        return cell.transition(params, state, 2 * x)

    return declare(wrapped, like=cell.transition)


@pytest.mark.parametrize("method", [snap1, kf_rtrl, nobacktrack])
def test_a_wrapper_keeps_the_declarations(method):
    """The same numbers as the cell itself gives on the inputs that the wrapper passes on."""
    cell = cells.elman(3, 2, 3, symbols=False)
    example = structured.from_cell("elman", cell, symbols=False)
    told = doubled(cell)
    check_structure(told, example.params, example.state, example.xs[0])
    wrapped = structured.grads_of(method(told, example.loss), example)
    inside = structured.grads_of(method(cell.transition, example.loss), example._replace(xs=2 * example.xs))
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-12), wrapped, inside)


def test_a_wrapper_must_call_what_it_wraps_once():
    cell = cells.elman(3, 2, 3, symbols=False)
    example = structured.from_cell("elman", cell, symbols=False)

    def twice(params, state, x):
        return cell.transition(params, cell.transition(params, state, x)[0], x)

    for wrapped, calls in ((twice, 2), (lambda params, state, x: (state, x), 0)):
        told = declare(wrapped, like=cell.transition)
        with pytest.raises(ModelError, match=f"calls `like` {calls} times"):
            structured.grads_of(snap1(told, example.loss), example)
    with pytest.raises(ModelError, match="`like` declares nothing"):
        declare(twice, like=lambda params, state, x: (state, x))
