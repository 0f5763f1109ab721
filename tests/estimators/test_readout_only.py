"""Training the readout alone: exact for the readout, with the recurrent part left as it is."""

import jax
import models
import numpy as np
import pytest
from reservoirs import feedback, liquid, reservoir
from structured import grads_of

from norewind.core import ModelError
from norewind.core.structure import reaches_state
from norewind.estimators import readout_only
from norewind.testing import check_estimator, exact_grads
from norewind.testing import example as built_in


@pytest.mark.slow
def test_readout_only_conformance():
    check_estimator(readout_only, models=[built_in("user_made"), liquid()])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("make", [reservoir, liquid])
def test_readout_gradient_is_that_of_autodiff_with_the_reservoir_stopped(make):
    example = make()

    def stopped(params, state, x):
        frozen = {name: leaf if name == "readout" else jax.lax.stop_gradient(leaf) for name, leaf in params.items()}
        return example.transition(frozen, state, x)

    wanted = exact_grads(stopped, example.loss, example.params, example.state, example.xs, example.targets)
    got = grads_of(readout_only(example.transition, example.loss), example)
    worst = jax.tree.map(lambda a, b: float(np.max(np.abs(np.asarray(a) - np.asarray(b)))), got, wanted)
    assert max(jax.tree.leaves(worst)) < 1e-10
    assert np.all(np.any(np.asarray(got["readout"]["weight"]) != 0, axis=(1, 2)))


def test_readout_only_rejects_a_model_without_a_readout():
    example = feedback()
    estimator = readout_only(example.transition, example.loss)
    with pytest.raises(ModelError, match="there is no readout to train"):
        jax.eval_shape(estimator.step, example.params, example.state, (), example.xs[0], example.targets[0])


@pytest.mark.parametrize("name", ["equinox_gru", "flax_gru", "haiku_gru", "surrogate_spikes", "checkpointed"])
def test_the_readout_is_found_in_models_of_all_kinds(name):
    example = getattr(models, name)()
    x = jax.tree.map(lambda leaf: leaf[0], example.xs)
    reach = reaches_state(example.transition, example.params, example.state, x)
    passing = [path[0].key for path, reaches in jax.tree_util.tree_leaves_with_path(reach) if not reaches]
    assert set(passing) == {"out" if name == "surrogate_spikes" else "readout"}
