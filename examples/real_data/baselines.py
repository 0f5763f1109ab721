"""What others reach: simple forecasts, exact least squares, compressors, and the libraries of others.py.

Every forecaster is as online as the networks: it forecasts a row before it sees it, and
learns from it when it has come. Of one with something to choose, five values are tried
and the best is kept: as many as rates of a network.
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
from forecasts import least_squares, read_series, scored, simple_forecasts, squared_errors
from plan import RATES, STREAMS, Stream, settings_of

from norewind.runs.metrics import digits
from norewind.runs.record import Record, read_record, versions, write_record
from norewind.runs.settings import Settings

REQUIREMENTS = ("river==0.26.1", "statsforecast==2.1.1", "pyppmd==1.3.1")
RIDGES = (1e-1, 1, 10, 100, 1000)
COMPRESSORS = {
    "zpaq -m5": ["zpaq", "a", "{out}", "{file}", "-m5", "-t1"],
    "xz -9e": ["xz", "-9e", "-k", "--threads=1", "{file}"],
    "bzip2 -9": ["bzip2", "-9", "-k", "{file}"],
}
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
"""Models and what is tried. The last two take too long on the longer streams."""
LONG = 4_000


def jobs_of(stream: Stream) -> dict[str, tuple]:
    """The baselines of a stream, and what is tried of each."""
    if stream.is_text:
        return {**dict.fromkeys(COMPRESSORS, (None,)), "ppmd": (6, 16)}
    seasonal = {f"{season} rows before": (None,) for season in stream.seasons}
    simple = {"running mean": (None,), "newest value": (None,), **seasonal}
    linear = {f"least squares, {lags} lags": RIDGES for lags in (24, 168)}
    long = (stream.settings.samples or 0) > LONG
    others = {name: tries for name, tries in OTHERS.items() if not (long and name.endswith(("seasonal ARIMA", "MSTL")))}
    return {**simple, **linear, **others}


def find_baselines(cache: Path, out: Path, samples: float | None = None, jobs: int | None = None) -> None:
    """Write the record of every baseline that has none with the same settings yet, several side by side."""
    python = environment(cache / "environment")
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    waiting = []
    for stream in STREAMS:
        for name, tries in jobs_of(stream).items():
            settings = settings_of(stream, cache, samples)
            kept = read_record(path_of(out, stream, name))
            if kept is None or kept["settings"] != described(settings, name, tries):
                waiting.append((stream, name, tries, settings, python, out))
    with ProcessPoolExecutor(jobs or os.cpu_count(), get_context("spawn")) as pool:
        for line in pool.map(find, waiting):
            print(line, flush=True)


def path_of(out: Path, stream: Stream, name: str) -> Path:
    return out / "baselines" / f"{stream.name}_{name.replace(' ', '-').replace(',', '')}.json"


def described(settings: Settings, name: str, tries: tuple) -> dict[str, Any]:
    return {"baseline": name, "tries": list(tries), "source": settings.source, "samples": settings.samples} | (
        {} if settings.format == "bytes" else {"inputs": list(settings.inputs), "horizon": settings.horizon}
    )


def find(job: tuple) -> str:
    """Try a baseline on a stream, write the record of the best try, and say what it reached."""
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
    write_record(path_of(out, stream, name), record)
    return f"{stream.name}: {name}: {means[best]} ({record['seconds']} s)"


Tried = tuple[list[Record], dict[str, str]]
"""A record of every try, and the versions of the libraries."""


def text_tries(stream: Stream, name: str, tries: tuple, settings: Settings, python: Path) -> Tried:
    """How long a compressor's code of the text is."""
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
        raise SystemExit(f"{command[0]} is not installed. It is a package of most systems.") from None
    size = next(path for path in file.parent.iterdir() if path != file).stat().st_size
    return {"bytes": size, "cpu_seconds": round(cpu_seconds() - began, 3)}


def series_tries(stream: Stream, name: str, tries: tuple, settings: Settings, python: Path) -> Tried:
    """How large the errors of a forecaster are."""
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
    """CPU time of this process and of the commands that it has run."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def asked(python: Path, job: Mapping[str, Any], *paths: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """What others.py answers about every try in its own environment, and the versions of the libraries."""
    script = Path(__file__).with_name("others.py")
    command = [str(python), str(script), json.dumps(job), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{job}: {done.stderr.strip().splitlines()[-1]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    return answer["answers"], answer["versions"]


def environment(folder: Path) -> Path:
    """The Python of an environment with other people's libraries, which is made if it is not there."""
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
