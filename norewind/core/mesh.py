"""Many streams on many devices and machines: `parallel` with its streams spread over a mesh.

The estimator stays the same. State, carry and samples are split by stream, every device has
all parameters and the optimizer's state, and XLA adds up the gradients over all devices once
per step.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from norewind.core import checks
from norewind.core.run import Run
from norewind.core.trees import Tree, is_prng_key, key_from_numbers, key_numbers

STREAMS = "streams"
__all__ = ["gather", "spread_run", "spread_samples", "stream_mesh"]


def stream_mesh(devices: Any = None) -> Mesh:
    """Create a one-dimensional mesh of devices for streams.

    Args:
        devices: the devices to use; by default all devices of all processes.

    Returns:
        The mesh.
    """
    return Mesh(np.array(jax.devices() if devices is None else devices), (STREAMS,))


def spread_run(run: Run, mesh: Mesh) -> Run:
    """Spread the streams of a run of `parallel` over the devices of a mesh.

    A run that was saved on any number of devices can be spread over any other number that
    divides the streams evenly.

    Args:
        run: the run, which must be the same in every process.
        mesh: the mesh, from `stream_mesh`.

    Returns:
        The run, with its state and carry split by stream, and everything else on every device.

    Raises:
        ModelError: the number of devices does not divide the number of streams.

    >>> import jax, jax.numpy as jnp, norewind
    >>> from norewind.core.mesh import gather, spread_run, spread_samples, stream_mesh
    >>> cell = norewind.cells.gru(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.parallel(norewind.uoro(cell.transition, norewind.losses.cross_entropy), 4)
    >>> learner = norewind.online(estimator, norewind.adam(1e-2))
    >>> state = jnp.stack([cell.initial_state()] * 4)
    >>> run = spread_run(learner.init(cell.init(jax.random.key(0)), state, jax.random.key(1)), stream_mesh())
    >>> text = jnp.array([[0, 1, 2, 0], [1, 2, 0, 1], [2, 0, 1, 2]])
    >>> run, losses, _ = learner.scan(run, *spread_samples((text[:-1], text[1:]), stream_mesh()))
    >>> int(gather(run).steps)
    2
    """
    streams = jax.tree.leaves(run.state)[0].shape[0]
    if streams % mesh.size:
        raise checks.ModelError(f"spread_run: {streams} streams cannot be spread evenly over {mesh.size} devices.")

    def place(name: str, part: Tree) -> Tree:
        by_stream = name in ("state", "carry", "initial_state", "latest_state")
        sharding = NamedSharding(mesh, PartitionSpec(STREAMS) if by_stream else PartitionSpec())
        return jax.tree.map(lambda leaf: _spread(leaf, sharding), part)

    return Run(**{name: place(name, part) for name, part in run._asdict().items()})


def spread_samples(samples: Tree, mesh: Mesh, *, local: bool = False) -> Tree:
    """Spread samples of shape (time, streams, ...) over the devices of a mesh.

    Args:
        samples: a tree of arrays with time and streams as their leading axes.
        mesh: the mesh, from `stream_mesh`.
        local: each process passes only the samples of its own streams, which never leave it. Otherwise every process
            passes all samples.

    Returns:
        The samples, split by stream.
    """
    sharding = NamedSharding(mesh, PartitionSpec(None, STREAMS))
    if local:
        return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(sharding, np.asarray(leaf)), samples)
    return jax.tree.map(lambda leaf: _spread(leaf, sharding), samples)


def gather(tree: Tree) -> Tree:
    """Collect a tree as whole arrays in every process, e.g. to save it. All processes must call this together.

    Args:
        tree: a run, or any tree of arrays and PRNG keys.

    Returns:
        The same tree, with whole arrays.
    """
    from jax.experimental import multihost_utils  # slow to import, and rarely needed

    def whole(leaf):
        if is_prng_key(leaf):
            return key_from_numbers(whole(key_numbers(leaf)), leaf)
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            leaf = multihost_utils.process_allgather(leaf, tiled=True)
        return jax.numpy.asarray(np.asarray(leaf))

    return jax.tree.map(whole, tree)


def _spread(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """Spread an array or keys over devices, also those of other processes, to which `jax.device_put` cannot send."""
    if is_prng_key(leaf):
        return key_from_numbers(_spread(key_numbers(leaf), sharding), leaf)
    whole = np.asarray(leaf)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])
