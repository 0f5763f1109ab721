"""Forecast a sensor ten minutes ahead, online with UORO, and detect a fault by the error of the forecast.

python examples/sensors.py
"""

import argparse
import csv
import tempfile
from pathlib import Path

import jax
import numpy as np

import norewind
from norewind.core.losses import known_squared_error
from norewind.streams import RowStream, Source

HORIZON = 10
WINDOW = 8
FAULT = 0.9  # after this fraction of the rows, the power sensor hangs for a while
FAULT_ROWS = 60


def main() -> None:
    options = parse_options()
    with tempfile.TemporaryDirectory() as folder:
        path = make_readings(Path(folder) / "sensors.csv", options.rows, options.seed)
        # Columns are standardised as rows arrive. The power is forecast ten rows ahead.
        stream = RowStream(Source(path), inputs=["wind", "power"], targets=["power"], steps=[HORIZON])

        cell = norewind.cells.gru(inputs=2, hidden=24, outputs=1, symbols=False)
        # Windows of eight rows: exact within a window, UORO across them, which is much less noisy than single rows.
        estimator = norewind.uoro(*norewind.window(cell.transition, known_squared_error))
        inner = norewind.online(estimator, norewind.adam(norewind.inverse_sqrt(1e-2, alpha=0.03)))
        weights_key, noise_key = jax.random.split(jax.random.key(options.seed))
        start = inner.init(cell.init(weights_key), cell.initial_state(), noise_key)
        # A forecast is learned from when its row arrives, ten rows later.
        learner = norewind.learners.AheadLearner(inner, known_squared_error, stream.steps, WINDOW)
        x, power = np.zeros(2, np.float32), np.zeros(1, np.float32)
        run = learner.init(start, x, power, power)

        surprise, still = [], []  # errors of the forecast and of persistence, in standard deviations

        def see(first, samples, outputs):
            _, due = outputs  # the forecasts made at these rows, and the earlier forecasts of these rows
            surprise.extend(np.abs(due - samples.targets)[:, 0])
            still.extend(np.abs(samples.last - samples.targets)[:, 0])

        # `fit` cuts the stream into windows, and reports its predictions row by row.
        norewind.fit(stream, learner, run, window=WINDOW, hooks=norewind.training.Hooks(outputs=see))

    fault = int(FAULT * options.rows)
    quarter, half = options.rows // 4, options.rows // 2
    errors = {"GRU": np.array(surprise), "persistence": np.array(still)}
    for name, error in errors.items():
        print(f"{name}: squared error {np.mean(error[half:fault] ** 2):.3f} of the power's variance")
    # The second quarter defines the normal error. From then on, six times that is an alarm.
    alarm = smooth(errors["GRU"])
    alarms = half + np.flatnonzero(alarm[half:] > 6 * np.median(alarm[quarter:half]))
    print(f"false alarms: {np.sum(alarms < fault)}")
    found = alarms[alarms >= fault]
    if not len(found):
        raise SystemExit("the fault was not found.")
    print(f"the sensor hangs from row {fault} to {fault + FAULT_ROWS}; alarm at row {found[0]}")


def smooth(errors: np.ndarray, rows: int = 10) -> np.ndarray:
    """Means over the latest rows, so that a single odd reading is not a fault.

    Args:
        errors: the errors by row.
        rows: the number of rows to average.
    """
    return np.convolve(errors, np.ones(rows) / rows)[: len(errors)]


def make_readings(path: Path, rows: int, seed: int) -> Path:
    """Write readings of a varying wind and of a turbine's power that follows it, whose sensor hangs at the end.

    Args:
        path: the file.
        rows: the number of readings.
        seed: the seed of the noise.
    """
    rng = np.random.default_rng(seed)
    minute = np.arange(rows)
    wind = 8 + 3 * np.sin(minute / 9) + 2 * np.sin(minute / 31) + 0.2 * rng.normal(size=rows)
    power = 50 * np.tanh((np.roll(wind, 3) - 8) / 4) + 60 + rng.normal(size=rows)
    fault = int(FAULT * rows)
    power[fault : fault + FAULT_ROWS] = power[fault]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["minute", "wind", "power"])
        writer.writerows(zip(minute, wind.round(2), power.round(1), strict=True))
    return path


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Forecast a sensor online, and find its fault.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=12_000, help="how many readings")
    parser.add_argument("--seed", type=int, default=0, help="seed of the readings, the weights and the noise")
    return parser.parse_args()


if __name__ == "__main__":
    main()
