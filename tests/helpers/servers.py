"""Servers for tests: a real process, or the page alone in a thread."""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

MODEL = ("--method", "snap1", "--hidden", "4", "--quiet", "--predictions", "file")


def table(rows: int, start: int = 0) -> list[dict]:
    return [
        {"wind": round(math.sin(n / 5), 4), "power": round(math.cos(n / 3) + 0.1 * (n % 7), 4)}
        for n in range(start, start + rows)
    ]


def lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


class Server:
    def __init__(self, process: subprocess.Popen, address: str):
        self.process, self.address = process, address

    def ask(self, path: str, body=None, *, headers=None, method=None):
        """Return the status and the response, decoded if it is JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, headers or {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, content = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, content = error.code, error.read().decode()
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content

    def stream(self, rows: list[dict]) -> list[dict]:
        _, content = self.ask("stream", lines(rows).encode())
        return [json.loads(line) for line in content.splitlines()] if isinstance(content, str) else [content]

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def served(
    run: Path,
    *options: str,
    command: str = "serve",
    env: dict | None = None,
    python: tuple[str, ...] = ("-m", "norewind"),
):
    arguments = [sys.executable, *python, command, str(run), "--port", "0", *options]
    # The tests compile without optimisations, so processes that must give the same numbers do too.
    environment = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", **(env or {})}
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr
        output = process.stderr.readline()
        if "http://" not in output:
            raise AssertionError(output + process.stderr.read())
        address = output.split()[2].replace("0.0.0.0", "127.0.0.1")
        yield Server(process, address)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(60)
        process.stderr.close()


@contextmanager
def in_a_thread(app):
    """Serve an application in this process, and yield its address."""
    from norewind.serving import server

    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        options = {"stop": stop.is_set, "end": lambda: None}
        thread = threading.Thread(target=server.serve, args=(app, listener), kwargs=options)
        thread.start()
        try:
            yield port
        finally:
            stop.set()
            thread.join(20)
