"""Products of experts: probabilities multiplied with exponents that are learned online."""

import numpy as np

from norewind.engines.kernels import kernel

# The curvature of the loss that the first exponents count as, and how much of a row's curvature is kept.
PRIOR_CURVATURE, KEPT_CURVATURE = 5.0, 0.999
# The least probability that is multiplied.
LEAST = 1e-5


@kernel
def write_product(exponents, probabilities, product):
    """Write the normalised product of experts' probabilities, each raised to its exponent.

    Args:
        exponents: the exponent of each expert.
        probabilities: the probabilities of the classes (experts, classes).
        product: where to write the product (classes).
    """
    product[:] = 0.0
    for e in range(len(exponents)):
        for k in range(len(product)):
            product[k] += exponents[e] * np.log(max(probabilities[e, k], LEAST))
    largest, total = product.max(), 0.0
    for k in range(len(product)):
        product[k] = np.exp(product[k] - largest)
        total += product[k]
    for k in range(len(product)):
        product[k] /= total


@kernel
def learn_exponents(exponents, curvature, probabilities, target):
    """Take a Newton step on the log-loss of a class, which is convex in the exponents.

    Args:
        exponents: the exponent of each expert, changed in place.
        curvature: the sum of second derivatives, of which the older ones count less (experts, experts), changed in
            place.
        probabilities: the probabilities of the classes (experts, classes).
        target: the class.
    """
    experts, classes = probabilities.shape
    product, logs, step = np.empty(classes), np.empty((experts, classes)), np.empty(experts)
    write_product(exponents, probabilities, product)
    for e in range(experts):
        mean = 0.0
        for k in range(classes):
            logs[e, k] = np.log(max(probabilities[e, k], LEAST))
            mean += product[k] * logs[e, k]
        for k in range(classes):
            logs[e, k] -= mean
        step[e] = logs[e, target]
    for e in range(experts):
        for other in range(e + 1):
            total = KEPT_CURVATURE * curvature[e, other]
            if e == other:
                total += (1 - KEPT_CURVATURE) * PRIOR_CURVATURE
            for k in range(classes):
                total += product[k] * logs[e, k] * logs[other, k]
            curvature[e, other] = curvature[other, e] = total
    solve(curvature.copy(), step)
    for e in range(experts):
        exponents[e] += step[e]


@kernel
def solve(matrix, vector):
    """Solve equations with a symmetric, positive definite matrix by Cholesky's method.

    Args:
        matrix: the matrix, which is overwritten.
        vector: the right-hand side; the solution is written to it.
    """
    size = len(vector)
    for i in range(size):
        for j in range(i + 1):
            total = matrix[i, j]
            for k in range(j):
                total -= matrix[i, k] * matrix[j, k]
            matrix[i, j] = np.sqrt(total) if i == j else total / matrix[j, j]
        for k in range(i):
            vector[i] -= matrix[i, k] * vector[k]
        vector[i] /= matrix[i, i]
    for i in range(size - 1, -1, -1):
        for k in range(i + 1, size):
            vector[i] -= matrix[k, i] * vector[k]
        vector[i] /= matrix[i, i]
