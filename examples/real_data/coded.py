"""Compressing the three texts with the predictions of `auto`, decompressing them, and comparing with compressors."""

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from examples.real_data.baselines import COMPRESSORS, HEADERS, record_name
from examples.real_data.plan import STREAMS, settings_of
from norewind.forecasting import compress
from norewind.plotting.tables import markdown
from norewind.sweeps.record import Record, read_records, versions, write_record


def compress_texts(cache: Path, out: Path, samples: float | None = None) -> None:
    """Compress every text that has no record with the same settings yet.

    Args:
        cache: the folder of downloaded data.
        out: the folder of the records.
        samples: at most this many bytes of each text.
    """
    kept = read_records(out)
    for stream in filter(lambda stream: stream.is_text, STREAMS):
        settings = settings_of(stream, cache, samples)
        asked: dict[str, Any] = {"source": settings.source, "samples": settings.samples, "budget": settings.budget}
        if kept.get(f"compression_{stream.name}", {}).get("settings") != asked:
            content = Path(settings.source).read_bytes()[: int(settings.samples or 0)]
            record = {"settings": asked, **_measured(content, settings.budget), **versions()}
            write_record(out, f"compression_{stream.name}", record)


def _measured(content: bytes, budget: float) -> Record:
    times = [time.process_time()]
    packed = compress.compress(content, network=True, budget=budget)
    times.append(time.process_time())
    if compress.decompress(packed) != content:
        raise AssertionError("The decompressed text differs from the original.")
    times.append(time.process_time())
    header = len(packed) - len(compress.code_of(packed))
    seconds = [round(after - before, 1) for before, after in pairwise(times)]
    return {"bytes": len(packed), "header": header, "cpu_seconds": seconds[0], "cpu_seconds_back": seconds[1]}


def compression_table(cache: Path, found: dict[str, Record], samples: float | None = None) -> str:
    """The table of sizes and times of `norewind compress` and of compressors.

    Args:
        cache: the folder of downloaded data.
        found: the records by name.
        samples: at most this many bytes of each text.
    """
    lines: list[list[str]] = []
    for stream in filter(lambda stream: stream.is_text, STREAMS):
        length = int(settings_of(stream, cache, samples).samples or 0)
        own, trained = found.get(f"compression_{stream.name}"), found.get(f"{stream.name}_auto_seed=0")
        if own is None or trained is None:
            continue
        code = own["bytes"] - own["header"]
        # The first byte is not predicted: it is part of the header.
        off = 8 * code / (trained["mean"] * length) - 1
        seconds = f"{own['cpu_seconds']:.1f} (back: {own['cpu_seconds_back']:.1f})"
        note = f"{off:+.2%} from the bits of `train`, and a header of {own['header']} bytes"
        lines.append([stream.title, "`norewind compress`", f"{own['bytes']:,}", seconds, note])
        for name in (*COMPRESSORS, "ppmd"):
            other = found.get(record_name(stream, name))
            if other is not None:
                size = f"{other['mean'] * other['samples'] / 8:,.0f}"
                header = f"of which {HEADERS[name]:,} are written for an empty file" if name in HEADERS else ""
                lines.append([stream.title, name, size, f"{other['cpu_seconds']:.2f}", header])
    return markdown(["text", "compressor", "bytes", "seconds of CPU time", ""], lines)
