"""Applying a trained run: predictions on a stream, and generated text."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from norewind import names
from norewind.runs.build import Built, Shape, build, open_stream, set_precision
from norewind.runs.entries import check_left, check_score
from norewind.runs.folder import Saved
from norewind.runs.scores import LineScore
from norewind.runs.settings import Settings, SettingsError
from norewind.runs.windows import Early, as_steps, chunk_steps, count_of
from norewind.streams import ByteStream, afresh
from norewind.streams.symbols import check_symbols, decode, encode


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

    Reads the run's own stream from where the run stopped, or another source, up to
    `settings.samples` and within `settings.flush` seconds. `learn`: keep learning along the
    way. `fresh`: begin with the initial state. Ends when `should_stop()` returns True.
    """
    if settings.key is not None:
        raise SettingsError(
            "a run with keys only predicts while it learns: train it with --predictions file, or use norewind resume."
        )
    position, settings = saved.entries["position"], replace(settings, final=True)
    if source is not None:
        position = {"stream": afresh(position["stream"]), "left": None}
        settings = replace(settings, source=source)
    limit = None if settings.samples is None else int(settings.samples)
    opened = open_stream(settings, position["stream"], stop=should_stop)
    with opened.stream:
        if isinstance(opened.score, LineScore):
            # What is usual is known; the line that was cut off goes on only in the run's own stream.
            begins = {} if source is None else {"begun": False, "line": 1, "symbols": [], "bits": []}
            check_score(saved.path, saved.entries["score"], opened.score.state)
            opened.score.state = {**deepcopy(saved.entries["score"]), **begins}
        built = restored(settings, saved, opened.shape)
        learner, run = built.learner, built.learner.reset(built.run) if fresh else built.run
        window = built.window if learn else 1
        steps = as_steps(opened.stream, window, position)
        chunk = chunk_steps(learner, run, window)

        def answer(run, xs, targets, count):
            if not learn:
                return learner.forward(run, xs, count=count)
            run, (_, outputs) = learner.scan(run, xs, targets, count=count, outputs=True)
            return run, outputs

        early = Early(lambda waiting: answer(run, *steps.windows(waiting, chunk), 1)[1], steps)
        done = 0
        while not should_stop():
            left = chunk if limit is None else min(chunk, (limit - done) // window)
            taken = steps.take(left, settings.flush) if left else None
            if taken is not None and (count := count_of(taken)):
                run, outputs = answer(run, *steps.windows(taken, chunk), count // window)
                yield list(opened.score.predictions(*early.rest(taken, steps.flat(outputs, count))))
                done += count
            at_once = left and (taken is None or settings.flush is not None)
            if at_once and (new := early.answer()):
                yield list(opened.score.predictions(*new))
            if taken is None:
                return


def restored(settings: Settings, saved: Saved, shape: Shape) -> Built:
    set_precision(settings)
    built = build(settings, shape)
    check_left(saved.path, saved.entries["position"]["left"], built.window, shape.inputs)
    return built._replace(run=saved.restore(built.run))


def sampled(
    settings: Settings, saved: Saved, length: int, *, prompt: str = "", temperature: float = 1.0, seed: int = 0
) -> bytes:
    """Text of `length` symbols that the model writes, after its own stream or after a prompt.

    Only symbols that the run has seen are written. A `temperature` below 1 prefers likely
    ones. `seed` is that of the random choices.
    """
    encode, decode, symbols = _code(settings, saved)
    built = restored(settings, saved, Shape(symbols, symbols, True))
    start = encode(prompt) if prompt else _unread(settings, saved)
    known = {"seen": saved.entries["score"].get("seen")}
    check_score(saved.path, known, {"seen": [True] * symbols})
    run, random = built.run, np.random.default_rng(seed)
    run, outputs = built.learner.forward(run, start)
    logits, written = np.asarray(outputs[-1], np.float64), []
    for _ in range(length):
        chances = np.where(known["seen"], logits / temperature, -np.inf)
        chances = np.exp(chances - chances.max())
        written.append(random.choice(symbols, p=chances / chances.sum()))
        run, outputs = built.learner.forward(run, np.array(written[-1:], np.int32))
        logits = np.asarray(outputs[0], np.float64)
    return decode(np.array(written, np.int32))


def _unread(settings: Settings, saved: Saved) -> np.ndarray:
    """The symbols that the model has not seen yet: the last one of the stream, and those short of a window."""
    position = saved.entries["position"]
    if settings.kind == "task":
        with open_stream(settings, position["stream"]).stream as stream:
            return stream.take(1).xs
    left, previous = position["left"], position["stream"]["previous"]
    return np.array([*(left[0] if left else []), 0 if previous is None else previous], np.int32)


def _code(settings: Settings, saved: Saved) -> tuple[Callable[[str], np.ndarray], Callable[[np.ndarray], bytes], int]:
    """How text becomes symbols and back, and the number of symbols. The source itself may be gone."""
    if settings.kind in ("csv", "jsonl"):
        raise SettingsError("this run forecasts numbers; only a run on bytes or text can write text.")
    if settings.kind == "bytes":
        check_symbols(saved.entries["position"]["stream"], "bytes")
        return ByteStream.encode, ByteStream.decode, ByteStream.symbols
    if settings.kind == "task":
        alphabet = names.task(settings.source, settings.parameters).alphabet
        size = len(alphabet)
    else:
        alphabet = saved.entries["position"]["stream"].get("alphabet", "")
        size = len(settings.alphabet or "") or settings.alphabet_size
        check_symbols(saved.entries["position"]["stream"], "characters", settings.alphabet, size)
    return partial(encode, alphabet=alphabet), partial(decode, alphabet=alphabet, size=size), size
