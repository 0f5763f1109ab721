"""`norewind compress` and `norewind decompress`: a file compressed with the learner's own predictions."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from norewind.cli.common import progress_bar
from norewind.storage.files import write_atomically
from norewind.training.settings import SettingsError, option

ENDING = ".norewind"
File = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]


def compress(
    file: File,
    *,
    out: Annotated[Path | None, option("FILE", f"FILE{ENDING}")] = None,
    network: bool = False,
    budget: float = 50,
) -> None:
    """Compress a file with the predictions of `train`'s default method, to prove its loss in bits.

    Without a network, the file can be decompressed on any processor. With one, it becomes
    smaller, but only the same versions on the same kind of processor can decompress it;
    anywhere else, `decompress` ends with an error.

    Args:
        file: The file to compress.
        out: The compressed file.
        network: Mix in the predictions of a network, as train does.
        budget: The time that one byte may take in train with this network, in microseconds on one core.
    """
    from norewind.forecasting.compress import compress

    if file.exists() and not (file.is_file() or file.is_dir() or file.is_fifo()):
        raise SettingsError(f"{file} is not a file: it may have no end.")
    content = file.read_bytes()
    with progress_bar("compress", len(content)) as update:
        code = compress(content, network=network, budget=budget, report=lambda done: update(completed=done))
    out = out or file.with_name(file.name + ENDING)
    write_atomically(out, code)
    bits = f", {8 * len(code) / len(content):.4f} bits per byte" if content else ""
    print(f"{out}: {len(content):,} bytes became {len(code):,}{bits}.", file=sys.stderr)


def decompress(
    file: File,
    *,
    out: Annotated[Path | None, option("FILE", f"FILE without {ENDING}")] = None,
) -> None:
    """Decompress a file made by `norewind compress`. If it used a network, the versions and processor must be the same.

    Args:
        file: The file to decompress.
        out: The decompressed file. An existing file is only overwritten if it is named here.
    """
    from norewind.forecasting.compress import decompress

    code = file.read_bytes()
    if out is None:
        out = file.with_suffix("") if file.suffix == ENDING else file.with_name(file.name + ".decompressed")
        if out.exists():
            raise SettingsError(f"{out} exists. Name the file to write with --out.")
    with progress_bar("decompress") as update:
        content = decompress(code, report=lambda done: update(completed=done))
    write_atomically(out, content)
    print(f"{out}: {len(content):,} bytes.", file=sys.stderr)
