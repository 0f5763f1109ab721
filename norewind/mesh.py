"""Many streams over many devices and machines: `parallel` with its streams spread over a mesh.

Nothing about the estimator changes: state, carry and samples are spread along their streams,
parameters and optimizer are everywhere, and XLA puts one sum of gradients over all devices
into each step.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from norewind import checks
from norewind.run import Run
from norewind.trees import Tree, is_key

STREAMS = "streams"
__all__ = ["gathered", "spread", "spread_samples", "stream_mesh"]


def stream_mesh(devices: Any = None) -> Mesh:
    """A mesh of all devices (or those given) of all processes, in one row."""
    return Mesh(np.array(jax.devices() if devices is None else devices), (STREAMS,))


def spread(run: Run, mesh: Mesh) -> Run:
    """A run of `parallel`, the same in every process, with its streams spread over the devices of a mesh.

    A run that was saved on any number of devices can be spread over any other, as long as it
    divides the streams.

    >>> import jax, jax.numpy as jnp, norewind
    >>> from norewind.mesh import gathered, spread, spread_samples, stream_mesh
    >>> cell = norewind.cells.gru(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.parallel(norewind.uoro(cell.transition, norewind.losses.cross_entropy), 4)
    >>> learner = norewind.online(estimator, norewind.adam(1e-2))
    >>> state = jnp.stack([cell.initial_state()] * 4)
    >>> run = spread(learner.init(cell.init(jax.random.key(0)), state, jax.random.key(1)), stream_mesh())
    >>> text = jnp.array([[0, 1, 2, 0], [1, 2, 0, 1], [2, 0, 1, 2]])
    >>> run, losses = learner.scan(run, *spread_samples((text[:-1], text[1:]), stream_mesh()))
    >>> int(gathered(run).steps)
    2
    """
    streams = jax.tree.leaves(run.state)[0].shape[0]
    if streams % mesh.size:
        raise checks.ModelError(f"spread: {streams} streams cannot be spread evenly over {mesh.size} devices.")
    along, everywhere = (NamedSharding(mesh, spec) for spec in (PartitionSpec(STREAMS), PartitionSpec()))
    parts = {
        name: jax.tree.map(
            lambda leaf, sharding=along if name in ("state", "carry", "initial_state", "ahead") else everywhere: (
                _placed(leaf, sharding)
            ),
            value,
        )
        for name, value in run._asdict().items()
    }
    return Run(**parts)


def spread_samples(samples: Tree, mesh: Mesh, *, local: bool = False) -> Tree:
    """Samples of shape (time, streams, ...), spread over the devices of a mesh.

    Every process has all samples; with `local`, each has only those of its own streams, which
    never leave it.
    """
    sharding = NamedSharding(mesh, PartitionSpec(None, STREAMS))
    if local:
        return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(sharding, np.asarray(leaf)), samples)
    return jax.tree.map(lambda leaf: _placed(leaf, sharding), samples)


def gathered(tree: Tree) -> Tree:
    """The same tree as whole arrays in every process, e.g. to save it: all processes must call this together."""
    from jax.experimental import multihost_utils  # takes a while to import, and few need it

    def whole(leaf):
        if is_key(leaf):
            return jax.random.wrap_key_data(whole(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            leaf = multihost_utils.process_allgather(leaf, tiled=True)
        return jax.numpy.asarray(np.asarray(leaf))

    return jax.tree.map(whole, tree)


def _placed(leaf: Any, sharding: NamedSharding) -> jax.Array:
    if is_key(leaf):
        return jax.random.wrap_key_data(_placed(jax.random.key_data(leaf), sharding), impl=jax.random.key_impl(leaf))
    whole = np.asarray(leaf)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])
