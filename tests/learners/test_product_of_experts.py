"""Products of experts, compared with NumPy: each step is Newton's, and dependent experts are not counted twice."""

import numpy as np

from norewind.learners.product_of_experts import (
    KEPT_CURVATURE,
    LEAST,
    PRIOR_CURVATURE,
    learn_exponents,
    solve,
    write_product,
)

RANDOM = np.random.default_rng(0)


def start(experts):
    return np.full(experts, 1 / experts), PRIOR_CURVATURE * np.eye(experts)


def test_each_step_is_newtons_with_forgetting():
    exponents, curvature = start(4)
    expected, sums = start(4)
    for _ in range(30):
        probabilities, target = RANDOM.dirichlet(np.full(3, 0.3), size=4), RANDOM.integers(3)
        logs = np.log(np.maximum(probabilities, LEAST))
        product = np.exp(expected @ logs)
        product /= product.sum()
        found = np.empty(3)
        write_product(exponents, probabilities, found)
        np.testing.assert_allclose(found, product, rtol=1e-9)
        learn_exponents(exponents, curvature, probabilities, target)
        spread = logs - (logs @ product)[:, None]
        sums = KEPT_CURVATURE * sums + (1 - KEPT_CURVATURE) * PRIOR_CURVATURE * np.eye(4)
        sums += (spread * product) @ spread.T
        expected = expected + np.linalg.solve(sums, spread[:, target])
        np.testing.assert_allclose(exponents, expected, rtol=1e-9)
    np.testing.assert_allclose(curvature, sums, rtol=1e-9)


def test_cholesky_solves_equations():
    root = RANDOM.normal(size=(6, 8))
    matrix, vector = root @ root.T, RANDOM.normal(size=6)
    solution = vector.copy()
    solve(matrix.copy(), solution)
    np.testing.assert_allclose(matrix @ solution, vector, rtol=1e-9)


def test_the_exponents_of_repeated_experts_add_up_to_one_and_a_useless_one_is_left_out():
    exponents, curvature = start(3)
    for _ in range(3_000):
        truth = RANDOM.dirichlet(np.ones(2))
        probabilities = np.stack([truth, truth, RANDOM.dirichlet(np.ones(2))])
        learn_exponents(exponents, curvature, probabilities, int(RANDOM.random() > truth[0]))
    assert abs(exponents[:2].sum() - 1) < 0.2
    assert abs(exponents[2]) < 0.1
