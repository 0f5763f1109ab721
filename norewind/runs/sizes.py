"""How much memory a run will need, estimated before any is allocated."""

import os
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from rich.filesize import decimal

from norewind.learner import SHORTEST_CHUNK
from norewind.runs.settings import Settings, SettingsError

if TYPE_CHECKING:
    from norewind.runs.build import Shape

COPIES = 3
"""The run that `fit` starts from, the new one after a chunk, and one more, which is a checkpoint or a gradient."""
EXPERTS = 15
"""The experts of `auto` whose forecasts wait for their targets."""

Start = Callable[[Settings, "Shape"], tuple[Callable[[], Any], int]]
"""From settings to a function that starts the run, and the samples in one of its windows."""


def check_size(settings: Settings, shape: "Shape", start: Start) -> None:
    """Reject a run that the memory of this machine cannot hold, and say what would fit."""
    limit, size = memory(), bytes_of(settings, shape, start)
    if size <= limit:
        return
    takes = f"about {decimal(int(size))}" if size < inf else "more than can be counted"
    remedy = "Choose a smaller model"
    names = ["horizon"] if shape.horizon > 1 and not settings.only_steps else []
    names += ["alphabet_size"] if settings.kind == "text" and settings.alphabet is None else []
    for name in [*names, "hidden"] if settings.method == "auto" else ["hidden", *names]:

        def fits(value: int, name: str = name) -> bool:
            smaller = {"horizon": {"steps": range(1, value + 1)}, "alphabet_size": {"inputs": value, "outputs": value}}
            fitting = shape._replace(**smaller.get(name, {}))
            try:
                return bytes_of(replace(settings, **{name: value}), fitting, start) <= limit
            except ValueError:
                return False

        if fits(1):
            most = _largest(fits, getattr(settings, name))
            remedy = f"With the other settings as they are, --{name.replace('_', '-')} {most} would fit"
            break
    raise SettingsError(f"this run would take {takes} of memory, but this machine has {decimal(limit)}. {remedy}.")


def bytes_of(settings: Settings, shape: "Shape", start: Start) -> float:
    """The bytes that a run takes: several copies of its arrays, rows that wait for targets, and a chunk of samples."""
    begin, window = start(settings, shape)
    width = 8 if settings.precision == "double" else 4
    row = (1 if shape.symbols else shape.inputs) + len(shape.steps) * (shape.outputs + shape.targets)
    waiting = (shape.horizon + window - 1 if shape.horizon else 0) * (width * row + 24 * shape.targets)
    experts = EXPERTS if settings.method == "auto" else 1
    try:
        run = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(begin)))
    except (OverflowError, MemoryError):
        return inf
    except TypeError as error:
        if isinstance(error, ValueError):
            raise  # the model is wrong, not its size
        return inf  # too many random numbers to draw
    return COPIES * (run + experts * waiting) + max(SHORTEST_CHUNK, window) * row * width


def memory() -> int:
    """The memory that this process may use, in bytes."""
    limit = Path("/sys/fs/cgroup/memory.max")
    allowed = limit.read_text().strip() if limit.exists() else ""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(physical, int(allowed)) if allowed.isdecimal() else physical


def _largest(fits: Callable[[int], bool], too_large: int) -> int:
    """The largest number that fits, to about three digits; 1 does."""
    low, high = 1, too_large
    while high - low > max(1, low // 500):
        middle = int((low * high) ** 0.5) if high > 4 * low else (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
