"""Real processes on a topic, killed at chosen and at random moments: each message is learned and answered once."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("confluent_kafka")
from kafka_cluster import rows
from run_folders import everything

from norewind.storage.checkpoint import checkpoints

pytestmark = pytest.mark.usefixtures("shared_programs")

MESSAGES = 3_000
OPTIONS = [
    *("--targets", "level", "--method", "uoro", "--hidden", 4, "--final", "--quiet"),
    *("--metrics-every", 300, "--checkpoint-every", 250, "--group", "g", "--predictions", "kafka://answers"),
]
# A process that is killed at a chosen point around the n-th commit.
DYING = """
import os, signal, sys
from norewind.training import kafka_answers as answers
point, deadly = sys.argv[1], int(sys.argv[2])
calls = 0
def die(): os.kill(os.getpid(), signal.SIGKILL)
commit = answers.Answers.commit
def dying(self, path):
    global calls
    calls += 1
    if calls == deadly:
        if point == "checkpoint is written": die()
        if point == "answers are sent":
            self._producer.flush(10); die()
        ask, asked = self._retry, [0]
        def ask_and_die(act):
            result = ask(act)
            asked[0] += 1
            if (point, asked[0]) in (("offsets are sent", 1), ("transaction is committed", 2)): die()
            return result
        self._retry = ask_and_die
    commit(self, path)
answers.Answers.commit = dying
from norewind.cli import main
main(sys.argv[3:])
"""
POINTS = ["checkpoint is written", "answers are sent", "offsets are sent", "transaction is committed"]


class Stage:
    """Create a topic, and return it with the options to train on it."""

    def __init__(self, cluster, name, folder):
        self.cluster, self.folder = cluster, folder
        self.topic, self.answers = name, f"{name}-answers"
        cluster.create(self.topic, self.answers)

    def start(self, run, *more, script=("-m", "norewind")):
        resumes = (run / "settings.toml").exists()
        command = ["resume", run, "--quiet"] if resumes else ["train", f"kafka://{self.topic}", "--out", run, *OPTIONS]
        if not resumes:
            command += ["--predictions", f"kafka://{self.answers}", "--brokers", self.cluster.brokers, *more]
        environment = {**os.environ, "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0"}
        command = [sys.executable, *script, *map(str, command)]
        return subprocess.Popen(command, stderr=subprocess.PIPE, env=environment)

    def finish(self, run):
        process = self.start(run)
        output = process.communicate(timeout=300)[1].decode()
        assert process.returncode == 0, output

    def seen(self):
        """Return the committed answers in the order of their samples, with their keys."""
        answers = [answer for part in self.cluster.committed(self.answers).values() for answer in part]
        return sorted(answers, key=lambda answer: answer[1]["sample"])


def filled(cluster, name, folder):
    stage = Stage(cluster, name, folder)
    cluster.send(stage.topic, rows(MESSAGES))
    return stage


@pytest.fixture(scope="module")
def whole(cluster, tmp_path_factory):
    """An uninterrupted run."""
    stage = filled(cluster, "whole", tmp_path_factory.mktemp("whole"))
    stage.finish(stage.folder / "run")
    return stage


def assert_same_end(stage, run, whole):
    ours, theirs = everything(run), everything(whole.folder / "run")
    for each in (ours, theirs):
        each["position"]["stream"]["messages"].pop("topic")
    assert ours == theirs
    assert stage.seen() == whole.seen()
    assert [answer["sample"] for _, answer in whole.seen()] == list(range(1, MESSAGES + 1))
    assert stage.cluster.group("g", stage.topic) == stage.cluster.group("g", whole.topic)


def test_an_undisturbed_run_answers_every_message_once_with_its_key(whole):
    seen = whole.seen()
    assert sorted((answer["partition"], answer["offset"]) for _, answer in seen) == sorted(
        (partition, offset)
        for partition, end in enumerate(whole.cluster.group("g", whole.topic))
        for offset in range(max(0, end))
    )
    assert all(key == b"s%d" % answer["partition"] for key, answer in seen)


KILLS = {"two": (2, POINTS[::3]), "four": (2, POINTS), **{f"first, {point}": (1, [point]) for point in POINTS}}


@pytest.mark.parametrize(
    "name", ["two", *(pytest.param(name, marks=pytest.mark.slow) for name in KILLS if name != "two")]
)
def test_survives_kills_around_a_commit(cluster, whole, tmp_path, name):
    """Each process is killed at a point around its first or second commit."""
    commit, points = KILLS[name]
    stage, run = filled(cluster, f"kill-{list(KILLS).index(name)}", tmp_path), tmp_path / "run"
    for point in points:
        process = stage.start(run, script=("-c", DYING, point, str(commit)))
        output = process.communicate(timeout=300)[1]
        assert process.returncode == -signal.SIGKILL, output
    stage.finish(run)
    assert_same_end(stage, run, whole)


@pytest.mark.slow
def test_survives_kills_at_random_moments(cluster, whole, tmp_path):
    generator = random.Random(5)
    for number in range(4):
        stage, run = filled(cluster, f"random-{number}", tmp_path), tmp_path / str(number)
        for _ in range(4):
            process = stage.start(run)
            count = len(checkpoints(run / "checkpoints"))
            while (
                process.poll() is None and len(checkpoints(run / "checkpoints")) == count and generator.random() < 0.998
            ):
                time.sleep(0.01)
            time.sleep(generator.expovariate(20))
            process.kill()
            process.communicate()
        stage.finish(run)
        assert_same_end(stage, run, whole)


@pytest.mark.slow
def test_a_live_topic_is_learned_in_the_order_of_its_answers(cluster, tmp_path):
    """Partitions arrive in any order, with kills; the result is that of a file in that order."""
    stage, run = Stage(cluster, "live", tmp_path), tmp_path / "run"
    generator, messages, process = random.Random(7), list(rows(1_500)), None
    for start in range(0, 1_500, 100):
        part = messages[start : start + 100]
        for partition in generator.sample(range(4), 4):
            cluster.send(stage.topic, [message for message in part if message[0] == partition])
            time.sleep(0.1)
        if start % 500 == 400 and process:
            process.kill()
            process.communicate()
            process = None
        process = process or stage.start(run, "--no-final", "--checkpoint-seconds", "0.5")
    deadline = time.monotonic() + 60
    while len(stage.seen()) < 1_500 and time.monotonic() < deadline:
        time.sleep(0.5)
    process.terminate()
    assert process.wait(60) == 143, process.stderr.read()
    seen = [answer for _, answer in stage.seen()]
    assert [answer["sample"] for answer in seen] == list(range(1, 1_501))
    by_place, ends = {}, [0] * 4
    for partition, _, _, value in messages:
        by_place[partition, ends[partition]] = value
        ends[partition] += 1
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(by_place[answer["partition"], answer["offset"]]) + "\n" for answer in seen))
    options = [*OPTIONS, "--predictions", "none", "--out", tmp_path / "file"]
    subprocess.run([sys.executable, "-m", "norewind", "train", file, *map(str, options)], check=True)
    ours, theirs = everything(run), everything(tmp_path / "file")
    assert ours["arrays"] == theirs["arrays"]
    assert ours["metrics"] == theirs["metrics"][: len(ours["metrics"])]
