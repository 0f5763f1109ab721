"""The series of the study in `scoreboards.series`, from packages and from files that other boards use too."""

import csv
import gzip
import zlib
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

# Longer series are cut, so that all alternatives finish in reasonable time.
LONGEST = 3_000
HALF_HOURLY, HOURLY, FIVE_MINUTES = (48, 336), (24, 168), (288, 2016)


class NumberSeries(NamedTuple):
    """A series of numbers.

    Attributes:
        values: its values, of which none is missing.
        periods: its seasons in rows, as a person who knows the data would name them; empty if there are none.
        far: the second step that is forecast, besides the next row.
    """

    values: np.ndarray
    periods: tuple[int, ...]
    far: int


def is_even(name: str) -> bool:
    """Return whether a series belongs to the half that settings are chosen on.

    Args:
        name: the name of the series.
    """
    return zlib.crc32(name.encode()) % 2 == 0


def load_series(data: Path) -> dict[str, NumberSeries]:
    """Load all series.

    Args:
        data: the folder with the folders `series`, `classes` and `nab`.

    Returns:
        The series by name.
    """
    found = {**_from_statsmodels(), **_from_river(), **_from_pmdarima(), **_from_vega(), **_from_sktime()}
    found.update(_from_files(data))
    return {name: series._replace(values=_known(series.values)[:LONGEST]) for name, series in found.items()}


def _known(values: Iterable[float]) -> np.ndarray:
    """Return values as an array, with the last known one in place of each missing one."""
    values = np.array(values, np.float64)
    values = values[np.flatnonzero(np.isfinite(values))[0] :]
    latest = np.maximum.accumulate(np.where(np.isfinite(values), np.arange(len(values)), 0))
    return values[latest]


def _folder(package: str) -> Path:
    """Return the folder of an installed package, which is not imported."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"The study needs the package {package}: pip install {package}")
    return Path(spec.origin).parent


def _column(path: Path, name: str | int, *, where: Callable[[dict], bool] = lambda row: True) -> np.ndarray:
    """Return a column of a CSV file as numbers; a missing one is NaN."""
    text = gzip.decompress(path.read_bytes()).decode() if path.name.endswith("gz") else path.read_text()
    rows = [row for row in csv.DictReader(text.splitlines()) if where(row)]
    key = name if isinstance(name, str) else list(rows[0])[name]
    return np.array([float(row[key] or "nan") for row in rows])


def _from_statsmodels() -> dict[str, NumberSeries]:
    data = _folder("statsmodels") / "datasets"
    nino = np.genfromtxt(str(data / "elnino/elnino.csv"), delimiter=",", skip_header=1)[:, 1:]
    macro = data / "macrodata/macrodata.csv"
    return {
        "co2 weekly": NumberSeries(_column(data / "co2/co2.csv", "co2"), (52,), 12),
        "el nino monthly": NumberSeries(nino.reshape(-1), (12,), 6),
        "nile yearly": NumberSeries(_column(data / "nile/nile.csv", "volume"), (), 6),
        "sunspots yearly": NumberSeries(_column(data / "sunspots/sunspots.csv", "SUNACTIVITY"), (11,), 6),
        "us gdp quarterly": NumberSeries(_column(macro, "realgdp"), (4,), 4),
        "us unemployment quarterly": NumberSeries(_column(macro, "unemp"), (4,), 4),
        "electrical equipment monthly": NumberSeries(_column(data / "elec_equip/elec_equip.csv", 1), (12,), 6),
    }


def _from_river() -> dict[str, NumberSeries]:
    data = _folder("river") / "datasets"
    return {
        "airline passengers monthly": NumberSeries(_column(data / "airline-passengers.csv", "passengers"), (12,), 6),
        "water flow hourly": NumberSeries(_column(data / "water-flow.csv", 1), HOURLY, 24),
        "trump approval daily": NumberSeries(_column(data / "trump_approval.csv.gz", "five_thirty_eight"), (7,), 7),
        "apple returns daily": NumberSeries(_column(data / "sp500.csv.gz", "AAPL"), (), 7),
    }


def _from_pmdarima() -> dict[str, NumberSeries]:
    datasets = import_module("pmdarima.datasets")  # an optional package
    return {
        "taylor load half-hourly": NumberSeries(datasets.load_taylor(), HALF_HOURLY, 48),
        "wine monthly": NumberSeries(datasets.load_wineind(), (12,), 6),
        "heart rate": NumberSeries(datasets.load_heartrate(), (), 6),
        "wool quarterly": NumberSeries(datasets.load_woolyrnq(), (4,), 4),
        "beer quarterly": NumberSeries(datasets.load_ausbeer(), (4,), 4),
        "microsoft price daily": NumberSeries(datasets.load_msft()["Close"], (5,), 5),
    }


def _from_vega() -> dict[str, NumberSeries]:
    data = _folder("vega_datasets") / "_data"
    return {
        "seattle temperature hourly": NumberSeries(_column(data / "seattle-temps.csv", "temp"), HOURLY, 24),
        "san francisco temperature hourly": NumberSeries(_column(data / "sf-temps.csv", "temp"), HOURLY, 24),
        "seattle highs daily": NumberSeries(_column(data / "seattle-weather.csv", "temp_max"), (7,), 7),
        "seattle wind daily": NumberSeries(_column(data / "seattle-weather.csv", "wind"), (7,), 7),
        "us jobs monthly": NumberSeries(_column(data / "us-employment.csv", "nonfarm"), (12,), 6),
    }


def _from_sktime() -> dict[str, NumberSeries]:
    data = _folder("sktime") / "datasets/data"
    return {
        "prescriptions monthly": NumberSeries(_column(data / "PBS_dataset/PBS_dataset.csv", "Scripts"), (12,), 6),
        "road deaths monthly": NumberSeries(_column(data / "seatbelts/seatbelts.csv", "KSI"), (12,), 6),
        "solar half-hourly": NumberSeries(_column(data / "solar/solar.csv", "solar_gen"), (48,), 24),
        "lynx yearly": NumberSeries(_column(data / "Lynx/Lynx.csv", 1), (10,), 6),
        "yahoo traffic hourly": NumberSeries(_column(data / "yahoo/yahoo.csv", "data"), HOURLY, 24),
        "us consumption quarterly": NumberSeries(_column(data / "Uschange/Uschange.csv", "Consumption"), (4,), 4),
    }


def _from_files(data: Path) -> dict[str, NumberSeries]:
    ett, loads = data / "series/ETTh2.csv", data / "classes/electricity.csv"
    exchange = np.genfromtxt(data / "series/exchange_rate.txt.gz", delimiter=",")
    found = {
        "oil temperature hourly": NumberSeries(_column(ett, "OT"), HOURLY, 24),
        "transformer load hourly": NumberSeries(_column(ett, "HUFL"), HOURLY, 24),
        "australian dollar daily": NumberSeries(exchange[:, 0], (5,), 5),
        "yen daily": NumberSeries(exchange[:, 5], (5,), 5),
        "laser": NumberSeries(np.loadtxt(data / "series/laser.txt"), (), 8),
        "sunspots monthly": NumberSeries(np.loadtxt(data / "series/sunspot.txt"), (), 12),
        "new south wales load half-hourly": NumberSeries(_column(loads, "nswdemand"), HALF_HOURLY, 48),
        "new south wales price half-hourly": NumberSeries(_column(loads, "nswprice"), HALF_HOURLY, 48),
    }
    for name, (file, periods, far) in _OF_NAB.items():
        found[name] = NumberSeries(_column(data / "nab/data" / file, "value"), periods, far)
    return found


_OF_NAB = {
    "new york taxis half-hourly": ("realKnownCause/nyc_taxi.csv", HALF_HOURLY, 48),
    "ambient temperature hourly": ("realKnownCause/ambient_temperature_system_failure.csv", HOURLY, 24),
    "machine temperature": ("realKnownCause/machine_temperature_system_failure.csv", FIVE_MINUTES, 12),
    "latency of requests": ("realKnownCause/ec2_request_latency_system_failure.csv", FIVE_MINUTES, 12),
    "apple tweets": ("realTweets/Twitter_volume_AAPL.csv", FIVE_MINUTES, 12),
    "amazon tweets": ("realTweets/Twitter_volume_AMZN.csv", FIVE_MINUTES, 12),
    "load balancer requests": ("realAWSCloudwatch/elb_request_count_8c0756.csv", FIVE_MINUTES, 12),
    "database cpu": ("realAWSCloudwatch/rds_cpu_utilization_e47b3b.csv", FIVE_MINUTES, 12),
    "server cpu": ("realAWSCloudwatch/ec2_cpu_utilization_5f5533.csv", FIVE_MINUTES, 12),
    "cost per click hourly": ("realAdExchange/exchange-2_cpc_results.csv", HOURLY, 24),
    "road speed": ("realTraffic/speed_7578.csv", (), 12),
    "travel time": ("realTraffic/TravelTime_387.csv", (), 12),
}
