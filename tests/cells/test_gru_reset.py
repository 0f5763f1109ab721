"""gru(reset="after") is the GRU of PyTorch, with its weights; the default is the GRU of the paper's authors."""

import jax
import numpy as np
import pytest
import structured

from norewind import cells
from norewind.core.structure import structure_of
from norewind.estimators import nobacktrack
from norewind.testing import run_estimator

HIDDEN, INPUTS = 4, 3


def torch_gru_cell(weight_ih, weight_hh, bias_ih, bias_hh, x, h):
    """The formula in the documentation of torch.nn.GRUCell, whose blocks stand in the order r, z, n."""
    (w_ir, w_iz, w_in), (w_hr, w_hz, w_hn) = np.split(weight_ih, 3), np.split(weight_hh, 3)
    (b_ir, b_iz, b_in), (b_hr, b_hz, b_hn) = np.split(bias_ih, 3), np.split(bias_hh, 3)
    r = structured.sigmoid(w_ir @ x + b_ir + w_hr @ h + b_hr)
    z = structured.sigmoid(w_iz @ x + b_iz + w_hz @ h + b_hz)
    n = np.tanh(w_in @ x + b_in + r * (w_hn @ h + b_hn))
    return (1 - z) * n + z * h


@pytest.mark.usefixtures("x64")
def test_it_computes_what_torch_documents():
    rng = np.random.default_rng(0)
    weight_ih, weight_hh = rng.normal(size=(3 * HIDDEN, INPUTS)), rng.normal(size=(3 * HIDDEN, HIDDEN))
    bias_ih, bias_hh = rng.normal(size=(2, 3 * HIDDEN))
    cell = cells.gru(INPUTS, HIDDEN, 2, symbols=False, reset="after")
    shapes = jax.eval_shape(cell.init, jax.random.key(0))
    params = {
        "input": weight_ih.T,
        "gates": weight_hh[: 2 * HIDDEN],
        "candidate": weight_hh[2 * HIDDEN :],
        "bias": np.concatenate(
            [bias_ih[: 2 * HIDDEN] + bias_hh[: 2 * HIDDEN], bias_ih[2 * HIDDEN :], bias_hh[2 * HIDDEN :]]
        ),
        "readout": {"weight": rng.normal(size=(2, HIDDEN)), "bias": rng.normal(size=2)},
    }
    assert jax.tree.map(np.shape, params) == jax.tree.map(lambda leaf: leaf.shape, shapes)
    state = expected = rng.normal(size=HIDDEN)
    step = jax.jit(cell.transition)
    for x in rng.normal(size=(5, INPUTS)):
        state, output = step(params, state, x)
        expected = torch_gru_cell(weight_ih, weight_hh, bias_ih, bias_hh, x, expected)
        np.testing.assert_allclose(state, expected, rtol=1e-12)
        np.testing.assert_allclose(output, params["readout"]["weight"] @ expected + params["readout"]["bias"])


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_every_weight_feeds_one_unit():
    """The fast way to compute NoBackTrack's row norms equals the general one."""
    model = structured.of_cell("gru_after")
    carries = []
    for transition in (model.transition, structured.undeclared(model.transition)):
        estimator = nobacktrack(transition, model.loss)
        carry = estimator.init(model.params, model.state, jax.random.key(0))
        _, carry, _ = jax.jit(lambda carry, e=estimator: run_estimator(e, model, carry))(carry)
        carries.append(jax.tree.leaves((carry.s_tilde, carry.theta_tilde)))
    for a, b in zip(*carries, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_the_default_is_the_reset_before_the_product():
    default = cells.gru(3, 4, 2)
    assert jax.eval_shape(default.init, jax.random.key(0))["bias"].shape == (12,)
    assert structure_of(default.transition).units is None  # a reset gate reaches all units
    with pytest.raises(ValueError, match='reset must be "before" or "after"'):
        cells.gru(3, 4, 2, reset="between")
