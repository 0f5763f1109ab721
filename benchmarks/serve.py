"""The latency of `norewind serve` under load: `python -m benchmarks.serve`, on a machine with two free cores.

A GRU of 64 units is trained and served on one core. On another, a load generator in a process of its own
sends predictions in an open loop: at times that are fixed beforehand, whether answers have come or not, so
that waiting is not hidden. Latencies count from the time at which a request was due. Not at real-time priority: the
thread that learns would not give way to the one that answers.
"""

import argparse
import asyncio
import gc
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from norewind.runs.record import versions, write_record

RECORD = Path("results/serve/record.json")
CONNECTIONS = 64
WAIT = 60.0


def series(rows: int) -> str:
    draw = random.Random(0)
    lines = ["wind,power"]
    for t in range(rows):
        wind = 8 + 4 * math.sin(2 * math.pi * t / 24) + draw.gauss(0, 0.5)
        lines.append(f"{wind:.3f},{2 * wind + draw.gauss(0, 0.3):.3f}")
    return "\n".join(lines) + "\n"


async def request(reader, writer, path: str, body: bytes) -> int:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    await reader.readexactly(length)
    return int(answer[9:12])


async def load(port: int, rate: float, seconds: float, learned: float) -> dict:
    """Send `rate` predictions a second, and beside them rows to learn from, in batches of a tenth of a second."""
    gc.disable()  # the pauses of the generator are not the server's
    connections: asyncio.Queue = asyncio.Queue()
    for _ in range(CONNECTIONS):
        connections.put_nowait(await asyncio.open_connection("127.0.0.1", port))
    latencies: list[float] = []
    statuses: dict[int, int] = {}
    row = {"wind": 8.1, "power": 16.3}
    one, many = (json.dumps(body).encode() for body in ({"row": row}, {"rows": [row] * max(1, round(learned / 10))}))

    async def send(path: str, body: bytes, due: float) -> None:
        reader, writer = await connections.get()
        status = await request(reader, writer, path, body)
        connections.put_nowait((reader, writer))
        if path == "/predict":
            statuses[status] = statuses.get(status, 0) + 1
            latencies.append(time.perf_counter() - due)

    began, tasks = time.perf_counter() + 0.1, []
    due = [(began + number / rate, "/predict", one) for number in range(int(rate * seconds))]
    if learned:
        due += [(began + number / 10, "/learn", many) for number in range(int(10 * seconds))]
    for when, path, body in sorted(due):
        if (wait := when - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(send(path, body, when)))
    await asyncio.gather(*tasks)
    latencies.sort()
    names = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
    found = {name: round(1e3 * latencies[int(share * (len(latencies) - 1))], 2) for name, share in names.items()}
    return {**found, "max": round(1e3 * latencies[-1], 2), "requests": len(latencies), "statuses": statuses}


def measure(folder: Path, cases: list[tuple[float, float]], seconds: float) -> list[dict]:
    core, other = sorted(os.sched_getaffinity(0))[:2]
    command = ["taskset", "-c", str(core), sys.executable, "-m", "norewind", "serve", str(folder), "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr
        line = server.stderr.readline()
        port = int(line.split("127.0.0.1:")[1].split("/")[0])
        os.sched_setaffinity(0, {other})
        results = []
        asyncio.run(load(port, 200, 2, 100))  # warm
        for rate, learned in cases:
            before, taken = cpu_seconds(server.pid), stolen_seconds()
            result = asyncio.run(load(port, rate, seconds, learned))
            spent, stolen = cpu_seconds(server.pid) - before, round(stolen_seconds() - taken, 2)
            about = {"rate": rate, "learned": learned, "cores": round(spent / seconds, 3), "stolen": stolen}
            results.append({**about, **result})
            print(json.dumps(results[-1]), flush=True)
        return results
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(WAIT)
        os.sched_setaffinity(0, {core, other})


def table(record: dict) -> str:
    """The latencies as Markdown."""
    names = "predictions a second | rows learned a second | p50 | p90 | p99 | p99.9 | of the core"
    rows = [f"| {names} |", "|" + "---:|" * 7]
    for case in record["cases"]:
        times = " | ".join(f"{case[name]:.1f}" for name in ("p50", "p90", "p99", "p999"))
        rows.append(f"| {case['rate']:,.0f} | {case['learned']:,.0f} | {times} | {100 * case['cores']:.0f} % |")
    return "\n".join(rows) + "\n"


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stolen_seconds() -> float:
    """The time that a host has taken away from this machine: answers wait for that too."""
    return int(Path("/proc/stat").read_text().splitlines()[0].split()[8]) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--no-record", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        table, folder = Path(scratch, "power.csv"), Path(scratch, "run")
        table.write_text(series(3_000))
        train = [sys.executable, "-m", "norewind", "train", str(table), "--out", str(folder), "--quiet"]
        subprocess.run(
            [*train, "--method", "snap1", "--cell", "gru", "--hidden", "64", "--targets", "power"], check=True
        )
        cases = [(1_000.0, 0.0), (1_000.0, 200.0)]
        results = measure(folder, cases, options.seconds)
    if not options.no_record:
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        write_record(RECORD, {"versions": versions(), "seconds": options.seconds, "cases": results})


if __name__ == "__main__":
    main()
