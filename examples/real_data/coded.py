"""The three texts compressed with the predictions of `auto`, decompressed again, and compared with compressors."""

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from baselines import COMPRESSORS, path_of
from plan import STREAMS, Stream, settings_of

from norewind.instruments.tables import markdown
from norewind.runs import compress
from norewind.runs.record import Record, read_record, versions, write_record


def compress_texts(cache: Path, out: Path, samples: float | None = None) -> None:
    """Write the record of every text that has none with the same settings yet."""
    for stream in filter(lambda stream: stream.is_text, STREAMS):
        settings = settings_of(stream, cache, samples)
        asked: dict[str, Any] = {"source": settings.source, "samples": settings.samples, "budget": settings.budget}
        kept = read_record(_path(out, stream))
        if kept is None or kept["settings"] != asked:
            content = Path(settings.source).read_bytes()[: int(settings.samples or 0)]
            write_record(_path(out, stream), {"settings": asked, **_measured(content, settings.budget), **versions()})


def _measured(content: bytes, budget: float) -> Record:
    times = [time.process_time()]
    packed = compress.compressed(content, network=True, budget=budget)
    times.append(time.process_time())
    if compress.decompressed(packed) != content:
        raise AssertionError("What came back is not what was compressed.")
    times.append(time.process_time())
    header = len(packed) - len(compress.code_of(packed))
    seconds = [round(after - before, 1) for before, after in pairwise(times)]
    return {"bytes": len(packed), "header": header, "cpu_seconds": seconds[0], "cpu_seconds_back": seconds[1]}


def _path(out: Path, stream: Stream) -> Path:
    return out / "compression" / f"{stream.name}.json"


def compression_table(cache: Path, out: Path, runs: dict[str, Record], samples: float | None = None) -> str:
    """Sizes and times of `norewind compress` beside compressors, and how far the size is from the bits of `train`."""
    lines: list[list[str]] = []
    for stream in filter(lambda stream: stream.is_text, STREAMS):
        length = int(settings_of(stream, cache, samples).samples or 0)
        own, trained = read_record(_path(out, stream)), runs.get(f"{stream.name}_auto_seed=0")
        if own is None or trained is None:
            continue
        code = own["bytes"] - own["header"]
        # The first byte is not predicted: it stands in the header.
        off = 8 * code / (trained["mean"] * length) - 1
        seconds = f"{own['cpu_seconds']:.1f} (back: {own['cpu_seconds_back']:.1f})"
        note = f"{off:+.2%} from the bits of `train`, and a header of {own['header']} bytes"
        lines.append([stream.title, "`norewind compress`", f"{own['bytes']:,}", seconds, note])
        for name in (*COMPRESSORS, "ppmd"):
            other = read_record(path_of(out, stream, name))
            if other is not None:
                size = f"{other['mean'] * other['samples'] / 8:,.0f}"
                lines.append([stream.title, name, size, f"{other['cpu_seconds']:.2f}", ""])
    return markdown(["text", "compressor", "bytes", "seconds of CPU time", ""], lines)
