"""UORO and its extensions are unbiased: the mean over every path of the noise is the exact gradient, to 1e-10.

The mutants at the end are wrong on purpose, and `check_unbiased` must catch each of them.
"""

import jax
import jax.numpy as jnp
import models
import pytest
from quick import slow_but

from norewind import average, uoro, window
from norewind.core.estimator import Estimate, Estimator, linearise, model_of
from norewind.core.trees import norm, real_leaves, zeros_like
from norewind.estimators.uoro import UOROCarry
from norewind.testing import EXAMPLES, check_unbiased, example

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("name", EXAMPLES)
def test_uoro(name):
    check_unbiased(uoro, models=[example(name)])


@pytest.mark.parametrize("name", slow_but(EXAMPLES, "gru", "user_made"))
def test_the_released_normalisers(name):
    check_unbiased(lambda *model, noise: uoro(*model, noise=noise, rho="released"), models=[example(name)])


@pytest.mark.parametrize("name", slow_but(EXAMPLES, "user_made"))
def test_window_of_2(name):
    check_unbiased(lambda *model, noise: uoro(*window(*model), noise=noise), window=2, models=[example(name, length=6)])


@pytest.mark.parametrize("name", slow_but(EXAMPLES, "rnn", "user_made"))
def test_rank_2(name):
    check_unbiased(lambda *model, noise: average(uoro(*model, noise=noise), 2), models=[example(name, length=3)])


@pytest.mark.parametrize("name", slow_but(EXAMPLES, "user_made"))
def test_window_of_2_and_rank_2(name):
    check_unbiased(
        lambda *model, noise: average(uoro(*window(*model), noise=noise), 2),
        window=2,
        models=[example(name, length=6)],
    )


@pytest.mark.parametrize(
    "model",
    slow_but(models.LIBRARIES, "equinox_gru", "flax_lstm", "haiku_gru") + models.ODD,
    ids=lambda model: model.__name__,
)
def test_models_of_other_libraries_and_unusual_ones(model):
    check_unbiased(uoro, models=[model()])


def mutant(transition, loss, *, noise, mutation=None):
    """A plain UORO with one mutation, or with none, to show that the rest is right."""
    model = model_of(transition, loss)

    def init(params, state, key):
        return UOROCarry(zeros_like(real_leaves(state)), zeros_like(params), key)

    def step(params, state, carry, x, target):
        point = linearise(model, params, state, x, target)
        pushed, slope = point.jvp(carry.s_tilde)
        if mutation == "stale s~":
            pushed = carry.s_tilde
        direct = point.vjp(zeros_like(pushed), jnp.ones_like(point.loss))[1]
        nu, key = noise(carry.key, pushed)
        if mutation == "same noise at every step":
            key = carry.key
        back = point.vjp(nu, jnp.zeros_like(point.loss))[1]
        rho0 = jnp.sqrt(norm(carry.theta_tilde) / (norm(pushed) + 1e-7)) + 1e-7
        rho1 = jnp.sqrt(norm(back) / (norm(nu) + 1e-7)) + 1e-7
        terms = {"past": slope, "direct": 1.0, "push": rho0, "nu": rho1, "keep": 1 / rho0, "back": 1 / rho1}
        terms.update(
            {
                "drop the past": {"past": 0.0},
                "drop the direct term": {"direct": 0.0},
                "drop the noise": {"nu": 0.0},
                "drop the pushed s~": {"push": 0.0},
                "drop the pulled back noise": {"back": 0.0},
                "wrong sign of the past": {"past": -slope},
                "wrong sign of the noise": {"nu": -rho1},
                "wrong sign of the pushed s~": {"push": -rho0},
                "theta~ not rescaled": {"keep": 1.0},
                "s~ not rescaled": {"push": 1.0},
                "noise not rescaled": {"back": 1.0},
            }.get(mutation, {})
        )

        def mix(a, x, b, y):
            return jax.tree.map(lambda u, v: terms[a] * u + terms[b] * v, x, y)

        grad = mix("past", carry.theta_tilde, "direct", direct)
        new = UOROCarry(mix("push", pushed, "nu", nu), mix("keep", carry.theta_tilde, "back", back), key)
        if mutation == "gradient from the new carry":
            grad = jax.tree.map(lambda t, d: slope * t + d, new.theta_tilde, direct)
        return point.state, new, Estimate(point.loss, grad, point.output)

    return Estimator.build(init, step, model)


MUTATIONS = [
    "stale s~",
    "same noise at every step",
    "drop the past",
    "drop the direct term",
    "drop the noise",
    "drop the pushed s~",
    "drop the pulled back noise",
    "wrong sign of the past",
    "wrong sign of the noise",
    "wrong sign of the pushed s~",
    "theta~ not rescaled",
    "s~ not rescaled",
    "noise not rescaled",
    "gradient from the new carry",
]


def test_the_mutant_without_a_mutation_is_right():
    check_unbiased(mutant, models=[example("gru"), example("user_made")])


@pytest.mark.parametrize("mutation", slow_but(MUTATIONS, *MUTATIONS[::3]))
def test_mutants_are_caught(mutation):
    with pytest.raises(AssertionError, match="mean gradient is biased"):
        check_unbiased(lambda *model, noise: mutant(*model, noise=noise, mutation=mutation), models=[example("gru")])
