"""A real browser for tests: Debian's Chromium, controlled through the HTTP interface of its driver."""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager, suppress

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
OPTIONS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
]


class Browser:
    """A session of a browser.

    Args:
        address: the URL of the session at the driver.
    """

    def __init__(self, address: str):
        self.address = address

    def ask(self, method: str, path: str, body=None):
        """Send a command to the driver, and return its answer.

        Args:
            method: the HTTP method.
            path: the path of the command.
            body: the content, which is sent as JSON.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"content-type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())["value"]

    def open(self, address: str) -> None:
        self.ask("POST", "/url", {"url": address})

    def run(self, script: str, *arguments):
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def find(self, selector: str) -> str:
        return self.ask("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector: str) -> None:
        self.ask("POST", f"/element/{self.find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Type text into an element.

        Args:
            selector: the CSS selector of the element.
            text: the text.
        """
        self.ask("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def wait(self, script: str, seconds: float = 90):
        """Run a script until its result is true, and return the result.

        Args:
            script: the script.
            seconds: the longest time to wait.
        """
        end = time.monotonic() + seconds
        while not (found := self.run(script)):
            assert time.monotonic() < end, f"not within {seconds} s: {script}"
            time.sleep(0.1)
        return found

    def resize(self, width: int, height: int) -> None:
        self.ask("POST", "/window/rect", {"width": width, "height": height})

    def screenshot(self) -> bytes:
        return base64.b64decode(self.ask("GET", "/screenshot"))

    def log(self) -> list:
        return self.ask("POST", "/se/log", {"type": "browser"})


@contextmanager
def browser():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert DRIVER, "chromedriver is not installed"
    driver = subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}/session"
    options = {"goog:chromeOptions": {"binary": CHROMIUM, "args": OPTIONS}, "goog:loggingPrefs": {"browser": "ALL"}}
    opened = None
    try:
        for _ in range(100):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        session = Browser(address).ask("POST", "", {"capabilities": {"alwaysMatch": options}})["sessionId"]
        opened = Browser(f"{address}/{session}")
        yield opened
    finally:
        if opened:
            with suppress(OSError):
                opened.ask("DELETE", "")
        driver.terminate()
        driver.wait(20)
