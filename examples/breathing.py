"""Forecasts of markers on a breathing chest, as for radiotherapy: the methods of Pohl et al. (2022) and others.

The data (nine recordings of three markers, Krilavicius et al., CC BY 4.0) are not part of this repository.

python -m examples.breathing FOLDER --out results/breathing     # finished parts are kept; --auto adds `auto`
python -m examples.breathing FOLDER --quick                     # one recording, one horizon
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

# Rows per second; rows of the first minute, which is for training and choosing; rows of the part that chooses.
RATE, MINUTE, CHOOSE = 10, 600, 300
# Rows that are shown to every method, and hidden units of the network.
HISTORY, HIDDEN = 10, 16
# Three markers in space.
COORDINATES = 9
HORIZONS = (0.1, 0.5, 1.0, 2.0)
NETWORKS = ("uoro", "rtrl", "snap1", "dni:4")
# Learning rates to choose from in the first minute.
RATES = (0.1, 0.03, 0.01, 0.003)
CLIP, SEEDS = 2.0, 3
LINEAR = ("last position", "LMS", "linear regression")
# Methods that are also trained as in the published code: there, weights learn from the target of a row in the same
# step, so that forecasts for h rows ahead use weights that have learned from h - 1 later rows. It shows what that is
# worth, and is not a forecast.
EARLY = " that learns too early"
LEAKING = ("LMS" + EARLY, "uoro" + EARLY)
# The longest recording has fewer rows; all are filled up to this, so that one program runs them all.
MAX_ROWS = 3_300


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.breathing", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder of the recordings")
    parser.add_argument("--out", type=Path, default=Path("runs/breathing"))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--horizons", type=float, nargs="+", default=HORIZONS, help="in seconds")
    parser.add_argument("--auto", action="store_true", help="also the default method, which is slower")
    parser.add_argument("--quick", action="store_true", help="one recording, one horizon and one seed")
    arguments = parser.parse_args()
    from norewind.sweeps.record import read_records, versions, write_record

    recordings = read_recordings(arguments.folder)
    horizons, seeds = arguments.horizons, arguments.seeds
    if arguments.quick:
        recordings, horizons, seeds = dict(list(recordings.items())[:1]), horizons[:1], 1
    methods = (*LINEAR, *LEAKING, *NETWORKS, *(["auto"] if arguments.auto else []))
    for method, seconds in product(methods, horizons):
        for number in range(seeds if method.removesuffix(EARLY) in NETWORKS else 1):
            name = f"{method}-{seconds:g}s-seed{number}"
            if name in read_records(arguments.out):
                continue
            ahead = round(float(seconds) * RATE)
            started = time.perf_counter()
            scores = {key: study(method, rows, ahead, number) for key, rows in recordings.items()}
            settings = {"history": HISTORY, "hidden": HIDDEN, "rates": RATES, "clip": CLIP}
            record = {"method": method, "seconds_ahead": seconds, "seed": number, "settings": settings}
            record |= {"seconds": round(time.perf_counter() - started, 1), "scores": scores}
            write_record(arguments.out, name, record | versions())
            (arguments.out / "table.md").write_text(table(list(read_records(arguments.out).values())))
    print((arguments.out / "table.md").read_text())


def read_recordings(folder: Path) -> dict[str, np.ndarray]:
    """Read the positions of the three markers of every recording.

    Args:
        folder: the folder of the files.

    Returns:
        By recording, one row per frame with the three coordinates of every marker, in millimetres.
    """
    groups: dict[str, list[np.ndarray]] = {}
    for path in sorted(folder.glob("*.csv")):
        lines = path.read_text().replace(",", ".").splitlines()[1:]
        positions = np.array([[float(value) for value in line.split(";")[2:5]] for line in lines])
        groups.setdefault(path.name.partition("-")[0], []).append(positions)
    if not groups:
        raise SystemExit(f"There are no recordings in {folder}: pass the folder with the .csv files.")
    # Some files end with a row of zeros, which is not a position.
    groups = {name: [one[one.any(axis=1)] for one in markers] for name, markers in groups.items()}
    shortest = {name: min(map(len, markers)) for name, markers in groups.items()}
    return {name: np.hstack([one[: shortest[name]] for one in markers]) for name, markers in groups.items()}


def study(method: str, rows: np.ndarray, ahead: int, seed: int) -> dict[str, float]:
    """Forecast one recording with the settings that are best in its first minute.

    Args:
        method: the name of the method.
        rows: the positions.
        ahead: how many rows ahead to forecast.
        seed: the seed of the weights and the noise.

    Returns:
        The scores after the first minute, and the rate that was chosen.
    """
    if method == "auto":
        return scores_of(rows, auto_forecasts(rows, ahead), ahead, MINUTE)
    shift, scale = rows[:MINUTE].mean(axis=0), rows[:MINUTE].std(axis=0) + 1e-6
    scaled = (rows - shift) / scale
    early, name = method.endswith(EARLY), method.removesuffix(EARLY)
    if name in NETWORKS:
        run = partial(network_forecasts(name, ahead, early=early), seed=seed)
    elif name == "LMS":
        run = lms(ahead, early=early)
    else:
        run = {"last position": last_position, "linear regression": regression}[name](ahead)
    # Only the first minute is used to choose; the run that is scored starts again.
    rates = RATES if name in (*NETWORKS, "LMS") else (0.0,)
    errors = [scores_of(rows[:MINUTE], run(scaled[:MINUTE], rate) * scale + shift, ahead, CHOOSE) for rate in rates]
    chosen = min(zip(rates, errors, strict=True), key=lambda pair: pair[1]["rmse"])[0] if len(rates) > 1 else rates[0]
    return {"rate": chosen} | scores_of(rows, run(scaled, chosen) * scale + shift, ahead, MINUTE)


def scores_of(rows: np.ndarray, forecasts: np.ndarray, ahead: int, begin: int) -> dict[str, float]:
    """The scores of forecasts.

    Args:
        rows: the positions.
        forecasts: in row t, what was forecast at row t for row t + ahead.
        ahead: the number of rows between them.
        begin: the first row that is scored.

    Returns:
        RMSE over markers in mm; the same relative to the deviation of the positions; jitter, the mean distance between
        successive forecasts of a marker in mm; and the largest error of a marker.
    """
    true, predicted = rows[begin:], forecasts[begin - ahead : len(rows) - ahead]
    errors = np.where(np.isfinite(predicted), predicted - true, np.inf).reshape(len(true), -1, 3)
    distances = np.linalg.norm(errors, axis=2)
    spread = np.linalg.norm((true - true.mean(axis=0)).reshape(errors.shape), axis=2)
    steps = np.linalg.norm(np.diff(predicted, axis=0).reshape(len(true) - 1, -1, 3), axis=2)
    rmse = np.sqrt(np.mean(distances**2))
    nrmse = rmse / np.sqrt(np.mean(spread**2))
    values = {"rmse": rmse, "nrmse": nrmse, "jitter": steps.mean(), "largest": distances.max()}
    return {name: float(value) for name, value in values.items()}


def windows_of(rows: np.ndarray) -> np.ndarray:
    """The last rows up to each row, flat: the first row is repeated before the beginning."""
    padded = np.vstack([np.repeat(rows[:1], HISTORY - 1, axis=0), rows])
    return np.stack([padded[i : i + HISTORY].ravel() for i in range(len(rows))])


# A method: the rows, scaled, and a learning rate -> what is forecast at every row.
Run = Callable[[np.ndarray, float], np.ndarray]


def last_position(ahead: int) -> Run:
    return lambda rows, rate: rows


def lms(ahead: int, early: bool = False) -> Run:
    """Normalised least mean squares on the last rows; a pair is learned from when its target has come, or too early."""

    def run(rows: np.ndarray, rate: float) -> np.ndarray:
        inputs, forecasts = windows_of(rows), np.zeros_like(rows)
        weights = np.zeros((inputs.shape[1], rows.shape[1]))
        for t, x in enumerate(inputs):
            known = t + ahead - 1 if early else t
            if ahead <= known < len(rows):
                old = inputs[known - ahead]
                weights += rate * np.outer(old, rows[known] - old @ weights) / (1 + old @ old)
            forecasts[t] = x @ weights
        return forecasts

    return run


def regression(ahead: int) -> Run:
    """Linear regression from the last rows, fitted once to the first 54 s (or half of a shorter part)."""

    def run(rows: np.ndarray, rate: float) -> np.ndarray:
        inputs = np.hstack([windows_of(rows), np.ones((len(rows), 1))])
        until = 54 * RATE if len(rows) > MINUTE else CHOOSE
        weights = np.linalg.lstsq(inputs[: until - ahead], rows[ahead:until], rcond=None)[0]
        return inputs @ weights

    return run


@cache
def network(method: str) -> tuple[Any, Any, int]:
    """The cell, the learner of a method, and the length of its window. Compiled once for all recordings."""
    import jax.numpy as jnp
    import optax

    import norewind

    inputs = HISTORY * COORDINATES
    cell = norewind.cells.elman(inputs, HIDDEN, COORDINATES, symbols=False)
    chosen = norewind.registry.parse_method(method)
    estimator = chosen.make(cell.transition, norewind.losses.squared_error, jnp.zeros(inputs))

    def optimizer(learning_rate: Any) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(CLIP), optax.sgd(learning_rate))

    return cell, norewind.online(estimator, optax.inject_hyperparams(optimizer)(0.0)), chosen.window


def network_forecasts(method: str, ahead: int, early: bool = False) -> Callable[..., np.ndarray]:
    """A network that is trained online by a method: a function of the scaled rows, a learning rate and a seed."""
    import jax

    cell, learner, length = network(method)

    def run(rows: np.ndarray, rate: float, seed: int) -> np.ndarray:
        keys = jax.random.split(jax.random.key(seed))
        start = learner.init(cell.init(keys[0]), cell.initial_state(), keys[1])
        start = start._replace(latest_state=start.state)
        settings = {"learning_rate": np.float32(rate)}
        start = start._replace(opt_state=start.opt_state._replace(hyperparams=settings))
        inputs = windows_of(rows).astype(np.float32)
        # At row t the network learns from row t - ahead, whose target has come, and then forecasts from row t.
        count = (len(rows) - ahead) // length * length
        full = MAX_ROWS // length * length

        def filled(part: np.ndarray) -> np.ndarray:
            part = np.vstack([part[:count], np.zeros((full - count, part.shape[1]), np.float32)]).astype(np.float32)
            return part.reshape(-1, length, part.shape[1]) if length > 1 else part

        data = filled(inputs), filled(rows[ahead:]), filled(inputs[ahead:])
        latest = {} if early else {"latest": data[2]}
        _, _, outputs = learner.scan(start, *data[:2], **latest, count=count // length, outputs=True)
        made = np.asarray(outputs, np.float64).reshape(-1, COORDINATES)[:count]
        forecasts = np.repeat(rows[:1], len(rows), axis=0)
        first = 0 if early else ahead
        forecasts[first : first + count] = made
        return forecasts

    return run


def auto_forecasts(rows: np.ndarray, ahead: int) -> np.ndarray:
    """The forecasts of the default method, one model for all coordinates."""
    import norewind

    names = [f"c{i}" for i in range(rows.shape[1])]
    model, forecasts = norewind.Forecaster(targets=names, horizon=ahead), np.zeros_like(rows)
    for t, row in enumerate(rows):
        model.learn_one(dict(zip(names, row.tolist(), strict=True)))
        if t >= MINUTE - ahead:
            last = model.forecast(ahead)[-1]
            forecasts[t] = [last[name] for name in names]
    return forecasts


def table(records: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table: means over recordings and seeds, by horizon.

    Args:
        records: the records of the study.
    """
    from norewind.plotting.tables import markdown

    horizons = sorted({record["seconds_ahead"] for record in records})
    methods = list(dict.fromkeys(record["method"] for record in records))
    rows: list[list[str]] = []
    for method in methods:
        means = {}
        for name in ("rmse", "nrmse", "jitter"):
            for seconds in horizons:
                of = [r["scores"] for r in records if (r["method"], r["seconds_ahead"]) == (method, seconds)]
                means[name, seconds] = np.mean([score[name] for one in of for score in one.values()]) if of else np.nan
        of_rmse = [f"{means['rmse', seconds]:.3f}" for seconds in horizons]
        overall = [f"{np.mean([means[name, seconds] for seconds in horizons]):.3f}" for name in ("nrmse", "jitter")]
        rows.append([method, *of_rmse, *overall])
    header = ["method", *(f"RMSE {seconds:g} s" for seconds in horizons), "nRMSE", "jitter"]
    rows.sort(key=lambda row: float(row[-2]))
    return markdown(header, rows) + "\n"


if __name__ == "__main__":
    main()
