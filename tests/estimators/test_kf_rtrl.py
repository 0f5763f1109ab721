"""KF-RTRL is unbiased: the mean over every path of the noise is the exact gradient, to 1e-10."""

import jax
import pytest
import structured

from norewind import average, cells, declare, window
from norewind.core import ModelError, losses
from norewind.estimators import kf_rtrl
from norewind.testing import check_structure, check_unbiased


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["gru", "gru_after", "lstm"])
def test_it_is_unbiased(name):
    check_unbiased(kf_rtrl, models=[structured.of_cell(name, 1 if name == "lstm" else 2)])


@pytest.mark.usefixtures("x64")
def test_windows_and_averages_are_unbiased():
    def both(*model, noise):
        return average(kf_rtrl(*window(*model), noise=noise), 2)

    check_unbiased(both, window=2, models=[structured.of_cell("elman", 2, 6)])


WRONG = {
    "same noise at every step": lambda old, new: new._replace(key=old.key),
    "A not rescaled": lambda old, new: new._replace(A=1.1 * new.A),
    "wrong sign of A": lambda old, new: new._replace(A=-new.A),
    "stale A": lambda old, new: new._replace(A=old.A),
    "stale u": lambda old, new: new._replace(u=old.u),
    "only the new u": lambda old, new: new._replace(u=jax.tree.map(lambda a, b: a - b, new.u, old.u)),
    "no past": lambda old, new: new._replace(u=structured.scaled(0, new.u)),
}


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_mutants_are_caught():
    structured.check_mutants_of_the_carry(kf_rtrl, WRONG, structured.of_cell("elman"))


def test_it_rejects_models_without_an_affine_layer():
    for transition in (structured.black_box, cells.lstm(3, 2, 3).transition):
        with pytest.raises(ModelError, match="kf_rtrl needs an affine layer.*does not declare layer"):
            kf_rtrl(transition, losses.cross_entropy)
        with pytest.raises(ModelError, match="kf_rtrl needs an affine layer"):
            kf_rtrl(*window(transition, losses.cross_entropy))


def test_a_false_layer_is_caught():
    example = structured.of_cell("gru")
    layer = example.transition.structure.layer

    def false(params, state, x):
        return layer.inputs(params, state, x) | {"candidate": state}  # without the reset gate

    told = declare(example.transition.transition, layer=layer._replace(inputs=false))
    with pytest.raises(AssertionError, match="params\\['candidate'\\] does not act through the declared layer"):
        check_structure(told, example.params, example.state, example.xs[0])


def test_it_rejects_weights_outside_the_layer():
    cell = cells.elman(3, 2, 3)
    example = structured.from_cell("outside", cell)

    def gained(params, state, x):
        state, output = cell.transition(params["cell"], state, x)
        return params["gain"] * state, output

    layer = cell.transition.structure.layer
    told = structured.wrapped_layer(gained, layer)
    params = {"cell": example.params, "gain": 1.0}
    estimator = kf_rtrl(told, example.loss)
    carry = estimator.init(params, example.state, jax.random.key(0))
    with pytest.raises(ModelError, match="params\\['gain'\\] reaches the state, but not through the affine layer"):
        jax.eval_shape(estimator.step, params, example.state, carry, example.xs[0], example.targets[0])
