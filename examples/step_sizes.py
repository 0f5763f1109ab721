"""Step sizes that need no choosing against Adam with the default schedule, on streams of `examples.real_data`.

python -m examples.step_sizes --out results/step-sizes

SnAp-1 trains a GRU of 64 units to predict the next byte or row, in one pass. Rows are standardised by the mean and the
deviation of the rows before them, and rows with missing values are left out. Every optimizer has one try, at its
default; Adam is also shown with the best of five rates, chosen on the reported loss of the first seed.
"""

import csv
import time
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro

from examples.real_data import fetch
from examples.real_data.plan import RATES, STREAMS, Stream
from norewind import cells, losses
from norewind.core import adam, idbd, intentional, inverse_sqrt, obgd
from norewind.core.run import Update
from norewind.estimators import snap1
from norewind.learners.online import init_online
from norewind.plotting.tables import markdown
from norewind.storage.files import write_atomically
from norewind.sweeps.record import read_records, versions, write_record
from norewind.training.settings import Settings

CHOSEN = [stream for stream in STREAMS if stream.name in ("german", "electricity", "weather", "pulse")]
SAMPLES, HIDDEN, SEEDS = 20_000, 64, 3
OWN = {"obgd": obgd, "intentional": intentional, "idbd": lambda: idbd(1e-3)}


class Try(NamedTuple):
    """An optimizer with its rate; None for one that is not given any."""

    optimizer: str
    rate: float | None = None

    def make(self) -> optax.GradientTransformation:
        if self.rate is None:
            return OWN[self.optimizer]()
        return adam(inverse_sqrt(self.rate, Settings.alpha))


UNTUNED = (Try("adam", Settings.rate), *(Try(name) for name in OWN))
TRIES = (*UNTUNED, *(Try("adam", rate) for rate in RATES if rate != Settings.rate))


def samples_of(stream: Stream, cache: Path) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets: the bytes or rows of a stream, and the next ones."""
    path = fetch.fetched(stream.item, cache)
    if stream.is_text:
        symbols = np.frombuffer(path.read_bytes()[: SAMPLES + 1], np.uint8).astype(np.int32)
        return symbols[:-1], symbols[1:]
    with path.open(newline="") as file:
        rows = [[_number(row[name]) for name in stream.settings.inputs] for row in csv.DictReader(file)]
    values = np.array(rows[: SAMPLES + 1])
    values = values[~np.isnan(values).any(axis=1)]
    counts = np.arange(1, len(values) + 1)[:, None]
    means = np.cumsum(values, axis=0) / counts
    deviations = np.sqrt(np.maximum(np.cumsum(values**2, axis=0) / counts - means**2, 1e-6))
    # Each target is scaled by what was known before it.
    xs = (values[:-1] - means[:-1]) / deviations[:-1]
    targets = (values[1:] - means[:-1]) / deviations[:-1]
    return xs[10:].astype(np.float32), np.clip(targets[10:], -10, 10).astype(np.float32)


def _number(text: str) -> float:
    return float("nan") if text in ("", "NA") else float(text)


def mean_losses(stream: Stream, cache: Path, tried: Try) -> np.ndarray:
    """The mean loss over the whole stream for each seed, in bits or in variances."""
    xs, targets = samples_of(stream, cache)
    if stream.is_text:
        cell, loss, unit = cells.gru(256, HIDDEN, 256), losses.cross_entropy, losses.BIT
    else:
        width = xs.shape[1]
        cell, loss = cells.gru(width, HIDDEN, width, symbols=False), losses.squared_error
        unit = width / 2
    update = Update(snap1(cell.transition, loss), optax.with_extra_args_support(tried.make()))

    def one(key):
        run = init_online(update, cell.init(key), cell.initial_state(), key)

        def body(run, sample):
            run, estimate, _ = update.step(run, *sample)
            return run, estimate.loss

        return jnp.mean(jax.lax.scan(body, run, (xs, targets))[1]) / unit

    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), SEEDS)))


def newest_row_loss(stream: Stream, cache: Path) -> float | None:
    """The loss of predicting each row by the one before it."""
    if stream.is_text:
        return None
    xs, targets = samples_of(stream, cache)
    return float(np.mean((targets - xs) ** 2))


def record_name(stream: Stream, tried: Try) -> str:
    return f"{stream.name}_{tried.optimizer}" + ("" if tried.rate is None else f"_rate={tried.rate:g}")


def table(out: Path) -> str:
    """The mean loss by stream and optimizer, ± the standard deviation over seeds."""
    records, rows = read_records(out), []
    for stream in CHOSEN:
        found = {tried: records[record_name(stream, tried)]["losses"] for tried in TRIES}
        best = min((tried for tried in TRIES if tried.rate), key=lambda tried: found[tried][0] or np.inf)
        shown = [_shown(found[tried]) for tried in UNTUNED]
        simple = records[record_name(stream, TRIES[0])]["newest row"]
        simple = "" if simple is None else f"{simple:.4g}"
        rows.append([stream.name, *shown, f"{_shown(found[best])} ({best.rate:g})", simple])
    header = ["stream", "adam, default", *OWN, "adam, best of five rates", "the newest row"]
    return markdown(header, rows)


def _shown(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{mean(known):.4g} ± {stdev(known):.1g}" if len(known) == len(values) else "diverged"


def main(out: Path = Path("runs/step-sizes"), cache: Path = Path("runs/cache")) -> None:
    """Train what has no record yet, and write the table.

    Args:
        out: the folder of the records and the table.
        cache: the folder of downloaded data.
    """
    for stream in CHOSEN:
        for tried in TRIES:
            name = record_name(stream, tried)
            if name in read_records(out):
                continue
            began = time.process_time()
            values = mean_losses(stream, cache, tried)
            record = {
                "settings": {"samples": SAMPLES, "hidden": HIDDEN, "seeds": SEEDS, **tried._asdict()},
                "losses": [float(value) if np.isfinite(value) else None for value in values],
                "newest row": newest_row_loss(stream, cache),
                "cpu_seconds": round(time.process_time() - began, 1),
                **versions(),
            }
            write_record(out, name, record)
            print(name, record["losses"], record["cpu_seconds"], flush=True)
    write_atomically(out / "table.md", table(out).encode())
    print(table(out))


if __name__ == "__main__":
    tyro.cli(main)
