"""`unbiased` completes every approximation: the mean over every path of the noise is the exact gradient, to 1e-10."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import structured
from quick import slow_but

from norewind import average, bptt, parallel, rtrl, unbiased, uoro, window
from norewind.core import ModelError
from norewind.core.estimator import Influence
from norewind.estimators import lstm97, nobacktrack, rflo, sketched, snap1
from norewind.testing import check_exact, check_unbiased, example
from norewind.testing.oracles import run_estimator


def sketched_1(transition, loss):
    return sketched(transition, loss, terms=1)


def arbitrary(transition, loss):
    """An approximation of no use: D has the same number in every entry, and its own update."""

    def product(params, row, matrix):
        total = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(row))
        return jax.tree.map(lambda leaf: total * matrix * jnp.ones_like(leaf), params)

    influence = Influence(
        init=lambda params, state: jnp.zeros(()),
        advance=lambda params, state, matrix, x, point: jnp.sin(1 + matrix),
        product=product,
    )
    return bptt(transition, loss)._replace(influence=influence)


SLOW = pytest.mark.slow
APPROXIMATIONS = [
    # a method that carries an approximation of the influence, and a model that it completes
    pytest.param(snap1, "embedding"),
    pytest.param(sketched_1, "rnn"),
    pytest.param(snap1, "rnn", marks=SLOW),
    pytest.param(rflo, "lstm", marks=SLOW),
    pytest.param(sketched_1, "lstm", marks=SLOW),
    pytest.param(sketched_1, "gru_after", marks=SLOW),
    pytest.param(snap1, "lstm", marks=SLOW),
    pytest.param(snap1, "gru", marks=SLOW),
    pytest.param(rflo, "gru", marks=SLOW),
    pytest.param(rflo, "elman", marks=SLOW),
    pytest.param(lstm97, "lstm", marks=SLOW),
]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("method", "name"), APPROXIMATIONS)
def test_it_is_unbiased(method, name):
    hidden = 1 if name in ("lstm", "embedding") else 2
    check_unbiased(
        lambda *model, noise: unbiased(method(*model), noise=noise), models=[structured.of_cell(name, hidden)]
    )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", slow_but(["rnn", "user_made"], "user_made"))
def test_it_is_unbiased_for_an_approximation_of_no_use(name):
    check_unbiased(lambda *model, noise: unbiased(arbitrary(*model), noise=noise), models=[example(name)])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("method", "name"),
    [pytest.param(name, cell, marks=SLOW) for name, cell in ((snap1, "rnn"), (snap1, "lstm"), (sketched_1, "rnn"))],
)
def test_windows_and_averages_are_unbiased(method, name):
    def both(*model, noise):
        return average(unbiased(method(*window(*model)), noise=noise), 2)

    hidden = 1 if name == "lstm" else 2
    check_unbiased(both, window=2, models=[structured.of_cell(name, hidden, 6)])


@pytest.mark.usefixtures("x64")
def test_it_is_exact_where_nothing_is_left_over():
    check_exact(lambda *model: unbiased(snap1(*model)), models=[structured.turning(), structured.spinning()])
    check_exact(lambda *model: unbiased(rtrl(*model)), models=[example("gru")])


def test_without_an_approximation_it_is_uoro():
    """Test `uoro` against `unbiased` of a method whose D is zero, but not known to be."""
    model = example("rnn", length=8)
    zero = arbitrary(*model[3:5])
    zero = zero._replace(influence=zero.influence._replace(advance=lambda params, state, matrix, x, point: 0 * matrix))
    ones = uoro(*model[3:5]), unbiased(zero)
    carries = [one.init(model.params, model.state, jax.random.key(1)) for one in ones]
    assert carries[0].approximation == ()
    grads = [run_estimator(one, model, carry)[2].grad for one, carry in zip(ones, carries, strict=True)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), *grads)


@pytest.mark.slow
@pytest.mark.parametrize("method", [snap1, sketched_1])
def test_fast_means_are_the_means(method):
    """The mean over carries or streams is that of single steps."""
    model = structured.of_cell("lstm")
    one = unbiased(method(*model[3:5]))
    for combined, slow in (
        (average(one, 3), average(one._replace(fast_means=type(one.fast_means)()), 3)),
        (parallel(one, 3), parallel(one._replace(fast_means=type(one.fast_means)()), 3)),
    ):
        streams = combined.model is not one.model
        data = jax.tree.map(lambda leaf: np.stack([leaf] * 3, axis=1), model[5:]) if streams else model[5:]
        state = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf, -leaf]), model.state) if streams else model.state
        case = model._replace(state=state, xs=data[0], targets=data[1])
        carry = combined.init(case.params, case.state, jax.random.key(2))
        grads = [run_estimator(estimator, case, carry)[2].grad for estimator in (combined, slow)]
        assert jax.tree.all(jax.tree.map(lambda a, b: np.allclose(a, b, rtol=1e-4, atol=1e-6), *grads))


@pytest.mark.parametrize("make", [nobacktrack, uoro, lambda *model: average(snap1(*model), 2)])
def test_it_rejects_methods_without_an_approximation(make):
    model = structured.of_cell("elman")
    with pytest.raises(ModelError, match="carries a deterministic approximation of the influence"):
        unbiased(make(*model[3:5]))


def test_it_rejects_other_things():
    with pytest.raises(ModelError, match="unbiased"):
        unbiased(snap1)
    with pytest.raises(ValueError, match="'paper', 'released'"):
        unbiased(bptt(*example("rnn")[3:5]), rho="authors")


def completed(*model, noise):
    return unbiased(snap1(*model), noise=noise)


# A step takes a row along the traces three times in `unbiased`: before the step, after it, and for the gradient; these
# are factors for each.
WRONG_PRODUCTS = {
    "old traces not taken on": (0, 1, 1),
    "new traces not taken off": (1, 0, 1),
    "new traces taken off twice": (1, 2, 1),
    "traces dropped from the gradient": (1, 1, 0),
}


@pytest.mark.usefixtures("x64")
def test_mutants_of_the_products_are_caught():
    table = jnp.array([(1, 1, 1), *WRONG_PRODUCTS.values()], float)

    def mutant(number):
        def make(*model, noise):
            whole = snap1(*model)
            factors = list(table[number])

            def product(params, row, traces):
                factors.append(factors.pop(0))
                return structured.scaled(factors[-1], whole.influence.product(params, row, traces))

            return unbiased(whole._replace(influence=whole.influence._replace(product=product)), noise=noise)

        return make

    true, *wrong = structured.mean_errors(mutant, len(table), structured.of_cell("lstm", 1, 3))
    assert true < 1e-10
    for name, error in zip(WRONG_PRODUCTS, wrong, strict=True):
        assert error > 1e-6, f"not caught: {name}"


WRONG_CARRIES = {
    "same noise at every step": lambda old, new: new._replace(key=old.key),
    "theta~ not rescaled": lambda old, new: new._replace(theta_tilde=structured.scaled(1.1, new.theta_tilde)),
    "wrong sign of s~": lambda old, new: new._replace(s_tilde=structured.scaled(-1, new.s_tilde)),
    "no noise": lambda old, new: new._replace(s_tilde=structured.scaled(0, new.s_tilde)),
    "stale s~": lambda old, new: new._replace(s_tilde=old.s_tilde),
    "stale traces": lambda old, new: new._replace(approximation=old.approximation),
}


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_mutants_of_the_carry_are_caught():
    structured.check_mutants_of_the_carry(completed, WRONG_CARRIES, structured.of_cell("elman"))
