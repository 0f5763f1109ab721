"""Reading rows from files and from Python, without learning, for `python -m benchmarks reading`."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import Case
from norewind.streams import KeyedStream, ReadOptions, RowStream, Source
from norewind.streams.table.python_rows import PythonRows

ROWS = 50_000
KEYS = 100_000
CALLS = 5_000


def written(folder: Path) -> dict[str, Path]:
    """Write files of random numbers: with keys, with seven columns, with one column, and as JSON lines."""
    random = np.random.default_rng(0)
    numbers = random.normal(size=(ROWS, 7)).cumsum(axis=0).tolist()
    keys = random.integers(0, KEYS, ROWS).tolist()
    lines = {
        "keys.csv": ["key,a,b", *(f"s{key:06},{a:.4f},{b:.2f}" for key, (a, b, *_) in zip(keys, numbers, strict=True))],
        "seven.csv": ["a,b,c,d,e,f,g", *(",".join(f"{value:.6f}" for value in row) for row in numbers)],
        "one.csv": ["a", *(f"{row[0]:.4f}" for row in numbers)],
        "rows.jsonl": [f'{{"a": {a:.4f}, "b": {b:.2f}}}' for a, b, *_ in numbers],
    }
    for name, some in lines.items():
        (folder / name).write_text("\n".join(some) + "\n")
    return {name: folder / name for name in lines}


def cases(folder: Path) -> list[Case]:
    """The cases to measure.

    Args:
        folder: the folder to write the files to.
    """
    files = written(folder)

    def reading(name: str, chunk: int, make: Any = RowStream, **options: Any) -> None:
        with make(Source(files[name]), **options) as stream:
            while stream.take(chunk) is not None:
                pass

    rows = [{"a": float(i % 17), "b": i * 0.5, "c": -float(i % 5)} for i in range(CALLS + 100)]
    stream = RowStream(PythonRows(rows[:100]))
    stream.take(100)

    def learning() -> None:
        for row in rows[100:]:
            stream.take_row(row)

    def peeking() -> None:
        for row in rows[100:]:
            stream.peek([row])

    return [
        Case("CSV with 10⁵ keys, raw", lambda: reading("keys.csv", 1 << 17, KeyedStream, key="key"), ROWS),
        Case("CSV, 7 columns × 48 steps", lambda: reading("seven.csv", 1000, horizon=48), ROWS),
        Case("CSV, one column, one step", lambda: reading("one.csv", 1000), ROWS),
        Case("JSON lines, 2 columns", lambda: reading("rows.jsonl", 1000, read_options=ReadOptions("jsonl")), ROWS),
        Case("a single row: put and take", learning, CALLS),
        Case("a single row: peek", peeking, CALLS),
    ]
