"""`norewind serve` as a process, over real HTTP."""

import json
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from run_folders import everything, norewind

from norewind.serving.late_labels import LateLabels
from norewind.storage.checkpoint import CheckpointError
from norewind.training.log import read_log

pytest.importorskip("uvicorn")
from servers import MODEL, lines, served, table


@pytest.fixture(scope="module")
def shared(trained, tmp_path_factory):
    with served(shutil.copytree(trained, tmp_path_factory.mktemp("shared") / "run"), "--queue", "64") as server:
        yield server


def test_learning_in_the_service_is_training(run, tmp_path):
    """Rows sent to /stream and /learn give the same run folder as `norewind train` on the same rows, bit for bit."""
    source = tmp_path / "rows.jsonl"
    source.write_text(lines(table(360)))
    assert norewind("train", source, "--out", tmp_path / "whole", *MODEL) == 0
    with served(run) as server:
        answers = server.stream(table(40, 300))
        assert [answer["sample"] for answer in answers] == list(range(301, 341))
        # An open stream does not delay the shutdown.
        idle = socket.create_connection(("127.0.0.1", int(server.address.rsplit(":", 1)[1].rstrip("/"))))
        idle.sendall(b"POST /stream HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        status, answer = server.ask("learn", {"rows": table(20, 340)})
        assert (status, answer["first"], answer["last"]) == (202, 341, 360)
        assert server.end() == 143
        assert b"0\r\n\r\n" in idle.recv(10_000)
        idle.close()
    whole, part = everything(tmp_path / "whole"), everything(run)
    # The metrics are not compared: they have an extra line where the service took over.
    for name in ("arrays", "predictions", "samples", "tally", "score", "divergence"):
        assert whole[name] == part[name], name
    assert answers == read_log(run / "predictions.jsonl")[300:340]
    # The folder is an ordinary run: `resume` continues the same stream.
    assert norewind("predict", run, source) == 0
    assert norewind("forecast", run, "--steps", "2") == 0
    assert norewind("resume", run, "--source", source, "--quiet") == 0


def test_predicting_changes_nothing(shared):
    row = table(1, 300)[0]
    before = shared.ask("health")[1]
    first, second = (
        shared.ask("predict", {"row": row}),
        shared.ask("predict", {"rows": [row, {"wind": 0.1, "power": 0.2}, row]}),
    )
    assert first[0] == second[0] == 200
    assert first[1] == second[1]["rows"][0] == second[1]["rows"][2]
    assert first[1].keys() >= {"sample", "for", "forecast", "prediction", "surprise"}
    assert second[1]["rows"][1]["forecast"] != first[1]["forecast"]
    after = shared.ask("health")[1]
    assert after["accepted"] == before["accepted"]
    # The forecast of a row is the same when the row is learned from.
    came = shared.stream([row])[0]
    assert came["prediction"] == first[1]["prediction"]
    assert came["surprise"] == first[1]["surprise"]
    assert came["anomaly"] == first[1]["anomaly"]
    assert came["sample"] == first[1]["sample"]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("predict", b'{"row": {"wind": 1,\n "power": x}}', 400, "line 2, column 11"),
        ("predict", b'{"row": {"wind": "\xff"}}', 400, "byte 18"),
        ("predict", b"[" * 100_000, 400, "cannot be read"),
        ("predict", b"[1]", 400, '{"row": {...}}'),
        ("predict", b'{"row": 3}', 400, "Expected `object`, got `int` - at `$.row`"),
        ("predict", b'{"rows": []}', 400, "length >= 1"),
        ("predict", b'{"rows": [{}], "ids": []}', 400, "one id for each"),
        ("predict", b'{"row": {}, "id": 7}', 400, "Expected `str | null`, got `int` - at `$.id`"),
        ("predict", b'{"row": {}, "what": 7}', 400, "`what`"),
        ("predict", b'{"row": {"wind": 1}, "id": "\\ud800"}', 400, "an unpaired surrogate"),
        ("predict", b'{"rows": [{"wind": 1}], "ids": ["\\ud800"]}', 400, "an unpaired surrogate"),
        ("predict", b'{"row": {}, "\\ud800": 7}', 400, "an unpaired surrogate"),
        ("predict", b'{"row": {"wind": "high"}}', 400, "column 'wind': 'high' is not a number"),
        ("learn", b'{"row": {"wind": "high"}}', 400, "column 'wind'"),
        ("learn", b'{"row": {"wind": 1, "power": 1, "v": "\\ud800"}}', 400, "an unpaired surrogate"),
        ("learn", b'{"row": {"power": 1}, "id": "nobody"}', 404, "no row waits"),
        ("learn", b'{"rows": [{"power": 1}, {"power": 2}], "ids": ["a", "a"]}', 400, "an id appears twice"),
        ("learn", b"{" + b" " * (1 << 20) + b"}", 413, "larger than"),
        ("forecast", b'{"steps": "two"}', 400, "Expected `int | null`, got `str` - at `$.steps`"),
        ("forecast", b'{"known_future": [{"wind": 1}]}', 400, "no columns are known in advance"),
        ("nowhere", b"{}", 404, "Not Found: POST /nowhere"),
        ("health", b"{}", 405, "Method Not Allowed: POST /health"),
    ],
)  # fmt: skip
def test_bad_requests_are_rejected_with_the_location(shared, path, body, status, words):
    found, answer = shared.ask(path, body)
    assert found == status
    assert words in answer["error"]
    assert "Traceback" not in str(answer)


def test_a_bad_line_of_a_stream_is_answered_in_its_place(shared):
    status, content = shared.ask("stream", b'{"wind": 1, "power": 1}\n\n{"wind": 1, }\n[1]\n{"wind": 2, "power": 2}')
    first, second, third, fourth = (json.loads(line) for line in content.splitlines())
    assert status == 200
    assert fourth["sample"] == first["sample"] + 1
    assert (second["line"], third["line"]) == (3, 4)
    assert "JSON" in second["error"]
    assert "object" in third["error"]


def test_other_sites_and_other_names_are_rejected(shared):
    assert shared.ask("health", headers={"host": "evil.example"})[0] == 403
    assert shared.ask("learn", {"row": {"wind": 1}}, headers={"origin": "http://evil.example"})[0] == 403
    assert shared.ask("health", headers={"origin": shared.address.rstrip("/")})[0] == 200
    assert shared.ask("health", headers={"host": "localhost:1"})[0] == 200


def test_late_labels_by_id(shared):
    first = shared.ask("predict", {"row": {"wind": 0.5}, "id": "a"})[1]
    assert first["id"] == "a"
    status, learned = shared.ask("learn?wait=1", {"row": {"power": 0.25}, "id": "a"})
    assert status == 202
    assert learned["learned"] >= learned["last"] == learned["first"]
    status, again = shared.ask("learn", {"row": {"power": 0.25}, "id": "a"})
    assert status == 409
    assert f"as row {learned['last']}" in again["error"]
    assert shared.ask("learn", {"rows": [{"power": 1}, {"power": 2}], "ids": ["b", "b"]})[0] == 400


def test_prometheus_text(shared):
    shared.ask("predict", {"row": {"wind": 0.5}})
    status, text = shared.ask("metrics")
    assert status == 200
    entries = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(entries['norewind_requests_total{path="/predict",status="200"}']) >= 1
    assert float(entries["norewind_samples"]) >= 300
    buckets = [float(entries[name]) for name in entries if name.startswith("norewind_predict_seconds_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == float(entries["norewind_predict_seconds_count"])


def test_full_queues_respond_with_429_and_accept_nothing(shared):
    before = shared.ask("health")[1]["accepted"]
    status, answer = shared.ask("learn", {"rows": table(65, 300)})
    assert status == 429
    assert "too busy" in answer["error"]
    assert shared.ask("health")[1]["accepted"] == before
    # A stream is delayed instead, and loses nothing.
    assert len(shared.stream(table(300, 300))) == 300


def test_more_predictions_than_can_be_answered_soon_are_rejected_immediately(shared):
    """Of requests that arrive while the service is blocked, some are answered and the others get 429 immediately."""
    port = int(shared.address.rsplit(":", 1)[1].rstrip("/"))
    connections = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(400)]
    body = b'{"row": {"wind": 0.5}}'
    request = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    time.sleep(1)  # until all are accepted
    shared.process.send_signal(signal.SIGSTOP)
    for connection in connections:
        connection.sendall(request)
    shared.process.send_signal(signal.SIGCONT)
    statuses = Counter(connection.recv(4096).split()[1] for connection in connections)
    for connection in connections:
        connection.close()
    assert statuses.keys() == {b"200", b"429"}
    assert statuses[b"200"] >= 4
    assert shared.ask("predict", {"row": {"wind": 0.5}})[0] == 200


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_the_examples_of_the_page(shared):
    """Every command in docs/serve.md gets a response with the entries shown there."""
    page = Path(__file__).parents[2] / "docs" / "serve.md"
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    examples = [part for block in blocks for part in re.findall(r"^\$ (.*)\n((?:\{.*\n)+)", block, re.MULTILINE)]
    assert len(examples) == 7
    for command, shown in examples:
        command = command.replace("http://localhost:8000/", shared.address)
        output = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=60).stdout
        expected, found = ([json.loads(line) for line in part.splitlines()] for part in (shown, output))
        assert [list(entry) for entry in found] == [list(entry) for entry in expected], command
        for one, other in zip(found, expected, strict=True):
            assert one.get("error") == other.get("error")


SLOW = """
import sys, time
from norewind.cli import main
from norewind.training.training_loop import Training

learn = Training.learn
Training.learn = lambda self, taken: (time.sleep(1), learn(self, taken))
main(sys.argv[1:])
"""


def test_rows_not_learned_from_at_shutdown_are_reported(run):
    """They were accepted with 202, so they are saved or reported, and the exit code is not that of a signal."""
    with served(run, "--drain-seconds", "0", python=("-c", SLOW)) as server:
        for start in (300, 556):
            assert server.ask("learn", {"rows": table(256, start)})[0] == 202
        assert server.end() == 4
        output = server.process.stderr.read()
    first, last = map(int, re.search(r"rows (\d+) to (\d+) were accepted but not saved", output).groups())
    assert (last, first - 1) == (812, everything(run)["samples"])
    assert "--drain-seconds 0" in output


@pytest.mark.slow
def test_durable_rows_survive_a_kill_and_labels_keep_waiting(run):
    settings = run / "settings.toml"
    text, changed = re.subn(r"checkpoint_seconds = .*", "checkpoint_seconds = 0.2", settings.read_text())
    assert changed == 1
    settings.write_text(text)
    with served(run) as server:
        server.ask("predict", {"row": {"wind": 0.5}, "id": "late"})
        server.ask("learn?wait=1", {"rows": table(30, 300)})
        end = time.monotonic() + 30
        while server.ask("health")[1]["durable"] < 330:
            assert time.monotonic() < end
            time.sleep(0.05)
        server.process.kill()
        server.process.wait(60)
    with served(run) as server:
        health = server.ask("health")[1]
        assert health["learned"] >= 330
        assert health["waiting"] == 1
        status, answer = server.ask("learn", {"row": {"power": 0.5}, "id": "late"})
        assert (status, answer["first"]) == (202, health["accepted"] + 1)
        assert server.end() == 143
    with served(run) as server:
        assert server.ask("health")[1]["durable"] == answer["last"]
        assert server.ask("learn", {"row": {"power": 0.5}, "id": "late"})[0] == 404


def test_other_addresses_need_the_token(run, capsys):
    assert norewind("serve", run, "--host", "0.0.0.0") == 1
    assert "a token is needed" in capsys.readouterr().err
    assert norewind("serve", run, "--host", "0.0.0.0", "--port", "70000") == 1


def test_runs_that_cannot_be_served(tmp_path, shared, run, capsys):
    assert norewind("serve", tmp_path / "none", "--port", "0") == 1
    assert "holds no run" in capsys.readouterr().err
    port = shared.address.rsplit(":", 1)[1].rstrip("/")
    assert norewind("serve", run, "--port", port) == 1
    assert "cannot listen" in capsys.readouterr().err
    held = shared.process.args[4]
    assert norewind("serve", held, "--port", "0") == 1
    assert "another process" in capsys.readouterr().err


def test_damaged_rows_that_wait_for_labels_end_the_command(run, capsys):
    (run / "waiting.json").write_text('{"a": 1}')
    assert norewind("serve", run, "--port", "0") == 1
    assert "waiting.json is damaged" in capsys.readouterr().err
    assert "learning" not in [thread.name for thread in threading.enumerate()]


def test_an_invalid_number_of_a_waiting_row(tmp_path):
    (tmp_path / "waiting.json").write_text('{"a": ["x", {}]}')
    with pytest.raises(CheckpointError, match="damaged"):
        LateLabels(tmp_path, ["x"], most=10, durable=0)
