"""A trained run, put to use: predictions on a stream, and samples of text."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from norewind import names
from norewind.learner import Run, scan_some
from norewind.runs.build import Built, Shape, build, open_stream
from norewind.runs.fit import chunk_steps
from norewind.runs.folder import Saved
from norewind.runs.settings import Settings, SettingsError
from norewind.runs.windows import Early, Steps, as_steps, count_of
from norewind.streams import afresh


def predictions(
    settings: Settings,
    saved: Saved,
    source: str | None = None,
    *,
    learn: bool = False,
    fresh: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[list[dict[str, Any]]]:
    """Predictions and surprise for every sample of a stream, as they come. The run folder is not changed.

    Args:
        settings: the settings of the run; `samples` and `flush` apply to these predictions.
        saved: its checkpoint.
        source: another stream; by default the run's own, from where the run stopped.
        learn: keep learning along the way.
        fresh: begin with the initial state instead of the one that the run ended with.
        should_stop: asked before every chunk; True ends the predictions.
    """
    position = saved.entries["position"]
    if source is not None:
        position = {"stream": afresh(position["stream"]), "left": None}
        settings = replace(settings, source=source)
    limit = None if settings.samples is None else int(settings.samples)
    opened = open_stream(settings, position["stream"], stop=should_stop)
    with opened.stream:
        built = restored(settings, saved, opened.shape)
        run = built.run._replace(state=built.run.initial_state) if fresh else built.run
        window = built.window if learn else 1
        steps = as_steps(opened.stream, window, position)
        chunk = chunk_steps(run, window)
        answer = (_learning if learn else _answering)(built, steps, chunk)
        early = Early(built.learner, steps)
        done = 0
        while not should_stop():
            left = chunk if limit is None else min(chunk, (limit - done) // window)
            taken = steps.take(left, settings.flush) if left else None
            if taken is not None and (count := count_of(taken)):
                run, outputs = answer(run, taken)
                place = done + early.answered + 1
                yield list(opened.score.predictions(place, *early.rest(taken, outputs)))
                done += count
            if left and (taken is None or settings.flush is not None):
                place = done + early.answered + 1
                if new := early.answer(run):
                    yield list(opened.score.predictions(place, *new))
            if taken is None:
                return


def restored(settings: Settings, saved: Saved, shape: Shape) -> Built:
    """The learner that settings describe, with the run from a checkpoint."""
    built = build(settings, shape)
    return built._replace(run=saved.restore(built.run))


def _answering(built: Built, steps: Steps, chunk: int) -> Callable:
    """Predict with the parameters as they are; the state moves on."""

    @jax.jit
    def loop(run, xs, count):
        def body(state, x):
            return built.transition(run.params, state, x)

        return scan_some(body, run.state, xs, count)

    def answer(run: Run, samples):
        xs, _ = steps.windows(samples, chunk)
        state, outputs = loop(run, xs, count_of(samples))
        return run._replace(state=state), steps.flat(outputs, count_of(samples))

    return answer


def _learning(built: Built, steps: Steps, chunk: int) -> Callable:
    """Predict, then learn."""

    def answer(run: Run, samples):
        count = count_of(samples)
        inputs = steps.windows(samples, chunk)
        run, (_, outputs) = built.learner.scan(run, *inputs, count=count // steps.window, outputs=True)
        return run, steps.flat(outputs, count)

    return answer


def sampled(
    settings: Settings, saved: Saved, length: int, *, prompt: str = "", temperature: float = 1.0, seed: int = 0
) -> bytes:
    """Text that the model writes, after its own stream or after a prompt.

    Args:
        settings: the settings of the run.
        saved: its checkpoint.
        length: the number of symbols to write.
        prompt: what to read first.
        temperature: below 1 prefers likely symbols, above 1 unlikely ones.
        seed: seed of the random choices.
    """
    encode, decode, symbols = _code(settings, saved)
    built = restored(settings, saved, Shape(symbols, symbols, True))
    start = encode(prompt) if prompt else _unread(settings, saved)

    @jax.jit
    def write(params, state, start, key):
        def read(state, symbol):
            return built.transition(params, state, symbol)

        def draw(carry, key):
            state, logits = carry
            symbol = jax.random.categorical(key, logits / temperature)
            return read(state, symbol), symbol

        state, outputs = jax.lax.scan(read, state, start)
        return jax.lax.scan(draw, (state, outputs[-1]), jax.random.split(key, length))[1]

    written = write(built.run.params, built.run.state, jnp.asarray(start), jax.random.key(seed))
    return decode(np.asarray(written))


def _unread(settings: Settings, saved: Saved) -> np.ndarray:
    """The symbols that the model has not seen yet: the last one of the stream, and those short of a window."""
    position = saved.entries["position"]
    if settings.kind == "task":
        with open_stream(settings, position["stream"]).stream as stream:
            return stream.take(1).xs
    left, previous = position["left"], position["stream"]["previous"]
    return np.array([*(left[0]["values"] if left else []), 0 if previous is None else previous], np.int32)


def _code(settings: Settings, saved: Saved) -> tuple[Callable[[str], np.ndarray], Callable[[np.ndarray], bytes], int]:
    """How text becomes symbols and back, and the number of symbols. The source itself may be gone."""
    if settings.kind in ("csv", "jsonl"):
        raise SettingsError("this run forecasts numbers; only a run on bytes or text can write text.")
    if settings.kind == "bytes":
        # An argument that is not UTF-8 comes with surrogates in it.
        return (
            lambda text: np.array([*text.encode(errors="surrogateescape")], np.int32),
            lambda s: bytes(s.tolist()),
            256,
        )
    if settings.kind == "task":
        alphabet = names.task(settings.source, settings.parameters).alphabet
        slots = len(alphabet)
    else:
        alphabet = saved.entries["position"]["stream"]["alphabet"]
        slots = len(settings.alphabet or "") or settings.alphabet_size

    def encode(text: str) -> np.ndarray:
        strange = next((letter for letter in text if letter not in alphabet), None)
        if strange is not None:
            raise SettingsError(f"the prompt has the character {strange!r}, which the run has never seen.")
        return np.array([alphabet.index(letter) for letter in text], np.int32)

    letters = alphabet.ljust(slots, "\N{REPLACEMENT CHARACTER}")
    return encode, lambda symbols: "".join(letters[symbol] for symbol in symbols.tolist()).encode(), slots
