"""Every path of an estimator's noise: signs from integers in place of PRNG keys, and how many there are."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters import partial_eval

from norewind.core.estimator import Estimator
from norewind.core.trees import Tree, is_prng_key
from norewind.testing.examples import Example

# The most signs to enumerate: 2²⁰ paths.
MAX_SIGNS = 20


def path_signs(path: jax.Array, like: Tree) -> tuple[Tree, jax.Array]:
    """Take random signs from the bits of an integer, which stands for one path of the noise.

    It replaces `norewind.core.random_signs` when all paths are enumerated.

    Args:
        path: the integer, in place of a PRNG key.
        like: a tree of arrays of the shapes and dtypes of the signs.

    Returns:
        The signs, and the integer with the remaining bits.

    Raises:
        ValueError: the noise is drawn from a PRNG key, not from one in the carry that an integer replaces.
    """
    if is_prng_key(path):
        raise ValueError(
            "the estimator draws noise from a PRNG key in init, or from a key that it made itself. Only keys in the "
            "carry can be enumerated: draw all noise in step, and keep the key that `noise` returns. Or sample paths "
            "with check_unbiased(..., draws=10_000)."
        )
    signs = []
    for leaf in jax.tree.leaves(like):
        bits = (path >> jnp.arange(leaf.size, dtype=path.dtype).reshape(leaf.shape)) & 1
        signs.append((1 - 2 * bits.astype(jnp.int32)).astype(leaf.dtype))
        path = path >> leaf.size
    return jax.tree.unflatten(jax.tree.structure(like), signs), path


def signs_per_key(estimator: Estimator, data: Example, carry: Tree) -> np.ndarray:
    """Count the signs that matter for the gradients of an example, for every key of the carry.

    The program of a step is evaluated as far as its keys depend on it, with counters in place of the keys. Signs of the
    last step count only if its gradient depends on them.

    Args:
        estimator: an estimator with `path_signs` as its noise.
        data: the model and its samples or windows.
        carry: the carry of the estimator.

    Returns:
        The number of signs drawn from each key.

    Raises:
        ValueError: the keys are used otherwise than by `noise`.
    """
    leaves, structure = jax.tree.flatten(carry)
    is_key = [is_prng_key(leaf) for leaf in leaves]
    # path_signs shifts away the bits that it uses, so the highest bit moves down by one place per sign.
    highest = np.uint32(1 << 31)
    starts = [np.full(leaf.shape, highest) if key else leaf for key, leaf in zip(is_key, leaves, strict=True)]
    x, target = jax.tree.map(lambda leaf: np.asarray(leaf)[0], (data.xs, data.targets))

    def step(carry_leaves):
        carry = jax.tree.unflatten(structure, carry_leaves)
        _, carry, estimate = estimator.step(data.params, data.state, carry, x, target)
        after = [leaf for key, leaf in zip(is_key, jax.tree.leaves(carry), strict=True) if key]
        return after, jax.tree.leaves(estimate.grad)

    try:
        closed, shapes = jax.make_jaxpr(step, return_shape=True)(starts)
    except TypeError as error:
        raise ValueError(
            "the estimator uses its PRNG keys otherwise than by noise(key, like), e.g. splits them. Draw everything "
            "with `noise`, or sample paths with check_unbiased(..., draws=10_000)."
        ) from error
    wanted = [True] * len(shapes[0]) + [False] * len(shapes[1])
    program, used = partial_eval.dce_jaxpr(closed.jaxpr, wanted)
    inputs = [leaf for leaf, needed in zip(starts, used, strict=True) if needed]
    ends = jaxpr_as_fun(ClosedJaxpr(program, closed.consts))(*inputs)
    _, used = partial_eval.dce_jaxpr(closed.jaxpr, [not keep for keep in wanted])
    # 32 stands for all numbers above 31, which are too many anyway.
    places = [32 - np.ceil(np.log2(np.asarray(end, float) + 1)).ravel() for end in ends]
    counts = np.concatenate(places or [np.zeros(0)])
    matters = any(key and needed for key, needed in zip(is_key, used, strict=True))
    steps = jax.tree.leaves(data.targets)[0].shape[0]
    return counts.astype(int) * (steps if matters else steps - 1)


def sign_paths(carry: Tree, bits_per_key: int | np.ndarray) -> Tree:
    """Enumerate every path of the noise: a stack of carries, with integers for `path_signs` in place of the PRNG keys.

    Each key of the carry is an independent source of signs. There are as many carries as 2 to the power of all signs.

    Args:
        carry: the carry of an estimator.
        bits_per_key: the number of signs drawn from each key, or an array with one number per key.

    Returns:
        The carries of all paths, along a leading axis.

    Raises:
        ValueError: there are too many paths.
    """
    keys = sum(leaf.size for leaf in jax.tree.leaves(carry) if is_prng_key(leaf))
    bits = np.broadcast_to(bits_per_key, (keys,))
    signs = int(bits.sum())
    if signs > MAX_SIGNS:
        raise ValueError(
            f"the noise consists of {signs} signs, and 2^{signs} paths are too many to enumerate (at most "
            f"2^{MAX_SIGNS}). Use a smaller model or fewer samples, or sample paths with check_unbiased(..., "
            "draws=10_000)."
        )
    paths = np.arange(2**signs, dtype=np.uint32)
    sources = iter(zip(np.cumsum(bits) - bits, bits, strict=True))

    def on_all_paths(leaf):
        if not is_prng_key(leaf):
            return np.broadcast_to(leaf, (paths.size, *leaf.shape))
        own = [
            (paths >> np.uint32(shift)) & np.uint32(2**size - 1)
            for shift, size in (next(sources) for _ in range(leaf.size))
        ]
        return np.stack(own, axis=1).reshape(-1, *leaf.shape)

    return jax.tree.map(on_all_paths, carry)
