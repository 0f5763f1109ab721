"""Baselines: simple forecasts, exact least squares, compressors, and the libraries of others.py.

Every forecaster is online, like the networks: it forecasts a row before it sees it, and
learns from it when it arrives. If a forecaster has a parameter, five values are tried and
the best is kept, as for the rates of a network.
"""

import json
import os
import resource
import subprocess
import tempfile
import time
import venv
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from examples.real_data.forecasts import least_squares, read_series, scored, simple_forecasts, squared_errors
from examples.real_data.plan import RATES, STREAMS, Stream, settings_of
from norewind.sweeps.record import Record, read_records, versions, write_record
from norewind.training.settings import Settings
from norewind.wording import digits

REQUIREMENTS = ("river==0.26.1", "statsforecast==2.1.1", "pyppmd==1.3.1")
RIDGES = (1e-1, 1, 10, 100, 1000)
COMPRESSORS = {
    "zpaq -m5": ["zpaq", "a", "{out}", "{file}", "-m5", "-t1"],
    "xz -9e": ["xz", "-9e", "-k", "--threads=1", "{file}"],
    "bzip2 -9": ["bzip2", "-9", "-k", "{file}"],
}
# The bytes that a compressor writes for an empty file, if there are many. Its predictions are judged without them.
HEADERS = {"zpaq -m5": 1014}
# Models, with the values to try. The last two take too long on the longer streams.
OTHERS: dict[str, tuple] = {
    "river linear": RATES,
    "river Bayesian linear": (None, 0.9999, 0.999, 0.997, 0.99),
    "river HoltWinters": (0.05, 0.1, 0.2, 0.4, 0.8),
    "river SNARIMAX": RATES,
    "statsforecast AutoETS": (None,),
    "statsforecast AutoTheta": (None,),
    "statsforecast AutoARIMA": (None,),
    "statsforecast seasonal ARIMA": (None,),
    "statsforecast MSTL": (None,),
}
LONG = 4_000


def jobs_of(stream: Stream) -> dict[str, tuple]:
    """The baselines of a stream, with the values to try."""
    if stream.is_text:
        return {**dict.fromkeys(COMPRESSORS, (None,)), "ppmd": (6, 16)}
    seasonal = {f"{season} rows before": (None,) for season in stream.seasons}
    simple = {"running mean": (None,), "newest value": (None,), **seasonal}
    linear = {f"least squares, {lags} lags": RIDGES for lags in (24, 168)}
    long = (stream.settings.samples or 0) > LONG
    others = {name: tries for name, tries in OTHERS.items() if not (long and name.endswith(("seasonal ARIMA", "MSTL")))}
    return {**simple, **linear, **others}


def find_baselines(cache: Path, out: Path, samples: float | None = None, jobs: int | None = None) -> None:
    """Run every baseline that has no record with the same settings yet, several at the same time.

    Args:
        cache: the folder of downloaded data.
        out: the folder of the records.
        samples: at most this many samples of each stream.
        jobs: the number of processes; by default one per core.
    """
    python = environment(cache / "environment")
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    kept, waiting = read_records(out), []
    for stream in STREAMS:
        for name, tries in jobs_of(stream).items():
            settings = settings_of(stream, cache, samples)
            if kept.get(record_name(stream, name), {}).get("settings") != described(settings, name, tries):
                waiting.append((stream, name, tries, settings, python, out))
    with ProcessPoolExecutor(jobs or os.cpu_count(), get_context("spawn")) as pool:
        for line in pool.map(find, waiting):
            print(line, flush=True)


def record_name(stream: Stream, baseline: str) -> str:
    """The name of a baseline's record.

    Args:
        stream: the stream.
        baseline: the name of the baseline.
    """
    return f"baseline_{stream.name}_{baseline.replace(' ', '-').replace(',', '')}"


def described(settings: Settings, name: str, tries: tuple) -> dict[str, Any]:
    return {"baseline": name, "tries": list(tries), "source": settings.source, "samples": settings.samples} | (
        {} if settings.format == "bytes" else {"inputs": list(settings.inputs), "horizon": settings.horizon}
    )


def find(job: tuple) -> str:
    """Try a baseline on a stream, write the record of the best try, and return a line about its result."""
    stream, name, tries, settings, python, out = job
    began = time.monotonic()
    find_tries = text_tries if stream.is_text else series_tries
    tried, libraries = find_tries(stream, name, tries, settings, python)
    means = [record["mean"] for record in tried]
    best = min(range(len(tried)), key=lambda i: np.inf if means[i] is None else means[i])
    record = {
        "settings": described(settings, name, tries),
        "best": tries[best],
        "means": means,
        "seconds": round(time.monotonic() - began, 1),
        "microseconds": digits(1e6 * tried[best]["cpu_seconds"] / tried[best]["samples"]),
        **tried[best],
        "libraries": libraries,
        **versions(),
    }
    write_record(out, record_name(stream, name), record)
    return f"{stream.name}: {name}: {means[best]} ({record['seconds']} s)"


# The record of every try, and the versions of the libraries.
Tried = tuple[list[Record], dict[str, str]]


def text_tries(stream: Stream, name: str, tries: tuple, settings: Settings, python: Path) -> Tried:
    """Measure the length of a compressor's code of a text.

    Args:
        stream: the stream.
        name: the baseline.
        tries: the values to try.
        settings: the settings of the stream.
        python: the Python of the environment with the other libraries.
    """
    data = Path(settings.source).read_bytes()[: int(settings.samples or 0)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "text"
        file.write_bytes(data)
        if name == "ppmd":
            answers, libraries = asked(python, {"model": name, "tries": tries}, file)
        else:
            answers, libraries = [compressed(file, COMPRESSORS[name])], {}
    return [
        {
            "mean": digits(8 * answer["bytes"] / len(data)),
            "samples": len(data),
            "cpu_seconds": answer["cpu_seconds"],
        }
        for answer in answers
    ], libraries


def compressed(file: Path, words: list[str]) -> dict[str, Any]:
    command = [word.format(file=file.name, out="text.zpaq") for word in words]
    began = cpu_seconds()
    try:
        subprocess.run(command, cwd=file.parent, check=True, capture_output=True)
    except FileNotFoundError:
        raise SystemExit(f"{command[0]} is not installed. Install it with your system's package manager.") from None
    size = next(path for path in file.parent.iterdir() if path != file).stat().st_size
    return {"bytes": size, "cpu_seconds": round(cpu_seconds() - began, 3)}


def series_tries(stream: Stream, name: str, tries: tuple, settings: Settings, python: Path) -> Tried:
    """Measure the errors of a forecaster.

    Args:
        stream: the stream.
        name: the baseline.
        tries: the values to try.
        settings: the settings of the stream.
        python: the Python of the environment with the other libraries.
    """
    series = read_series(settings)
    if name in OTHERS:
        job = {"model": name, "horizon": series.horizon, "season": stream.seasons[0], "tries": tries}
        with tempfile.TemporaryDirectory() as folder:
            given, made = Path(folder) / "values.npy", Path(folder) / "forecasts.npy"
            np.save(given, series.values)
            answers, libraries = asked(python, job, given, made)
            forecasts = np.load(made)
    else:
        forecasts, answers, libraries = [], [], {}
        for setting in tries:
            began = time.process_time()
            linear = name.startswith("least squares")
            made = least_squares(series, int(name.split()[2]), setting) if linear else simple_forecasts(series, name)
            forecasts.append(made)
            answers.append({"cpu_seconds": round(time.process_time() - began, 3)})
    every = settings.metrics_every or 1
    errors = [squared_errors(series, made) for made in forecasts]
    return [scored(one, every) | answer for one, answer in zip(errors, answers, strict=True)], libraries


def cpu_seconds() -> float:
    """The CPU time of this process and of the commands that it has run."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def asked(python: Path, job: Mapping[str, Any], *paths: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Run others.py in its own environment.

    Args:
        python: the Python of the environment.
        job: the model, with the values to try.
        paths: the files to read and write.

    Returns:
        The answer for every try, and the versions of the libraries.
    """
    script = Path(__file__).with_name("others.py")
    command = [str(python), str(script), json.dumps(job), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{job}: {done.stderr.strip().splitlines()[-1]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    return answer["answers"], answer["versions"]


def environment(folder: Path) -> Path:
    """The Python of an environment with the other libraries, which is created if needed."""
    python, finished = folder / "bin/python", folder / "requirements.txt"
    wanted = "\n".join(REQUIREMENTS)
    if not finished.exists() or finished.read_text() != wanted:
        print(f"installing {', '.join(REQUIREMENTS)} in {folder} ...", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        done = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{', '.join(REQUIREMENTS)} could not be installed: {done.stderr.strip()}")
        finished.write_text(wanted)
    return python
