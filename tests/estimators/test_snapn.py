"""SnAp-n is RTRL with a sparse mask, and RTRL itself where the mask covers all of the influence; both to 1e-10."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import structured
from jax.flatten_util import ravel_pytree

from norewind import cells, declare, losses, unbiased, window
from norewind.core import ModelError
from norewind.core.structure import structure_of
from norewind.core.units import colours_of
from norewind.estimators import snap1, snapn
from norewind.testing import Example, check_exact, check_structure, check_unbiased
from norewind.testing.oracles import run_estimator, windows

pytestmark = pytest.mark.usefixtures("x64")
SLOW = pytest.mark.slow
CHAIN = np.eye(4, dtype=bool) | np.eye(4, k=1, dtype=bool)  # every unit reads itself and the next one
PAIRS = np.kron(np.eye(2, dtype=bool), np.ones((2, 2), bool))  # 0 and 1 read each other, so do 2 and 3


@cache
def sparse_cell(name, graph, length=6):
    reads = {"chain": CHAIN, "pairs": PAIRS}[graph]
    return structured.from_cell(name, cells.sparse(structured.DENSE[name](3, len(reads), 3), reads), length)


@cache
def shared_weights():
    """A ring of units with two numbers each, in which every second weight feeds two units."""
    ring = np.eye(6, dtype=bool) | np.roll(np.eye(6, dtype=bool), 1, axis=0)
    unit = np.arange(6)

    def transition(params, state, x):
        drive = params["own"] * state[:, 0] + params["before"] * jnp.roll(state[:, 1], 1)
        drive += jnp.repeat(params["shared"], 2) * x
        state = jnp.stack([jnp.tanh(drive), jnp.sin(drive) * state[:, 1]], axis=1)
        return state, jnp.sum(params["out"] * state)

    units = {"own": unit, "before": unit, "shared": np.arange(6).reshape(3, 2).T, "out": None}
    told = declare(transition, units=lambda _: units, entries=lambda _: unit[:, None], reads=lambda _: ring)
    rng = np.random.default_rng(5)
    shapes = {"own": 6, "before": 6, "shared": 3, "out": (6, 2)}
    params = {name: 0.6 * rng.normal(size=shape) for name, shape in shapes.items()}
    xs = rng.normal(size=8)
    state = 0.3 + 0.1 * np.arange(12.0).reshape(6, 2)
    return Example("shared", params, state, told, losses.squared_error, xs, np.cos(xs))


def worst_error(example, order, steps=1):
    """Return the largest difference from RTRL with a mask, over all gradients."""
    reads = structure_of(example.transition).reads(example.state)
    near = np.linalg.matrix_power(np.eye(len(reads)) + reads, order - 1) > 0
    wanted, _ = structured.masked_rtrl(example, steps, near)
    model = example[3:5] if steps == 1 else window(*example[3:5])
    estimator = snapn(*model, order=order)
    carry = estimator.init(example.params, example.state, jax.random.key(0))
    grads = jax.jit(lambda: run_estimator(estimator, windows(example, steps), carry)[2].grad)()
    return np.max(np.abs(jax.vmap(lambda grad: ravel_pytree(grad)[0])(grads) - wanted))


@pytest.mark.parametrize(
    ("name", "graph", "order"),
    [
        ("elman", "chain", 2),
        pytest.param("elman", "chain", 3, marks=SLOW),
        pytest.param("lstm", "chain", 2, marks=SLOW),
        pytest.param("gru_after", "pairs", 2, marks=SLOW),
    ],
)
def test_it_is_rtrl_with_a_mask(name, graph, order):
    assert worst_error(sparse_cell(name, graph), order) < 1e-10


def test_in_windows_only_what_is_carried_is_masked():
    assert worst_error(sparse_cell("elman", "chain"), 2, steps=3) < 1e-10


DEEP_ENOUGH = [
    # models, and an order at which no influence is left out
    pytest.param(lambda: sparse_cell("elman", "chain"), 4),
    pytest.param(lambda: sparse_cell("lstm", "pairs"), 2, marks=SLOW),
    pytest.param(lambda: structured.of_cell("elman"), 2, marks=SLOW),
    pytest.param(structured.turning, 2),
    pytest.param(structured.spinning, 2, marks=SLOW),
    pytest.param(shared_weights, 6),
]


@pytest.mark.parametrize(("model", "order"), DEEP_ENOUGH)
def test_it_is_exact_where_the_mask_covers_all(model, order):
    check_exact(partial(snapn, order=order), models=[model()])


def test_one_order_less_is_not_exact():
    for model, order in ((sparse_cell("elman", "chain"), 3), (shared_weights(), 5)):
        with pytest.raises(AssertionError, match="not exact"):
            check_exact(partial(snapn, order=order), models=[model])


def test_order_1_is_snap1():
    example = sparse_cell("elman", "chain")
    grads = [structured.grads_of(one, example) for one in (snapn(*example[3:5], order=1), snap1(*example[3:5]))]
    jax.tree.map(np.testing.assert_array_equal, *grads)


@pytest.mark.slow
def test_completed_it_is_unbiased():
    model = structured.from_cell("elman", cells.sparse(cells.elman(3, 3, 3), CHAIN[:3, :3]))
    check_unbiased(lambda *model, noise: unbiased(snapn(*model), noise=noise), models=[model])


def test_the_derivatives_of_a_chain_do_not_grow_with_its_length():
    reads = np.eye(50, dtype=bool) | np.eye(50, k=-1, dtype=bool)
    assert colours_of({"w": np.arange(50)}, {"w": np.zeros(50)}, reads).max() + 1 == 2


@pytest.mark.parametrize("name", ["elman", *(pytest.param(name, marks=SLOW) for name in ("lstm", "gru", "gru_after"))])
def test_sparse_cells_declare_what_they_read(name):
    example = sparse_cell(name, "chain")
    check_structure(example.transition, example.params, example.state, example.xs[0])
    if name != "gru":  # its reset gates reach other units within a step
        false = declare(example.transition, reads=lambda state: np.eye(4), like=example.transition)
        with pytest.raises(AssertionError, match="not in the declared reads: state.* of one unit reaches state"):
            check_structure(false, example.params, example.state, example.xs[0])


def test_it_rejects_other_models():
    with pytest.raises(ModelError, match="snapn needs to know which unit each weight feeds"):
        snapn(*structured.of_cell("gru")[3:5])
    example = sparse_cell("elman", "chain")
    wrong = declare(example.transition, reads=lambda state: np.eye(3), like=example.transition)
    with pytest.raises(ModelError, match=r"reads have shape \(3, 3\), but the model has 4 units"):
        snapn(wrong, example.loss).init(example.params, example.state, jax.random.key(0))
    with pytest.raises(ModelError, match="sparse needs a cell that declares mixing"):
        cells.sparse(cells.lru(3, 4, 3), CHAIN)
