"""Interrupt a run, resume it later, and get exactly the result of an uninterrupted run.

python examples/resume.py
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import norewind
from norewind.core.losses import cross_entropy
from norewind.streams import TaskStream


def main() -> None:
    options = parse_options()
    with tempfile.TemporaryDirectory() as folder:
        train = trainer(options)
        whole = train(Path(folder) / "whole")
        chunks = iter(range(2))
        part = train(Path(folder) / "parts", should_stop=lambda: next(chunks, None) is None)
        print(f"stopped after {part.samples:,} of {whole.samples:,} samples; the folder holds a checkpoint")
        # The same call again: `fit` finds the checkpoint, and opens the stream where it was written.
        resumed = train(Path(folder) / "parts")
    print(f"resumed, up to {resumed.samples:,} samples")

    assert part.samples < whole.samples == resumed.samples
    numbers = zip(jax.tree.leaves(whole.run), jax.tree.leaves(resumed.run), strict=True)
    assert all(np.array_equal(raw(one), raw(other)) for one, other in numbers)
    print("parameters, state, carry, optimizer and noise are the same, bit for bit")


def trainer(options: argparse.Namespace) -> Callable[..., norewind.training.FitResult]:
    """A function that trains in a folder, with the same settings every time."""
    task = norewind.tasks.anbn(1, 8)
    cell = norewind.cells.gru(inputs=3, hidden=16, outputs=3)
    learner = norewind.online(norewind.uoro(cell.transition, cross_entropy), norewind.adam(1e-3))
    weights_key, noise_key = jax.random.split(jax.random.key(options.seed))

    def train(folder, should_stop=lambda: False):
        return norewind.fit(
            lambda position: TaskStream(task, options.seed, position=position),
            learner,
            learner.init(cell.init(weights_key), cell.initial_state(), noise_key),
            samples=options.samples,
            folder=folder,
            intervals=norewind.training.Intervals(checkpoint_every=5_000),
            hooks=norewind.training.Hooks(should_stop=should_stop),
        )

    return train


def raw(leaf: jax.Array) -> np.ndarray:
    """The numbers of an array, or of a random key."""
    return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Stop a run, resume it, and compare.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=20_000, help="how many in total")
    parser.add_argument("--seed", type=int, default=0, help="seed of the text, the weights and the noise")
    return parser.parse_args()


if __name__ == "__main__":
    main()
