"""The five series of the tables: three chaotic ones by formula, and two real ones from files."""

from pathlib import Path

import numpy as np

LANES = 8
# The first values of a series, which may depend on its start, are not used.
SKIPPED = 64
CHAOTIC = ("henon", "mackey_glass", "lorenz")
REAL = ("sunspots", "laser")
SERIES = (*CHAOTIC, *REAL)
# The number of samples for which a chaotic series is made and standardised; runs use fewer.
MADE = 20_000
# The file of each real series, and after how many samples it starts again.
FILES = {"sunspots": ("sunspot.txt", 3_000), "laser": ("laser.txt", 1_000)}
# A real series is standardised by its first values only.
STANDARDISED = 2_000
TITLES = {
    "henon": "Hénon",
    "mackey_glass": "Mackey-Glass",
    "lorenz": "Lorenz",
    "sunspots": "sunspots",
    "laser": "laser",
}


def lanes_of(name: str, samples: int, seed: int, data: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs and targets of every lane, standardised as in the published code.

    That code standardises a chaotic series by its whole length, which includes the future, and a real one by its first
    2,000 values. A lane of a real series starts again when the series has ended; its last target is then the value
    after the end.

    Args:
        name: the name of the series.
        samples: the number of samples, each an input and the next value.
        seed: changes the starts of Mackey-Glass and Lorenz, and rotates the real series. Hénon has no random start.
        data: the folder with the files of the real series.

    Returns:
        Two arrays (samples, lanes).

    Raises:
        ValueError: a chaotic series is not made for so many samples.
    """
    if name in REAL:
        file, period = FILES[name]
        whole = np.loadtxt(data / file)
        first = np.random.default_rng(seed).integers(len(whole))
        starts = first + np.arange(LANES) * (len(whole) // LANES)
        values = whole[(starts + np.arange(SKIPPED + period + 1)[:, None]) % len(whole)]
        known = values[SKIPPED : SKIPPED + min(STANDARDISED, period)]
    else:
        if samples > MADE:
            raise ValueError(f"{name} is made for {MADE:,} samples, not {samples:,}.")
        period = MADE
        make = {"henon": _henon, "mackey_glass": _mackey_glass, "lorenz": _lorenz}[name]
        known = values = make(SKIPPED + MADE + 1, seed)
    values = ((values - known.mean(axis=0)) / known.std(axis=0, ddof=1)).astype(np.float32)
    at = SKIPPED + np.arange(samples) % period
    return values[at], values[at + 1]


def _henon(length: int, seed: int) -> np.ndarray:
    x, y = 0.1 + 0.01 * np.arange(LANES), np.zeros(LANES)
    values = np.empty((length, LANES))
    for t in range(length):
        x, y = 1 - 1.4 * x * x + y, 0.3 * x
        values[t] = x
    return values


def _mackey_glass(length: int, seed: int, delay: int = 16) -> np.ndarray:
    # The paper says 17. Its code reads the 17th value from the end, which is 16 steps before the last one.
    draw = np.random.default_rng(seed)
    values = np.empty((delay + 1 + length, LANES))
    values[: delay + 1] = 1.2 + 0.2 * draw.uniform(size=(delay + 1, LANES))
    for t in range(delay, delay + length):
        late = values[t - delay]
        values[t + 1] = values[t] + 0.2 * late / (1 + late**10) - 0.1 * values[t]
    return values[delay + 1 :]


def _lorenz(length: int, seed: int, dropped: int = 50) -> np.ndarray:
    draw = np.random.default_rng(seed)
    x, y, z = 1 + 0.1 * draw.normal(size=(3, LANES))
    values = np.empty((dropped + length, LANES))
    for t in range(len(values)):
        for _ in range(2):
            x, y, z = x + 0.1 * (y - x), y + 0.01 * (x * (28 - z) - y), z + 0.01 * (x * y - 8 / 3 * z)
        values[t] = x
    return values[dropped:]
