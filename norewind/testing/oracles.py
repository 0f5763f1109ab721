"""Proofs of the claims of an estimator and the declarations of a model, by plain autodiff. Nothing is left to chance.

A tolerance of 1e-10 needs float64: use `jax.enable_x64` (or `jax_enable_x64`).
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from norewind.core.estimator import Estimate, Estimator, Loss, Transition
from norewind.core.structure import for_each_leaf, mixed_by, structure_of
from norewind.core.trees import Tree, is_prng_key, named_leaves, real_leaves, with_real_leaves
from norewind.estimators.kronecker import affine_step, weight_grad
from norewind.estimators.traces import own_product
from norewind.testing.examples import Example, examples

MakeEstimator = Callable[..., Estimator]
# One check of a conformance suite: a named function that raises an AssertionError if the check fails.
Check = Callable[[], None]


def run_estimator(estimator: Estimator, example: Example, carry: Tree) -> tuple[Tree, Tree, Estimate]:
    """Run an estimator on an example with frozen parameters.

    Args:
        estimator: the estimator.
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
        example: the example.
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

    >>> import jax, norewind
    >>> with jax.enable_x64(True):
    ...     norewind.testing.check_exact(norewind.rtrl, models=norewind.testing.examples()[:1])
    """
    for example in models or examples():
        estimator = make_estimator(example.transition, example.loss)
        _assert_exact(estimator, example, window, tolerance, "gradient is not exact", on_every_path=False)


def path_signs(path: jax.Array, like: Tree) -> tuple[Tree, jax.Array]:
    """Take random signs from the bits of an integer, which stands for one path of the noise.

    It replaces `norewind.core.random_signs` when all paths are enumerated.

    Args:
        path: the integer, in place of a PRNG key.
        like: a tree of arrays of the shapes and dtypes of the signs.

    Returns:
        The signs, and the integer with the remaining bits.
    """
    signs = []
    for leaf in jax.tree.leaves(like):
        bits = (path >> jnp.arange(leaf.size, dtype=path.dtype).reshape(leaf.shape)) & 1
        signs.append((1 - 2 * bits.astype(jnp.int32)).astype(leaf.dtype))
        path = path >> leaf.size
    return jax.tree.unflatten(jax.tree.structure(like), signs), path


def sign_paths(carry: Tree, bits_per_key: int) -> Tree:
    """Enumerate every path of the noise: a stack of carries, with integers for `path_signs` in place of the PRNG keys.

    Each key of the carry is an independent source of `bits_per_key` signs, so there are
    2^(keys × bits_per_key) carries.

    Args:
        carry: the carry of an estimator.
        bits_per_key: the number of signs drawn from each key.

    Returns:
        The carries of all paths, along a leading axis.

    Raises:
        ValueError: there are too many paths.
    """
    signs = bits_per_key * sum(leaf.size for leaf in jax.tree.leaves(carry) if is_prng_key(leaf))
    if signs > 20:
        raise ValueError(f"{signs} signs have too many paths to enumerate. Use a smaller model.")
    paths = np.arange(2**signs, dtype=np.uint32)
    shifts = iter(np.arange(0, signs, bits_per_key, dtype=np.uint32))

    def on_all_paths(leaf):
        if not is_prng_key(leaf):
            return np.broadcast_to(leaf, (paths.size, *leaf.shape))
        own = paths[:, None] >> np.array([next(shifts) for _ in range(leaf.size)], np.uint32)
        return (own & np.uint32(2**bits_per_key - 1)).reshape(-1, *leaf.shape)

    return jax.tree.map(on_all_paths, carry)


def check_unbiased(
    make_estimator: MakeEstimator, *, window: int = 1, tolerance: float = 1e-10, models: list[Example] | None = None
) -> None:
    """Assert that the mean over every path of the noise is the exact gradient, at every step.

    Nothing is sampled, so there is no statistical tolerance.

    Args:
        make_estimator: builds the estimator, as `make_estimator(transition, loss, noise=...)`. The estimator must draw
            its signs with `noise(key, like) -> (signs, next_key)` (see `norewind.core.random_signs`) and keep its keys
            in the carry.
        window: the length of the windows, if the estimator takes windows.
        tolerance: the largest difference allowed.
        models: the examples to use, instead of all.

    Raises:
        AssertionError: a mean gradient is not exact.

    >>> import jax, norewind
    >>> with jax.enable_x64(True):
    ...     norewind.testing.check_unbiased(norewind.uoro, models=norewind.testing.examples()[:1])
    """
    for example in models or examples():
        estimator = make_estimator(example.transition, example.loss, noise=path_signs)
        _assert_exact(estimator, example, window, tolerance, "mean gradient is biased", on_every_path=True)


def _assert_exact(
    estimator, example: Example, window: int, tolerance: float, what: str, *, on_every_path: bool
) -> None:
    """Compare the gradients, or their means over every path of the noise, with the exact ones."""
    data = windows(example, window)

    def grads(carry):
        return run_estimator(estimator, data, carry)[2].grad

    def mean_grads(carries):
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), jax.vmap(grads)(carries))

    carry = jax.jit(estimator.init)(example.params, example.state, jax.random.key(0))
    if on_every_path:
        steps = jax.tree.leaves(data.targets)[0].shape[0]
        width = sum(leaf.size for leaf in jax.tree.leaves(real_leaves(example.state)))
        # The noise of the last step affects no gradient, so it need not be enumerated.
        carry = sign_paths(carry, width * (steps - 1))
    actual = jax.jit(mean_grads if on_every_path else grads)(carry)
    exact = _cut(exact_grads(*example[3:5], example.params, example.state, example.xs, example.targets), window)
    exact = jax.tree.map(lambda leaf: leaf.sum(axis=1), exact)
    assert_same(actual, exact, f"{example.name}: {what}", tolerance)


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
        name: the name.
        check: the check.
        arguments: its arguments.
    """

    def run_check():
        check(*arguments)

    run_check.__name__ = name
    return run_check


def check_structure(transition: Transition, params: Tree, state: Tree, x: Tree) -> None:
    """Assert that the declarations of a transition (`norewind.declare`) are true at a point, from its full derivatives.

    A wrong declaration can pass at special points, so use parameters and states without
    zeros.

    Args:
        transition: the transition with its declarations.
        params: the parameters.
        state: the state.
        x: an input.

    Raises:
        AssertionError: nothing is declared, or a declaration is wrong.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.rnn(inputs=3, hidden=4, outputs=3)
    >>> norewind.testing.check_structure(cell.transition, cell.init(jax.random.key(0)), jnp.ones(4), jnp.array(0))
    """
    structure = structure_of(transition)
    assert any(part is not None for part in structure), "this transition declares nothing (see norewind.declare)"
    if structure.units is not None:
        _check_units(transition, params, state, x, structure.units(params))
    if structure.memory is not None:
        # Rows and columns of the Jacobian have the structure of the state.
        block = np.asarray(structure.memory(structure.memory(_state_jacobian(transition, params, state, x))))
        assert np.all(block == np.diag(np.diag(block))), "the declared memory cell of one unit reaches that of another"
    if structure.output_units is not None:
        new_state, output = jax.jit(transition)(params, state, x)
        units = ravel_pytree(real_leaves(new_state))[0][np.array(structure.output_units)]
        assert np.allclose(units, jnp.ravel(output)), "the output is not the declared output_units of the state"
    if structure.elementwise:
        _check_elementwise(transition, params, state, x)
    if structure.mixing is not None:
        _check_mixing(transition, params, state, x, structure.mixing)
    if structure.layer is not None:
        _check_layer(transition, params, state, x, structure.layer)


def _state_jacobian(transition, params, state, x) -> Tree:
    """Differentiate the new state by the old: for every leaf of the new state, a tree of blocks."""

    def new_leaves(leaves):
        return real_leaves(transition(params, with_real_leaves(state, leaves), x)[0])

    return jax.jit(jax.jacrev(new_leaves))(real_leaves(state))


def _check_units(transition, params, state, x, index) -> None:
    leaves = real_leaves(state)
    influence = jax.jit(jax.jacrev(lambda params: real_leaves(transition(params, state, x)[0])))(params)
    nowhere = -1
    units = for_each_leaf(lambda own, leaf: np.broadcast_to(nowhere if own is None else own, leaf.shape), index, params)
    by_leaf = jax.tree.structure(leaves).flatten_up_to(influence)
    for (state_place, _), rows in zip(named_leaves("state", leaves), by_leaf, strict=True):
        for (place, own), one in zip(named_leaves("params", units), jax.tree.leaves(rows), strict=True):
            reached, what = np.asarray(one) != 0, "reaches the state"
            if np.any(own != nowhere):
                reached &= np.arange(len(reached)).reshape(-1, *(1,) * own.ndim) != own
                what = "feeds a unit that is not the declared one"
            assert not reached.any(), f"{place} {what} ({state_place})"


def _check_elementwise(transition, params, state, x) -> None:
    leaves = real_leaves(state)
    shapes = {jnp.shape(leaf) for leaf in jax.tree.leaves(leaves)}
    assert [len(shape) for shape in shapes] == [1], (
        f"an elementwise model keeps vectors of one length, an entry per unit, not leaves of shapes {sorted(shapes)}"
    )
    places = [place for place, _ in named_leaves("state", leaves)]
    blocks = jax.tree.leaves(_state_jacobian(transition, params, state, x))
    for (new, old), block in zip(product(places, places), blocks, strict=True):
        among = np.asarray(block)[~np.eye(len(block), dtype=bool)]
        assert np.all(among == 0), f"the model is not elementwise: {old} of one unit reaches {new} of another"


def _check_mixing(transition, params, state, x, mixing) -> None:
    itself, mixed = (_state_jacobian(model, params, state, x) for model in (transition, mixing(jnp.matmul)))
    assert_same(mixed, itself, "mixing by W @ v gives a model with different derivatives", 1e-6, 1e-4)
    alone = mixed_by(transition, own_product)
    units = structure_of(alone).units
    assert units is not None, "a model that declares mixing must declare units, or its mixing must"
    actual, values = (jax.jit(model)(params, state, x) for model in (alone, transition))
    assert_same(actual, values, "mixing by a product with the same values changes the model's", 1e-6, 1e-4)
    _check_units(alone, params, state, x, units(params))
    _check_elementwise(alone, params, state, x)


def _check_layer(transition, params, state, x, layer) -> None:
    @jax.jit
    def influences():
        _, inputs, _, drive = affine_step("check_structure", transition, layer, params, state, x)
        declared = jax.vmap(lambda row: weight_grad(layer, row, inputs, params))(drive)
        return declared, jax.jacrev(lambda params: ravel_pytree(real_leaves(transition(params, state, x)[0]))[0])(
            params
        )

    declared, true = influences()
    for (place, leaf), given in zip(named_leaves("params", true), jax.tree.leaves(declared), strict=True):
        assert np.allclose(leaf, given, rtol=1e-4, atol=1e-6), f"{place} does not act through the declared layer alone"
