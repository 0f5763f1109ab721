"""Prediction of texts: bits and microseconds per byte of counts, of `auto`, and of `compress` and `decompress`.

    python -m benchmarks.text [FILE ...]

The first 200,000 bytes of each file are used. Without files, the three texts of
examples/real_data are used, if they are in runs/cache.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import use_one_core

TEXTS = [Path("runs/cache", name) for name in ("bible.txt", "german.txt", "code.py")]
BYTES, CHUNK, REPEATS = 200_000, 4_000, 2
BUDGETS = {"counts": 6, "auto": 50}


def learned(content: bytes, budget: float) -> tuple[float, float]:
    """Learn as `norewind train --budget` does.

    Args:
        content: the text.
        budget: the microseconds that a byte may take.

    Returns:
        Bits and microseconds per byte.
    """
    from norewind.training import auto

    symbols = np.frombuffer(content, np.uint8).astype(np.int32)
    learner, run = auto.text(256, budget, 0, only_targets=True)
    window, steps = learner.window, CHUNK // learner.window
    length = (len(symbols) - 1) // window
    xs, targets = (part[: length * window].reshape(length, window) for part in (symbols[:-1], symbols[1:]))
    total, seconds = 0.0, 0.0
    for start in range(0, length, steps):
        count = min(steps, length - start)
        chunk: list[Any] = [np.resize(part[start : start + count], (steps, window)) for part in (xs, targets)]
        began = time.process_time()
        run, losses, _ = learner.scan(run, *chunk, count=count)
        total += float(np.sum(losses[:count]))
        seconds += time.process_time() - began
    return total / np.log(2) / (length * window), 1e6 * seconds / (length * window)


def coded(content: bytes) -> Iterator[tuple[str, float, float]]:
    """Bits and microseconds per byte of `compress` and `decompress`. The content must be restored exactly."""
    from norewind.forecasting.compress import code_of, compress, decompress

    times = [time.process_time()]
    packed = compress(content)
    times.append(time.process_time())
    if decompress(packed) != content:
        raise AssertionError("The decompressed text differs from the original.")
    times.append(time.process_time())
    bits = 8 * len(code_of(packed)) / len(content)
    for name, seconds in zip(("compress", "decompress"), np.diff(times), strict=True):
        yield name, bits, 1e6 * seconds / len(content)


def measured(path: Path) -> list[dict[str, Any]]:
    """Measure each way to use a file, one row each, with the best of several times."""
    content, best = path.read_bytes()[:BYTES], {}
    for _ in range(REPEATS):
        tried = [(name, *learned(content, budget)) for name, budget in BUDGETS.items()]
        for name, bits, microseconds in (*tried, *coded(content)):
            best[name] = bits, min(microseconds, best.get(name, (0, np.inf))[1])
    return [
        {"text": path.name, "name": name, "bits": round(bits, 4), "microseconds": round(float(microseconds), 2)}
        for name, (bits, microseconds) in best.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="texts")
    files = parser.parse_args().files or [path for path in TEXTS if path.exists()]
    use_one_core()
    warm = b"the cat sat on the mat, " * 200
    list(coded(warm))
    for budget in BUDGETS.values():
        learned(warm, budget)
    print(f"{'text':14}{'':12}{'bits':>8}{'µs per byte':>12}")
    for path in files:
        for row in measured(path):
            print(f"{row['text']:14}{row['name']:12}{row['bits']:8.4f}{row['microseconds']:12.2f}", flush=True)


if __name__ == "__main__":
    main()
