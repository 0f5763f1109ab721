"""`norewind compress` and `norewind decompress`: a file coded with the learner's own predictions."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from norewind.cli.running import BAD_INPUT, leave
from norewind.runs.settings import option

ENDING = ".norewind"


def compress(
    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")],
    *,
    out: Annotated[Path | None, option("FILE", f"FILE{ENDING}")] = None,
    network: bool = False,
    budget: float = 50,
) -> None:
    """Compress a file with the predictions of `train`'s default method, to prove its loss in bits.

    Without a network, the file can be decompressed on any processor. With one, it becomes
    smaller, but only the same versions on the same kind of processor can decompress it,
    and elsewhere it is refused.

    Args:
        file: The file to compress.
        out: The compressed file.
        network: Mix in the predictions of a network, as train does.
        budget: The time that one byte may take in train with this network, in microseconds on one core.
    """
    from norewind.files import write_atomically
    from norewind.runs.compress import compressed

    if file.exists() and not (file.is_file() or file.is_dir() or file.is_fifo()):
        leave(f"norewind compress: {file} is not a file: it may have no end.", BAD_INPUT)
    content = file.read_bytes()

    def work(report):
        return compressed(content, network=network, budget=budget, report=report)

    code = _shown("compress", len(content), work)
    out = out or file.with_name(file.name + ENDING)
    write_atomically(out, code)
    bits = f", {8 * len(code) / len(content):.4f} bits per byte" if content else ""
    print(f"{out}: {len(content):,} bytes became {len(code):,}{bits}.", file=sys.stderr)


def decompress(
    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")],
    *,
    out: Annotated[Path | None, option("FILE", f"FILE without {ENDING}")] = None,
) -> None:
    """Decompress a file that `norewind compress` made; if it used a network, with the same versions and processor.

    Args:
        file: The file to decompress.
        out: The decompressed file. An existing file is only overwritten if it is named here.
    """
    from norewind.files import write_atomically
    from norewind.runs.compress import decompressed

    if out is None:
        out = file.with_suffix("") if file.suffix == ENDING else file.with_name(file.name + ".decompressed")
        if out.exists():
            leave(f"norewind decompress: {out} exists. Name the file to write with --out.", BAD_INPUT)
    data = file.read_bytes()
    content = _shown("decompress", len(data), lambda report: decompressed(data, report=report))
    write_atomically(out, content)
    print(f"{out}: {len(content):,} bytes.", file=sys.stderr)


def _shown(command: str, size: int, work):
    """Do the work with a progress bar; what is wrong with the file ends the command with a message."""
    from rich.console import Console
    from rich.progress import Progress

    from norewind.runs.compress import CodeError

    try:
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task(command, total=size if command == "compress" else None)
            return work(lambda done: progress.update(bar, completed=done))
    except CodeError as error:
        leave(f"norewind {command}: {error}", BAD_INPUT)
