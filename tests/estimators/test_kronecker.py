"""Optimal Kronecker sums are unbiased, to 1e-10, and add exactly the noise that the paper proves to be the least."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import structured

from norewind import average, cells, window
from norewind.core import ModelError, losses
from norewind.estimators import kronecker
from norewind.estimators.kronecker import reduce
from norewind.testing import check_unbiased


def two_terms(*model, **options):
    return kronecker(*model, terms=2, **options)


def one_term(*model, **options):
    return kronecker(*model, terms=1, **options)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_it_is_unbiased(name):
    # Two terms represent two steps without noise. Four more steps have noise, three of which affect a gradient.
    check_unbiased(two_terms, models=[structured.of_cell(name, 1 if name == "lstm" else 2, 6)])


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_windows_and_averages_are_unbiased():
    def both(*model, noise):
        return average(one_term(*window(*model), noise=noise), 2)

    check_unbiased(both, window=2, models=[structured.of_cell("elman", 2, 6)])


def tail_of(values):
    """The longest tail with (its length − 1) · (its largest value) ≤ its sum."""
    tails = [values[i:] for i in range(len(values))]
    return next(tail for tail in tails if (len(tail) - 1) * tail[0] <= tail.sum() + 1e-12)


reduce_by_each = jax.jit(jax.vmap(reduce, (None, None, 0)))


def all_signs(left, right):
    """Return every possible result of a reduction."""
    terms = len(left) - 1
    signs = np.array(list(product([1.0, -1.0], repeat=terms)))
    lefts, rights = reduce_by_each(left, right, signs)
    assert lefts.shape[1:] == (terms, left.shape[1])
    assert rights.shape[1:] == (terms, right.shape[1])
    return np.einsum("sti,stj->sij", lefts, rights)


# Singular values, and the length of the tail that is mixed:
SPECTRA = {
    "alike": ([1.0, 1.0, 1.0, 1.0], 4),
    "nearly alike": ([1.3, 1.1, 1.0, 0.9], 4),
    "one large": ([50.0, 1.2, 1.0, 0.9], 3),
    "two large": ([60.0, 50.0, 2.0, 1.0], 2),
    "one zero": ([3.0, 1.0, 0.7, 0.0], 2),
    "zero": ([0.0, 0.0, 0.0, 0.0], 4),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", SPECTRA)
def test_a_reduction_is_unbiased_with_the_least_noise(name):
    rng = np.random.default_rng(1)
    values, length = np.array(SPECTRA[name][0]), SPECTRA[name][1]
    mix, outer, inner = rng.normal(size=(4, 4)), *(np.linalg.qr(rng.normal(size=(n, 4)))[0] for n in (7, 11))
    left, right = mix @ (outer * values).T, np.linalg.inv(mix).T @ inner.T
    exact, sums = left.T @ right, all_signs(jnp.array(left), jnp.array(right))
    tail = tail_of(values)
    assert len(tail) == length
    noise = np.mean(np.sum((sums - exact) ** 2, axis=(1, 2)))
    least = tail.sum() ** 2 / (len(tail) - 1) - np.sum(tail**2)
    assert np.max(np.abs(sums.mean(axis=0) - exact)) < 1e-10
    assert abs(noise - least) < 1e-10


@pytest.mark.usefixtures("x64")
def test_it_takes_more_terms_than_there_are_inputs():
    left, right = np.random.default_rng(2).normal(size=(2, 5, 3))
    sums = all_signs(jnp.array(left), jnp.array(right))
    assert np.max(np.abs(sums - left.T @ right)) < 1e-10  # a matrix of rank three is a sum of four terms


WRONG = {
    "same noise at every step": lambda old, new: new._replace(key=old.key),
    "A not rescaled": lambda old, new: new._replace(A=1.1 * new.A),
    "stale A": lambda old, new: new._replace(A=old.A),
    "terms in another order": lambda old, new: new._replace(A=new.A[::-1]),
    "last term dropped": lambda old, new: new._replace(A=new.A.at[-1].set(0)),
}


@pytest.mark.usefixtures("x64")
def test_mutants_are_caught():
    structured.check_mutants_of_the_carry(two_terms, WRONG, structured.of_cell("elman", 2, 5))


def test_unsupported_models_raise_errors():
    with pytest.raises(ModelError, match="kronecker needs an affine layer"):
        kronecker(cells.lstm(3, 2, 3).transition, losses.cross_entropy)
    with pytest.raises(ModelError, match="kronecker: terms must be at least 1"):
        kronecker(cells.elman(3, 2, 3).transition, losses.cross_entropy, terms=0)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("terms", "rank", "width"), [(1, 1, 4), (1, 2, 4), (4, 1, 8), (4, 4, 8), (4, 5, 8), (4, 3, 3)])
def test_derivatives_agree_with_differences(terms, rank, width):
    """They exist while there are fewer products than the reduction has room for, as after a zero carry."""
    is_used = np.arange(terms + 1)[:, None] > terms - rank
    left, right, left_dot, right_dot = (
        np.random.default_rng(seed).normal(size=(terms + 1, size)) * is_used
        for seed, size in enumerate((width, 9, width, 9))
    )
    signs = np.array([1.0, -1.0, -1.0, 1.0])[:terms]

    @jax.jit
    def along(t):
        new_left, new_right = reduce(left + t * left_dot, right + t * right_dot, signs)
        return new_left.T @ new_right

    expected = (along(1e-5) - along(-1e-5)) / 2e-5
    np.testing.assert_allclose(jax.jacfwd(along)(0.0), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(jax.jacrev(along)(0.0), expected, rtol=1e-6, atol=1e-6)
