"""The five series of the tables: three chaotic ones by formula, and two real ones from files."""

from pathlib import Path

import numpy as np

LANES = 8
# The first values of a series, which may depend on its start, are not used.
SKIPPED = 64
CHAOTIC = ("henon", "mackey_glass", "lorenz")
REAL = ("sunspots", "laser")
# The file and the number of values of each real series.
FILES = {"sunspots": ("sunspot.txt", 3_000), "laser": ("laser.txt", 1_000)}
TITLES = {
    "henon": "Hénon",
    "mackey_glass": "Mackey-Glass",
    "lorenz": "Lorenz",
    "sunspots": "sunspots",
    "laser": "laser",
}


def lanes_of(name: str, samples: int, seed: int, data: Path) -> np.ndarray:
    """Return a series for every lane, standardised over its whole length, as the paper does.

    A real series that ends starts again. (Standardising uses the mean and deviation of the future; it is the published
    protocol, and is the same for all methods.)

    Args:
        name: the name of the series.
        samples: the number of samples, each an input and the next value.
        seed: changes the starts of Mackey-Glass and Lorenz, and rotates the real series. Hénon has no random start.
        data: the folder with the files of the real series.

    Returns:
        An array (samples + 1, lanes).
    """
    length = SKIPPED + samples + 1
    if name in REAL:
        file, size = FILES[name]
        values = np.loadtxt(data / file)[:size]
        values = (values - values.mean()) / values.std()
        shift = np.random.default_rng(seed).integers(size)
        starts = shift + np.arange(LANES) * (size // LANES)
        return values[(starts + np.arange(SKIPPED, length)[:, None]) % size].astype(np.float32)
    values = {"henon": _henon, "mackey_glass": _mackey_glass, "lorenz": _lorenz}[name](length, seed)
    values = (values - values.mean(axis=0)) / values.std(axis=0)
    return values[SKIPPED:].astype(np.float32)


def _henon(length: int, seed: int) -> np.ndarray:
    x, y = 0.1 + 0.01 * np.arange(LANES), np.zeros(LANES)
    values = np.empty((length, LANES))
    for t in range(length):
        x, y = 1 - 1.4 * x * x + y, 0.3 * x
        values[t] = x
    return values


def _mackey_glass(length: int, seed: int, delay: int = 17) -> np.ndarray:
    draw = np.random.default_rng(seed)
    values = np.empty((delay + 1 + length, LANES))
    values[: delay + 1] = 1.2 + 0.2 * draw.uniform(size=(delay + 1, LANES))
    for t in range(delay, delay + length):
        late = values[t - delay]
        values[t + 1] = values[t] + 0.2 * late / (1 + late**10) - 0.1 * values[t]
    return values[delay + 1 :]


def _lorenz(length: int, seed: int, dropped: int = 100) -> np.ndarray:
    draw = np.random.default_rng(seed)
    x, y, z = 1 + 0.1 * draw.normal(size=(3, LANES))
    values = np.empty((dropped + length, LANES))
    for t in range(len(values)):
        for _ in range(2):
            x, y, z = x + 0.1 * (y - x), y + 0.01 * (x * (28 - z) - y), z + 0.01 * (x * y - 8 / 3 * z)
        values[t] = x
    return values[dropped:]
