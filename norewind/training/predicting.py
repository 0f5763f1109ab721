"""A trained run, put to use: scoring a stream, and writing text."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from norewind.checkpoint import CheckpointError, restored
from norewind.learner import Run, scan_some
from norewind.named import TASKS
from norewind.streams import afresh
from norewind.training.early import Early
from norewind.training.fit import chunk_steps
from norewind.training.model import Shape, Trained, build
from norewind.training.opening import open_stream
from norewind.training.session import check_same, newest_checkpoint, settings_of
from norewind.training.settings import Settings, SettingsError
from norewind.training.windows import Steps, as_steps, count_of


class Saved(NamedTuple):
    """The newest checkpoint of a run, and its settings."""

    settings: Settings
    path: Path
    arrays: dict[str, np.ndarray]
    extra: dict[str, Any]

    @property
    def position(self) -> dict[str, Any]:
        """Where its stream was."""
        return self.extra["position"]

    def trained(self, shape: Shape) -> Trained:
        """The model as it was."""
        trained = build(self.settings, shape)
        return trained._replace(run=restored(self.path, self.arrays, trained.run))


def saved_run(folder: Path) -> Saved:
    """The newest checkpoint of the run in a folder."""
    settings = settings_of(folder)
    path, arrays, extra = newest_checkpoint(folder)
    if path is None:
        raise CheckpointError(f"{folder} has no checkpoint yet. Train it first: norewind resume {folder}")
    check_same(folder, settings, extra)
    return Saved(settings, path, arrays, extra)


def predictions(
    saved: Saved,
    source: str | None = None,
    *,
    learn: bool = False,
    fresh: bool = False,
    samples: int | None = None,
    patience: float | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[list[dict[str, Any]]]:
    """Predictions and surprise for every sample of a stream, as they come.

    Without a source, the run's own stream goes on from where the run stopped. The state
    goes on too, unless `fresh` begins with the initial one. With `learn`, the model keeps
    learning along the way; nothing is written back to the run.
    """
    position = saved.position
    if source is not None:
        position = {"stream": afresh(position["stream"]), "left": None}
    settings = saved.settings if source is None else replace(saved.settings, source=source)
    opened = open_stream(settings, position["stream"], stop=should_stop)
    trained = saved.trained(opened.shape)
    run = trained.run._replace(state=trained.run.initial_state) if fresh else trained.run
    memory = trained.memory if learn else 1
    steps = as_steps(lambda _: opened.stream, memory, position)
    chunk = chunk_steps(run, memory)
    answer = (_learning if learn else _answering)(trained, steps, chunk)
    early = Early(trained.learner, steps)
    done = 0
    while not should_stop():
        left = chunk if samples is None else min(chunk, (samples - done) // memory)
        taken = steps.take(left, patience) if left else None
        if taken is not None and (count := count_of(taken)):
            run, outputs = answer(run, taken)
            place = done + early.answered + 1
            yield list(opened.score.predictions(place, *early.rest(taken, outputs)))
            done += count
        if left and (taken is None or patience is not None):
            place = done + early.answered + 1
            if new := early.answer(run):
                yield list(opened.score.predictions(place, *new))
        if taken is None:
            return


def _answering(trained: Trained, steps: Steps, chunk: int) -> Callable:
    """The model as it is, over samples; its state moves on."""

    @jax.jit
    def loop(run, xs, count):
        def body(state, x):
            return trained.transition(run.params, state, x)

        return scan_some(body, run.state, xs, count)

    def answer(run: Run, samples):
        xs, _ = steps.windows(samples, chunk)
        state, outputs = loop(run, xs, count_of(samples))
        return run._replace(state=state), steps.flat(outputs, count_of(samples))

    return answer


def _learning(trained: Trained, steps: Steps, chunk: int) -> Callable:
    def answer(run: Run, samples):
        count, memory = count_of(samples), steps.memory
        inputs = steps.windows(samples, chunk)
        run, (_, outputs) = trained.learner.scan(run, *inputs, count=count // memory, outputs=True)
        return run, steps.flat(outputs, count)

    return answer


def sampled(saved: Saved, length: int, *, prompt: str = "", temperature: float = 1.0, seed: int = 0) -> bytes:
    """Text that the model writes: after its own stream, or after a prompt."""
    encode, decode, symbols = _code(saved)
    trained = saved.trained(Shape(symbols, symbols, True))
    start = encode(prompt) if prompt else _unread(saved)

    @jax.jit
    def write(params, state, start, key):
        def read(state, symbol):
            return trained.transition(params, state, symbol)

        def draw(carry, key):
            state, logits = carry
            symbol = jax.random.categorical(key, logits / temperature)
            return read(state, symbol), symbol

        state, outputs = jax.lax.scan(read, state, start)
        return jax.lax.scan(draw, (state, outputs[-1]), jax.random.split(key, length))[1]

    written = write(trained.run.params, trained.run.state, jnp.asarray(start), jax.random.key(seed))
    return decode(np.asarray(written))


def _unread(saved: Saved) -> np.ndarray:
    """The symbols that came last and that the model has not seen: the last one, and samples short of a window."""
    if saved.settings.kind == "task":
        stream = open_stream(saved.settings, saved.position["stream"]).stream
        return stream.take(1).xs
    left, previous = saved.position["left"], saved.position["stream"]["previous"]
    return np.array([*(left[0]["values"] if left else []), 0 if previous is None else previous], np.int32)


def _code(saved: Saved) -> tuple[Callable[[str], np.ndarray], Callable[[np.ndarray], bytes], int]:
    """How text becomes symbols and back, and how many symbols there are."""
    kind = saved.settings.kind
    if kind in ("csv", "jsonl"):
        raise SettingsError("this run forecasts numbers; only a run on bytes or text can write text.")
    if kind == "bytes":
        # An argument that is not UTF-8 comes with surrogates in it.
        return (
            lambda text: np.array([*text.encode(errors="surrogateescape")], np.int32),
            lambda s: bytes(s.tolist()),
            256,
        )
    if kind == "task":
        alphabet = TASKS[saved.settings.source](*saved.settings.parameters).alphabet
        slots = len(alphabet)
    else:
        alphabet = saved.position["stream"]["alphabet"]
        slots = len(saved.settings.alphabet or "") or saved.settings.alphabet_size

    def encode(text: str) -> np.ndarray:
        strange = next((letter for letter in text if letter not in alphabet), None)
        if strange is not None:
            raise SettingsError(f"the prompt has the character {strange!r}, which the run has never seen.")
        return np.array([alphabet.index(letter) for letter in text], np.int32)

    letters = alphabet.ljust(slots, "\N{REPLACEMENT CHARACTER}")
    return encode, lambda symbols: "".join(letters[symbol] for symbol in symbols.tolist()).encode(), slots
