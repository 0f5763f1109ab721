"""Proofs of the claims of an estimator and the declarations of a model, by plain autodiff. Nothing is left to chance.

A tolerance of 1e-10 needs float64: use `jax.enable_x64` (or `jax_enable_x64`).
"""

from collections.abc import Callable
from functools import partial
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from norewind.core.estimator import Estimate, Estimator, Loss, Transition
from norewind.core.trees import Tree, is_prng_key, named_leaves
from norewind.testing.examples import Example, examples
from norewind.testing.paths import path_signs, sign_paths, signs_per_key

MakeEstimator = Callable[..., Estimator]
# One check of a conformance suite: a named function that raises an AssertionError if the check fails.
Check = Callable[[], None]


def run_estimator(estimator: Estimator, example: Example, carry: Tree) -> tuple[Tree, Tree, Estimate]:
    """Run an estimator on an example with frozen parameters.

    Args:
        estimator: an estimator of the example's model.
        example: the model and its samples.
        carry: the carry to start from, e.g. from `estimator.init`.

    Returns:
        The final state, the final carry, and all estimates along a leading axis.
    """

    def body(loop, inputs):
        state, carry, estimate = estimator.step(example.params, *loop, *inputs)
        return (state, carry), estimate

    (state, carry), estimates = jax.lax.scan(body, (example.state, carry), (example.xs, example.targets))
    return state, carry, estimates


@partial(jax.jit, static_argnums=(0, 1))
def exact_grads(transition: Transition, loss: Loss, params: Tree, state: Tree, xs: Tree, targets: Tree) -> Tree:
    """Compute the exact gradient of the loss of every step, through the whole past: BPTT by plain autodiff.

    Args:
        transition: the model, `transition(params, state, x) -> (new_state, output)`.
        loss: the loss, `loss(output, target)`.
        params: the parameters.
        state: the initial state.
        xs: the inputs along a leading axis.
        targets: the targets, likewise.

    Returns:
        The gradients, shaped like the parameters, with a leading axis of steps.
    """

    def step_losses(params):
        def body(state, inputs):
            x, target = inputs
            state, output = transition(params, state, x)
            return state, loss(output, target)

        return jax.lax.scan(body, state, (xs, targets))[1]

    return jax.jacrev(step_losses)(params)


def windows(example: Example, window: int) -> Example:
    """Group the samples of an example into windows.

    Args:
        example: an example with single samples.
        window: the number of samples in one step.
    """
    if window == 1:
        return example
    return example._replace(xs=_cut(example.xs, window), targets=_cut(example.targets, window))


def _cut(tree: Tree, window: int) -> Tree:
    return jax.tree.map(lambda leaf: np.reshape(leaf, (-1, window, *leaf.shape[1:])), tree)


def check_exact(
    make_estimator: MakeEstimator, *, window: int = 1, tolerance: float = 1e-10, models: list[Example] | None = None
) -> None:
    """Assert that an estimator's gradients are exact at every step.

    Args:
        make_estimator: builds the estimator, as `make_estimator(transition, loss)`.
        window: the length of the windows, if the estimator takes windows.
        tolerance: the largest difference allowed.
        models: the examples to use, instead of all.

    Raises:
        AssertionError: a gradient is not exact.
        ValueError: the tolerance needs float64, and it is off.

    >>> import jax, norewind
    >>> with jax.enable_x64(True):
    ...     norewind.testing.check_exact(norewind.rtrl, models=norewind.testing.examples()[:1])
    """
    for example in models or examples():
        estimator = make_estimator(example.transition, example.loss)
        _assert_exact(estimator, example, window, tolerance, "gradient is not exact", on_every_path=False)


def check_unbiased(
    make_estimator: MakeEstimator,
    *,
    window: int = 1,
    tolerance: float = 1e-10,
    models: list[Example] | None = None,
    draws: int | None = None,
    confidence: float = 1 - 1e-6,
) -> None:
    """Assert that the mean over every path of the noise is the exact gradient, at every step.

    Nothing is sampled, so there is no statistical tolerance. All signs that the estimator draws are counted and
    enumerated. If there are too many, the check rejects; it can then sample `draws` paths instead, which tests
    the same claim with a stated confidence.

    Args:
        make_estimator: builds the estimator, as `make_estimator(transition, loss, noise=...)`. The estimator must draw
            its signs with `noise(key, like) -> (signs, next_key)` (see `norewind.core.random_signs`) and keep its keys
            in the carry. It may draw trees of any shape. With `draws`, it is built without `noise`.
        window: the length of the windows, if the estimator takes windows.
        tolerance: the largest difference allowed.
        models: the examples to use, instead of all.
        draws: sample this many paths of the estimator's own noise instead of enumerating all.
        confidence: with `draws`, the probability that an unbiased estimator passes (by the central limit theorem, so
            `draws` must be large if its gradients have heavy tails). A bias of a few standard errors is not found.

    Raises:
        AssertionError: a mean gradient is not exact.
        ValueError: there are too many paths to enumerate, the noise cannot be enumerated, or the tolerance needs
            float64 and it is off.

    >>> import jax, norewind
    >>> with jax.enable_x64(True):
    ...     norewind.testing.check_unbiased(norewind.uoro, models=norewind.testing.examples()[:1])
    """
    for example in models or examples():
        if draws is None:
            estimator = make_estimator(example.transition, example.loss, noise=path_signs)
            _assert_exact(estimator, example, window, tolerance, "mean gradient is biased", on_every_path=True)
        else:
            estimator = make_estimator(example.transition, example.loss)
            _assert_plausible(estimator, example, window, tolerance, draws, confidence)


def _exact_windows(example: Example, window: int) -> Tree:
    """The exact gradient of the summed loss of every window."""
    exact = _cut(exact_grads(*example[3:5], example.params, example.state, example.xs, example.targets), window)
    return jax.tree.map(lambda leaf: leaf.sum(axis=1), exact)


def _assert_exact(
    estimator, example: Example, window: int, tolerance: float, what: str, *, on_every_path: bool
) -> None:
    """Compare the gradients, or their means over every path of the noise, with the exact ones."""
    if jnp.result_type(float) == jnp.float32 and tolerance < jnp.finfo(jnp.float32).eps:
        raise ValueError(
            f"A tolerance of {tolerance:g} needs float64, which is off: call this check within "
            "`with jax.enable_x64(True):`, or pass a larger tolerance."
        )
    data = windows(example, window)

    def grads(carry):
        return run_estimator(estimator, data, carry)[2].grad

    def mean_grads(carries):
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), jax.vmap(grads)(carries))

    carry = jax.jit(estimator.init)(example.params, example.state, jax.random.key(0))
    if on_every_path:
        carry = sign_paths(carry, signs_per_key(estimator, data, carry))
    actual = jax.jit(mean_grads if on_every_path else grads)(carry)
    assert_same(actual, _exact_windows(example, window), f"{example.name}: {what}", tolerance)


def _assert_plausible(
    estimator, example: Example, window: int, tolerance: float, draws: int, confidence: float
) -> None:
    """Compare the means over sampled paths with the exact gradients, entry by entry, by their standard errors."""
    data = windows(example, window)

    @jax.jit
    def moments(keys):
        def add(sums, key):
            carry = estimator.init(example.params, example.state, key)
            errors = jax.tree.map(jnp.subtract, run_estimator(estimator, data, carry)[2].grad, exact)
            return jax.tree.map(lambda s, e: (s[0] + e, s[1] + e**2), sums, errors, is_leaf=_is_pair), None

        zeros = jax.tree.map(lambda leaf: (jnp.zeros_like(leaf), jnp.zeros_like(leaf)), exact)
        return jax.lax.scan(add, zeros, keys)[0]

    exact = _exact_windows(example, window)
    sums = moments(jax.random.split(jax.random.key(0), draws))
    pairs = jax.tree.leaves(sums, is_leaf=_is_pair)
    entries = sum(first.size for first, _ in pairs)
    # Bonferroni: all entries together pass with this confidence.
    limit = NormalDist().inv_cdf(1 - (1 - confidence) / (2 * entries))
    for (place, _), (first, second) in zip(named_leaves("", exact), pairs, strict=True):
        mean = np.asarray(first) / draws
        error = np.sqrt(np.maximum(np.asarray(second) / draws - mean**2, 0) / (draws - 1))
        worst = np.max(np.abs(mean) / np.maximum(error, tolerance / limit), initial=0)
        assert worst <= limit, (
            f"{example.name}: mean gradient is biased at {place}: {worst:.1f} standard errors from the exact one over "
            f"{draws:,} draws; with a confidence of {confidence:.10g}, up to {limit:.1f} are due to chance"
        )


def _is_pair(node: Any) -> bool:
    return type(node) is tuple


def assert_same(
    actual: Tree, expected: Tree, what: str, absolute: float = 0.0, relative: float = 0.0, *, equal_nan: bool = False
) -> None:
    """Assert that two trees have the same structure, shapes and dtypes, and values within tolerances.

    Keys are compared exactly. Leaves of `jax.eval_shape` have no values to compare.

    Args:
        actual: the tree to check.
        expected: the expected tree.
        what: the start of error messages.
        absolute: the absolute tolerance.
        relative: the relative tolerance.
        equal_nan: whether NaNs count as equal.
    """
    assert jax.tree.structure(actual) == jax.tree.structure(expected), f"{what} has a different structure"
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        a, b = (leaf if hasattr(leaf, "dtype") else np.asarray(leaf) for leaf in (a, b))
        place = f"{what} at {jax.tree_util.keystr(path) or 'its root'}"
        assert a.shape == b.shape, f"{place} has shape {a.shape}, not {b.shape}"
        assert a.dtype == b.dtype, f"{place} has dtype {a.dtype}, not {b.dtype}"
        if isinstance(a, jax.ShapeDtypeStruct):
            continue
        if is_prng_key(a):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        a, b = np.asarray(a), np.asarray(b)
        wrong = ~np.isclose(a, b, rtol=relative, atol=absolute, equal_nan=equal_nan)
        assert not wrong.any(), f"{place}: off by {np.max(np.abs(a[wrong] * 1.0 - b[wrong])):.3g}"


def named(name: str, check: Callable, *arguments: Any) -> Check:
    """Bind a check to its arguments, and name it.

    Args:
        name: the name that the bound check gets.
        check: a function that raises an AssertionError if the check fails.
        arguments: the arguments to call it with.
    """

    def run_check():
        check(*arguments)

    run_check.__name__ = name
    return run_check
