"""Derivatives of whole runs by what they depend on (a learning rate, the initial parameters) agree with differences."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import structured

from norewind import adam, average, bptt, cells, online, parallel, rtrl, unbiased, uoro, window
from norewind.estimators import (
    bpdc,
    diffusion,
    dni,
    kf_rtrl,
    kronecker,
    lstm97,
    nobacktrack,
    readout_only,
    rflo,
    shrunk,
    sketched,
    sliding_bptt,
    snap1,
    snapn,
)

pytestmark = pytest.mark.usefixtures("x64")

ESTIMATORS = {
    # name: (the estimator, the cell)
    "uoro": (uoro, "elman"),
    "nobacktrack by pullbacks": (nobacktrack, "equinox_gru"),
    "uoro, rho released": (lambda *model: uoro(*model, rho="released"), "elman"),
    "rank 2": (lambda *model: average(uoro(*model), 2), "elman"),
    "uoro of windows": (lambda *model: uoro(*window(*model)), "elman"),
    "rtrl": (rtrl, "elman"),
    "bptt": (bptt, "elman"),
    "nobacktrack by units": (nobacktrack, "elman"),
    "unbiased(snap1)": (lambda *model: unbiased(snap1(*model)), "elman"),
    "snap1": (snap1, "gru"),
    "snapn": (lambda *model: snapn(*model, order=2), "elman"),
    "sketched, 1 term": (lambda *model: sketched(*model, terms=1), "elman"),
    "sketched, 2 terms": (lambda *model: sketched(*model, terms=2), "elman"),
    "shrunk(snap1)": (lambda *model: shrunk(snap1(*model)), "elman"),
    "rflo": (rflo, "reservoir"),
    "lstm97": (lstm97, "lstm"),
    "kf_rtrl": (kf_rtrl, "elman"),
    "kronecker, no mixing yet": (kronecker, "elman"),
    "kronecker, 1 term": (lambda *model: kronecker(*model, terms=1), "elman"),
    "kronecker, 2 terms": (lambda *model: kronecker(*model, terms=2), "gru"),
    "dni": (dni, "elman"),
    "diffusion": (diffusion, "elman"),
    "readout_only": (readout_only, "elman"),
    "sliding_bptt": (lambda *model: sliding_bptt(*model, length=2, x=jnp.array(0, jnp.int32)), "elman"),
    "bpdc": (bpdc, None),
}
QUICK = ("uoro", "nobacktrack by pullbacks")


def example_of(cell):
    if cell:
        return structured.of_cell(cell)
    example = structured.from_cell("bpdc", cells.feedback_reservoir(3, 4, 2), symbols=False)
    return example._replace(targets=example.targets[:, :2])


def total_loss(make, cell, optimizer=optax.sgd):
    """The loss of a run of four samples, as a function of the learning rate and of a factor of the parameters."""
    example = example_of(cell)
    learner = online(make(example.transition, example.loss), optax.inject_hyperparams(optimizer)(0.1))
    start = learner.init(example.params, example.state, jax.random.key(1))
    xs, targets = example.xs, example.targets
    if learner.update.estimator.model.samples(xs[0] if np.ndim(xs[0]) else xs[:2]) == 2:
        xs, targets = (leaf.reshape(2, 2) for leaf in (xs, targets))

    def total(both):
        rate, factor = both
        settings = start.opt_state._replace(hyperparams={"learning_rate": rate})
        run = start._replace(opt_state=settings, params=jax.tree.map(lambda leaf: factor * leaf, start.params))
        return jnp.sum(learner.scan(run, xs, targets)[1])

    return total


def differences(total, at, size=1e-5):
    """Central differences, compiled once."""
    compiled = jax.jit(total)
    return np.array([(compiled(at + size * unit) - compiled(at - size * unit)) / (2 * size) for unit in np.eye(2)])


AT = jnp.array([0.3, 1.1])


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ESTIMATORS]
)
def test_both_directions_agree_with_differences(name):
    total = total_loss(*ESTIMATORS[name])
    expected = differences(total, AT)
    assert np.all(np.abs(expected) > 1e-6)
    for derivative in (jax.grad(total), jax.jit(jax.grad(total)), jax.jit(jax.jacfwd(total))):
        np.testing.assert_allclose(derivative(AT), expected, rtol=1e-5, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uoro", "nobacktrack by units"])
def test_forward_mode_outside_jit(name):
    total = total_loss(*ESTIMATORS[name])
    np.testing.assert_allclose(jax.jacfwd(total)(AT), jax.jit(jax.jacfwd(total))(AT), rtol=1e-8)


@pytest.mark.slow
def test_through_adam_and_weights_without_gradient():
    """The rows of an embedding whose symbols have not come up have moments of zero."""
    total = total_loss(uoro, "gru", adam)
    np.testing.assert_allclose(jax.jit(jax.grad(total))(AT), differences(total, AT), rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_parallel_streams():
    cell = structured.of_cell("elman")
    learner = online(parallel(uoro(cell.transition, cell.loss), 2), optax.sgd(0.1))
    state = jnp.stack([cell.state, cell.state + 0.1])
    start = learner.init(cell.params, state, jax.random.key(1))
    xs, targets = (leaf.reshape(2, 2) for leaf in (cell.xs, cell.targets))

    def total(both):
        params = jax.tree.map(lambda leaf: both[1] * leaf, start.params)
        return jnp.sum(learner.scan(start._replace(params=params), xs, targets)[1]) + both[0]

    np.testing.assert_allclose(jax.jit(jax.grad(total))(AT), differences(total, AT), rtol=1e-5)
