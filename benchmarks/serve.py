"""The latency of `norewind serve` under load: `python -m benchmarks.serve`, on a machine with two free cores.

A GRU of 64 units is trained and served on one core. On another, a load generator in a separate process sends
requests in an open loop: at fixed times, whether or not earlier ones have been answered, so that delays are
not hidden. Latencies are measured from the time a request was due. Do not run it at real-time priority: the
learning thread would not yield to the one that answers.
"""

import argparse
import asyncio
import functools
import gc
import json
import math
import os
import random
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

from norewind.sweeps.record import versions, write_record

OUT = Path("results/serve")
CONNECTIONS = 64
WAIT = 60.0


def series(rows: int) -> str:
    draw = random.Random(0)
    lines = ["wind,power"]
    for t in range(rows):
        wind = 8 + 4 * math.sin(2 * math.pi * t / 24) + draw.gauss(0, 0.5)
        lines.append(f"{wind:.3f},{2 * wind + draw.gauss(0, 0.3):.3f}")
    return "\n".join(lines) + "\n"


class Connection(asyncio.Protocol):
    """One connection, with one request at a time. The streams of asyncio would be slower than the server."""

    def __init__(self) -> None:
        self.received, self.answer = b"", None

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, end, body = self.received.partition(b"\r\n\r\n")
        if end and len(body) >= int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]):
            self.received, answer, self.answer = b"", self.answer, None
            answer(int(head[9:12]))


def request(path: str, body: dict) -> bytes:
    """The bytes of a POST request.

    Args:
        path: the path.
        body: the content, which is sent as JSON.
    """
    content = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content


class Load:
    """Requests that are due at fixed times. Each uses the connection that was idle for longest, so none times out."""

    def __init__(self, connections: list[Connection]):
        self.free, self.waiting = deque(connections), deque()
        self.latencies: list[float] = []
        self.statuses: dict[int, int] = {}

    def send(self, *request) -> None:
        self.waiting.append(request)
        self._send_some()

    def _send_some(self) -> None:
        while self.waiting and self.free:
            due, counts, content = self.waiting.popleft()
            connection = self.free.popleft()
            connection.answer = functools.partial(self._answered, connection, due, counts)
            connection.transport.write(content)

    def _answered(self, connection: Connection, due: float, counts: bool, status: int) -> None:
        if counts:
            self.latencies.append(time.perf_counter() - due)
            self.statuses[status] = self.statuses.get(status, 0) + 1
        self.free.append(connection)
        self._send_some()


async def load(port: int, rate: float, seconds: float, learned: float) -> dict:
    """Send predictions, and rows to learn from in ten batches per second.

    Args:
        port: the port of the server.
        rate: predictions per second.
        seconds: the duration.
        learned: rows to learn from per second.

    Returns:
        Percentiles of the latency in milliseconds, and the number of requests by status.
    """
    gc.disable()  # pauses of the load generator must not count as latency
    loop, row = asyncio.get_running_loop(), {"wind": 8.1, "power": 16.3}
    made = [(await loop.create_connection(Connection, "127.0.0.1", port))[1] for _ in range(CONNECTIONS)]
    sending = Load(made)
    one, many = request("/predict", {"row": row}), request("/learn", {"rows": [row] * max(1, round(learned / 10))})
    began = time.perf_counter() + 0.1
    due = [(began + number / rate, True, one) for number in range(int(rate * seconds))]
    if learned:
        due += [(began + number / 10, False, many) for number in range(int(10 * seconds))]
    for when, *rest in sorted(due):
        while (wait := when - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        sending.send(when, *rest)
    while len(sending.free) < CONNECTIONS:
        await asyncio.sleep(0.01)
    for connection in made:
        connection.transport.close()
    latencies = sorted(sending.latencies)
    names = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
    found = {name: round(1e3 * latencies[int(share * (len(latencies) - 1))], 2) for name, share in names.items()}
    return {**found, "max": round(1e3 * latencies[-1], 2), "requests": len(latencies), "statuses": sending.statuses}


def run_load(*options) -> dict:
    """Run `load` in an event loop with timers of microsecond resolution; epoll's is a millisecond."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(load(*options))


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
        run_load(port, 200, 2, 100)  # warm
        for rate, learned in cases:
            before, taken = cpu_seconds(server.pid), stolen_seconds()
            result = run_load(port, rate, seconds, learned)
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
    names = "predictions per second | rows learned per second | p50 | p90 | p99 | p99.9 | of the core"
    rows = [f"| {names} |", "|" + "---:|" * 7]
    for case in record["cases"]:
        times = " | ".join(f"{case[name]:.1f}" for name in ("p50", "p90", "p99", "p999"))
        rows.append(f"| {case['rate']:,.0f} | {case['learned']:,.0f} | {times} | {100 * case['cores']:.0f} % |")
    return "\n".join(rows) + "\n"


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stolen_seconds() -> float:
    """The CPU time stolen by the host of a virtual machine, which delays answers."""
    return int(Path("/proc/stat").read_text().splitlines()[0].split()[8]) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--no-record", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        source, folder = Path(scratch, "power.csv"), Path(scratch, "run")
        source.write_text(series(3_000))
        train = [sys.executable, "-m", "norewind", "train", str(source), "--out", str(folder), "--quiet"]
        subprocess.run(
            [*train, "--method", "snap1", "--cell", "gru", "--hidden", "64", "--targets", "power"], check=True
        )
        cases = [(1_000.0, 0.0), (1_000.0, 200.0)]
        results = measure(folder, cases, options.seconds)
    if not options.no_record:
        write_record(OUT, "serve", {"versions": versions(), "seconds": options.seconds, "cases": results})


if __name__ == "__main__":
    main()
