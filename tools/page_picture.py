"""Take the screenshot for docs/serve.md: `python -m tools.page_picture`. Needs Chromium and its driver."""

import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from benchmarks.serve import series
from tools.browser import browser

PICTURE = Path("docs/images/serve.png")
ROWS, AT_ONCE = 5_000, 40


def main() -> None:
    norewind = [sys.executable, "-m", "norewind"]
    header, *lines = series(ROWS + 1_000).splitlines()
    names = header.split(",")
    rows = [dict(zip(names, map(float, line.split(",")), strict=True)) for line in lines[ROWS:]]
    with tempfile.TemporaryDirectory() as scratch:
        table, folder = Path(scratch, "power.csv"), Path(scratch, "power")
        table.write_text("\n".join([header, *lines[:ROWS]]) + "\n")
        model = ["--method", "snap1", "--cell", "gru", "--hidden", "64", "--targets", "power", "--quiet"]
        subprocess.run([*norewind, "train", "power.csv", "--out", str(folder), *model], check=True, cwd=scratch)
        server = subprocess.Popen([*norewind, "serve", str(folder), "--port", "0"], stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr
            address = server.stderr.readline().split()[2]
            with browser() as page:
                page.resize(1200, 1420)
                page.open(address)
                for place in range(0, len(rows), AT_ONCE):
                    body = json.dumps({"rows": rows[place : place + AT_ONCE]}).encode()
                    urllib.request.urlopen(urllib.request.Request(f"{address}learn", body)).read()
                    time.sleep(0.15)
                time.sleep(1)
                PICTURE.write_bytes(page.screenshot())
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


if __name__ == "__main__":
    main()
