"""UORO and its extensions are unbiased: the mean over every path of the noise is the exact gradient, to 1e-10.

The mutants at the end are wrong on purpose; the oracle must catch each of them.
"""

import jax
import jax.numpy as jnp
import models
import pytest

from norewind import average, uoro, window
from norewind.estimator import Estimate, Estimator, linearise, model_of, zeros_like
from norewind.estimators.uoro import Carry
from norewind.testing import check_unbiased, examples
from norewind.trees import norm, real_leaves

pytestmark = pytest.mark.usefixtures("x64")

NAMES = [example.name for example in examples()]


def example_named(name, length):
    return next(example for example in examples(length=length) if example.name == name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rho", ["paper", "released"])
def test_uoro(name, rho):
    check_unbiased(lambda *model, noise: uoro(*model, noise=noise, rho=rho), models=[example_named(name, 4)])


@pytest.mark.parametrize("name", NAMES)
def test_memory_2(name):
    check_unbiased(lambda *model, noise: uoro(*window(*model), noise=noise), memory=2, models=[example_named(name, 6)])


@pytest.mark.parametrize("name", NAMES)
def test_rank_2(name):
    check_unbiased(lambda *model, noise: average(uoro(*model, noise=noise), 2), models=[example_named(name, 3)])


@pytest.mark.parametrize("name", NAMES)
def test_memory_2_and_rank_2(name):
    check_unbiased(
        lambda *model, noise: average(uoro(*window(*model), noise=noise), 2),
        memory=2,
        models=[example_named(name, 6)],
    )


@pytest.mark.parametrize("model", models.LIBRARIES + models.ODD, ids=lambda model: model.__name__)
def test_models_of_other_libraries_and_odd_ones(model):
    check_unbiased(uoro, models=[model()])


def mutant(transition, loss, *, noise, mutation=None):
    """UORO again, written plainly, with one thing wrong (or nothing, to show that the rest is right)."""
    model = model_of(transition, loss)

    def init(params, state, key):
        return Carry(zeros_like(real_leaves(state)), zeros_like(params), key)

    def step(params, state, carry, x, target):
        run = linearise(model, params, state, x, target)
        pushed, slope = run.jvp(carry.s_tilde)
        if mutation == "stale s~":
            pushed = carry.s_tilde
        direct = run.vjp(zeros_like(pushed), jnp.ones_like(run.loss))[1]
        nu, key = noise(carry.key, pushed)
        if mutation == "same noise at every step":
            key = carry.key
        back = run.vjp(nu, jnp.zeros_like(run.loss))[1]
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
        new = Carry(mix("push", pushed, "nu", nu), mix("keep", carry.theta_tilde, "back", back), key)
        if mutation == "gradient from the new carry":
            grad = jax.tree.map(lambda t, d: slope * t + d, new.theta_tilde, direct)
        return run.state, new, Estimate(run.loss, grad, run.output)

    return Estimator(init, step, model)


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
    check_unbiased(mutant, models=[example_named("gru", 4), example_named("user_made", 4)])


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_mutants_are_caught(mutation):
    with pytest.raises(AssertionError, match="mean gradient is biased"):
        check_unbiased(
            lambda *model, noise: mutant(*model, noise=noise, mutation=mutation), models=[example_named("gru", 4)]
        )
