"""`make memory-use`: the memory of `norewind train` on 10⁸ bytes of ever-new symbols, keys, categories and lines.

Every kind of stream is piped into a real process. The kernel reports the peak of its resident memory in every hundredth
of the stream. After the first fifth of the stream, the peak must not exceed the earlier one by more than 1 %. (The
first twentieth does not count, since the process starts and compiles then.)
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from norewind.sweeps.record import read_records, versions, write_record

OUT = Path(__file__).parent.parent / "results/memory-use"
LOOKS = 100
ALLOWED = 0.01
COMMON = ("--method", "bptt:16", "--cell", "rnn", "--hidden", "2", "--bad", "skip", "--no-stop-if-diverged", "--quiet")


def characters(chance: random.Random) -> Iterator[bytes]:
    """Characters from all of Unicode, of which only the first 256 get a symbol. A third are ASCII."""
    places = [code for code in range(0x20, 0x110000) if not 0xD800 <= code < 0xE000]
    while True:
        drawn = chance.choices(places, k=20_000)
        drawn[::3] = chance.choices(range(0x20, 0x7F), k=len(drawn[::3]))
        yield "".join(map(chr, drawn)).encode()


def length(chance: random.Random) -> int:
    """The length of a line: mostly short, sometimes longer than the longest that is read (2²⁰)."""
    return int(10 ** (chance.uniform(1, 3) if chance.random() < 0.999 else chance.uniform(3, 6.3)))


def table(chance: random.Random) -> Iterator[bytes]:
    """Rows of a number, a category that is never repeated, and a text of any length, as CSV."""
    yield b"value,kind,text\n1,first,\n"
    number = 0
    while True:
        number += 1
        yield f"{chance.gauss(0, 1)},kind {number},{'x' * length(chance)}\n".encode()


def objects(chance: random.Random) -> Iterator[bytes]:
    """The same as JSON lines, with keys that are never repeated, at any depth."""
    yield b'{"value": 1, "kind": "first"}\n'
    number = 0
    while True:
        number += 1
        inner = f'{{"value": {chance.gauss(0, 1)}, "kind": "kind {number}", "key {number}": {number}, '
        nested = '{"in": ' * (number % 20) + "1" + "}" * (number % 20)
        yield f'{inner}"deep {number}": {nested}, "text": "{"x" * length(chance)}"}}\n'.encode()


KINDS: dict[str, tuple[Callable[[random.Random], Iterator[bytes]], tuple[str, ...]]] = {
    "text": (characters, ("--format", "text")),
    "csv": (table, ("--format", "csv", "--inputs", "value", "kind", "--targets", "value")),
    "jsonl": (objects, ("--format", "jsonl", "--inputs", "value", "kind", "--targets", "value")),
}


def highest(process: int) -> int:
    """The peak of a process's resident memory since the last call, in kilobytes."""
    about = Path(f"/proc/{process}")
    lines = (about / "status").read_text().splitlines()
    (about / "clear_refs").write_text("5")  # "to reset the peak resident set size" (proc_pid_clear_refs(5))
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def looks(kind: str, size: int, seed: int) -> list[int]:
    """Train on a stream, and measure the peak of memory in each of `LOOKS` equal parts.

    Args:
        kind: the kind of stream.
        size: the number of bytes.
        seed: the seed of the stream.
    """
    make, options = KINDS[kind]
    found, sent = [], 0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "norewind", "train", "-", "--out", f"{folder}/run", *options, *COMMON]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert process.stdin is not None
        for piece in make(random.Random(seed)):
            process.stdin.write(piece)
            sent += len(piece)
            if sent >= size * (len(found) + 1) / LOOKS:
                found.append(highest(process.pid))
            if len(found) == LOOKS:
                break
        process.stdin.close()
        if process.wait():
            raise SystemExit(f"the run on {kind} failed.")
    return found


def parts(found: list[int]) -> tuple[int, int]:
    """The peak of memory up to a fifth of the stream (without the first twentieth), and after it."""
    start, fifth = len(found) // 20, len(found) // 5
    return max(found[start:fifth]), max(found[fifth:])


def growth(found: list[int]) -> float:
    before, after = parts(found)
    return after / before - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=float, default=1e8, help="of each kind of stream")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the record")
    options = parser.parse_args()
    record = {"settings": {"bytes": int(options.bytes), "seed": options.seed}, **versions()}
    before = read_records(options.out).get("memory", {})
    if all(before.get(name) == value for name, value in record.items()):
        record = before
    worst = 0.0
    for kind in options.kinds:
        began = time.monotonic()
        found = looks(kind, int(options.bytes), options.seed)
        record[kind] = {"seconds": round(time.monotonic() - began, 1), "kB": found}
        write_record(options.out, "memory", record)
        worst = max(worst, growth(found))
        print(f"{kind}: at most {max(found) / 1e3:.1f} MB, growth {growth(found):+.2%}", flush=True)
    sys.exit(worst > ALLOWED)


if __name__ == "__main__":
    main()
