"""Learn a text online with UORO, then generate text with the model.

python examples/text.py                       # a generated text
python examples/text.py book.txt --hidden 128
"""

import argparse
import random
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import norewind
from norewind.core.losses import BIT, cross_entropy
from norewind.streams import CharacterStream, Source

SYMBOLS = 100  # how many different characters there may be


def main() -> None:
    options = parse_options()
    with tempfile.TemporaryDirectory() as folder:
        path = options.text or make_text(Path(folder) / "text.txt", options.seed)
        stream = CharacterStream(Source(path), size=SYMBOLS)

        cell = norewind.cells.gru(inputs=SYMBOLS, hidden=options.hidden, outputs=SYMBOLS)
        estimator = norewind.uoro(cell.transition, cross_entropy)
        learner = norewind.online(estimator, norewind.adam(norewind.inverse_sqrt(3e-3, alpha=0.03)))
        weights_key, noise_key, writing_key = jax.random.split(jax.random.key(options.seed), 3)
        run = learner.init(cell.init(weights_key), cell.initial_state(), noise_key)

        def show(line):
            print(f"{line['samples']:8,d} samples  {line['loss'] / BIT:.3f} bits each since the last line", flush=True)

        every = norewind.training.Intervals(metrics_every=10_000)
        hooks = norewind.training.Hooks(metrics=show)
        fitted = norewind.fit(stream, learner, run, samples=options.samples, intervals=every, hooks=hooks)
    prompt = stream.encode(". ")
    written = write(cell, fitted.run, prompt, writing_key)
    print("written by the model:", stream.decode(written).strip().decode())


def write(cell: norewind.cells.Cell, run: norewind.core.Run, prompt: np.ndarray, key: jax.Array) -> np.ndarray:
    """Generate 200 symbols after a prompt, each drawn with the probability that the model assigns to it.

    Args:
        cell: the cell.
        run: the trained run.
        prompt: the symbols to read first.
        key: the key of the random choices.
    """

    def read(state, symbol):
        return cell.transition(run.params, state, symbol)

    def draw(carry, key):
        state, logits = carry
        symbol = jax.random.categorical(key, logits)
        return read(state, symbol), symbol

    state, outputs = jax.lax.scan(read, run.state, jnp.asarray(prompt))
    _, symbols = jax.lax.scan(draw, (state, outputs[-1]), jax.random.split(key, 200))
    return np.asarray(symbols)


def make_text(path: Path, seed: int) -> Path:
    """Write 5,000 random sentences.

    Args:
        path: the file.
        seed: the seed of the sentences.
    """
    rng = random.Random(seed)
    nouns, verbs = ["river", "sailor", "old house", "cat"], ["sees", "forgets", "waits for"]

    def sentence():
        return f"The {rng.choice(nouns)} {rng.choice(verbs)} the {rng.choice(nouns)}. "

    path.write_text("".join(sentence() for _ in range(5_000)))
    return path


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Learn to write from a text, online with UORO.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("text", nargs="?", help="a text file; by default a text is generated")
    parser.add_argument("--hidden", type=int, default=32, help="size of the GRU")
    parser.add_argument("--samples", type=int, default=60_000, help="how many characters to read at most")
    parser.add_argument("--seed", type=int, default=0, help="of the text, the weights, the noise and the writing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
