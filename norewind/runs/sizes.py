"""How much memory a run will need, estimated before any is allocated."""

import os
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from norewind.learner import SHORTEST_CHUNK
from norewind.runs.settings import Settings, SettingsError
from norewind.trees import is_key

if TYPE_CHECKING:
    from norewind.runs.build import Shape

COPIES = 3
"""The run that `fit` starts from, the new one after a chunk, and one more, which is a checkpoint or a gradient."""
EXPERTS = 15
"""The experts of `auto` whose forecasts wait for their targets."""

Start = Callable[[Settings, "Shape"], tuple[Callable[[], Any], int]]
"""From settings to a function that starts the run, and the samples in one of its windows."""


def check_size(settings: Settings, shape: "Shape", start: Start) -> None:
    """Refuse a run that the memory of this machine cannot hold, and say what would fit."""
    limit = memory()

    def fits(name: str, value: int) -> bool:
        smaller = shape
        if name == "horizon":
            smaller = shape._replace(steps=tuple(range(1, value + 1)))
        elif name == "alphabet_size":
            smaller = shape._replace(inputs=value, outputs=value)
        try:
            return bytes_of(replace(settings, **{name: value}), smaller, start) <= limit
        except ValueError:
            return False

    size = bytes_of(settings, shape, start)
    if size <= limit:
        return
    takes = f"about {size_words(size)}" if size < inf else "more than can be counted"
    remedy = "Choose a smaller model"
    names = ["horizon"] if shape.horizon > 1 and not settings.only_steps else []
    names += ["alphabet_size"] if settings.kind == "text" and settings.alphabet is None else []
    for name in [*names, "hidden"] if settings.method == "auto" else ["hidden", *names]:
        if fits(name, 1):
            most = _largest(lambda value, name=name: fits(name, value), getattr(settings, name))
            remedy = f"With the other settings as they are, --{name.replace('_', '-')} {most} would fit"
            break
    raise SettingsError(f"this run would take {takes} of memory, but this machine has {size_words(limit)}. {remedy}.")


def bytes_of(settings: Settings, shape: "Shape", start: Start) -> float:
    """The bytes that a run takes: several copies of its arrays, what waits for targets, and one chunk of samples."""
    begin, window = start(settings, shape)
    width = 8 if settings.precision == "double" else 4
    steps = len(shape.steps)
    row = (1 if shape.symbols else shape.inputs) + steps * (shape.outputs + shape.targets)
    waiting = (shape.horizon + window - 1 if shape.horizon else 0) * (width * row + 24 * shape.targets)
    if settings.method == "auto":
        waiting *= EXPERTS
    beside = COPIES * waiting + max(SHORTEST_CHUNK, window) * row * width
    try:
        run = sum(_bytes(leaf) for leaf in jax.tree.leaves(jax.eval_shape(begin)))
    except (OverflowError, MemoryError):
        return inf
    except TypeError as error:
        if isinstance(error, ValueError):
            raise  # the model is wrong, not its size
        return inf  # too many random numbers to draw
    return COPIES * run + beside


def memory() -> int:
    """The memory that this process may use, in bytes."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()).isdecimal():
        sizes.append(int(text))
    return min(sizes)


def _bytes(leaf: Any) -> int:
    return 16 * leaf.size if is_key(leaf) else leaf.size * leaf.dtype.itemsize


def _largest(fits: Callable[[int], bool], too_large: int) -> int:
    """The largest number that fits, to about three digits; 1 does."""
    low, high = 1, too_large
    while high - low > max(1, low // 500):
        middle = int((low * high) ** 0.5) if high > 4 * low else (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def size_words(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} PB"
