"""Workers share the partitions of a topic: when a partition moves, no message is lost or learned from twice."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("confluent_kafka")
from run_folders import assert_rejected, everything, keys_in, norewind

pytestmark = pytest.mark.usefixtures("shared_programs")

MESSAGES = 900
MODEL = (
    *("--key", "@key", "--targets", "level", "--method", "uoro", "--hidden", 4),
    *("--metrics-every", 100, "--checkpoint-every", 100),
)


def messages(first, last):
    """Create three partitions with different rates, and an empty fourth."""
    for i in range(first, last):
        partition = (0, 0, 1, 0, 1, 2)[i % 6]
        yield partition, 1_700_000_000_000 + 100 * i, b"s%d%d" % (partition, i % 2), {"level": i * i % 97 / 10}


class Crew:
    """Start workers on one topic, with a short session timeout."""

    def __init__(self, cluster, folder):
        self.cluster, self.out, self.workers = cluster, folder / "shared", []
        self.client = folder / "client"
        self.client.write_text("session.timeout.ms = 3000\nheartbeat.interval.ms = 500\n")

    def hire(self):
        answers = ("--group", "crew", "--predictions", "kafka://moving-answers", "--checkpoint-seconds", 0.5)
        command = ("train", "kafka://moving/*", "--out", self.out, "--brokers", self.cluster.brokers, *MODEL, *answers)
        command = [sys.executable, "-m", "norewind", *map(str, (*command, "--client", self.client))]
        # The tests compile without optimisations, so processes that must give the same numbers do too.
        environment = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
        with open(self.out.parent / f"output-{len(self.workers)}", "wb") as output:
            self.workers.append(subprocess.Popen(command, stderr=output, env=environment))
        return self.workers[-1]

    def output(self, number):
        return (self.out.parent / f"output-{number}").read_text()

    def wait(self, until):
        deadline = time.monotonic() + 500
        while not until():
            for number, worker in enumerate(self.workers):
                assert worker.poll() in (None, -signal.SIGKILL), self.output(number)
            assert time.monotonic() < deadline, [self.output(number) for number in range(len(self.workers))]
            time.sleep(0.2)

    def answers(self):
        """Return the answers by partition."""
        found = {partition: [] for partition in range(4)}
        for part in self.cluster.committed("moving-answers").values():
            for key, answer in part:
                found[answer["partition"]].append((answer["offset"], key, answer))
        return {partition: sorted(part, key=lambda entry: entry[0]) for partition, part in found.items()}

    def answered(self):
        return sum(map(len, self.answers().values()))


@pytest.fixture
def crew(cluster, tmp_path):
    crew = Crew(cluster, tmp_path)
    yield crew
    for worker in crew.workers:
        worker.kill()
        worker.wait()


@pytest.mark.slow
def test_partitions_move_with_their_keys_also_from_a_worker_that_is_killed(cluster, crew, tmp_path):
    cluster.create("moving", "moving-answers")
    cluster.send("moving", messages(0, 300))
    first = crew.hire()
    crew.wait(lambda: crew.answered() == 300)
    second = crew.hire()
    # The first worker hands some of its partitions to the second.
    crew.wait(lambda: "saved and released" in crew.output(0) and "started" in crew.output(1))
    cluster.send("moving", messages(300, 600))
    crew.wait(lambda: crew.answered() > 350)
    first.kill()
    crew.wait(lambda: crew.answered() == 600)
    cluster.send("moving", messages(600, MESSAGES))
    crew.wait(lambda: crew.answered() == MESSAGES)
    second.terminate()
    assert second.wait(100) == 143, crew.output(1)
    for partition, found in crew.answers().items():
        if partition == 3:
            assert not found
            continue
        assert [offset for offset, _, _ in found] == list(range(len(found)))
        alone, answers = tmp_path / f"alone-{partition}", f"alone-{partition}"
        cluster.create(answers)
        place = (f"kafka://moving/{partition}", "--out", alone, "--brokers", cluster.brokers, "--quiet")
        group = ("--group", f"alone-{partition}", "--predictions", f"kafka://{answers}", "--final")
        assert norewind("train", *place, *MODEL, *group) == 0
        expected = [answer for part in cluster.committed(answers).values() for answer in part]
        assert sorted(expected, key=lambda answer: answer[1]["offset"]) == [entry[1:] for entry in found]
        ours, theirs = everything(crew.out / f"partition-{partition}"), everything(alone)
        for name in ("arrays", "samples", "tally", "score", "divergence"):
            assert ours[name] == theirs[name], name
        assert keys_in(crew.out / f"partition-{partition}") == keys_in(alone) != {}


@pytest.mark.slow
def test_a_partition_that_fails_ends_its_worker_and_the_others_are_saved(cluster, tmp_path, capfd):
    cluster.send("spoilt", messages(0, 120))
    cluster.send("spoilt", [(1, 1_800_000_000_000, b"k", b"not JSON")])
    place = ("train", "kafka://spoilt/*", "--out", tmp_path / "shared", "--brokers", cluster.brokers, "--group", "s")
    assert norewind(*place, *MODEL) == 1
    output = capfd.readouterr().err
    assert "partition-1 has failed" in output
    assert "partition 1, offset 40 is bad" in output
    assert everything(tmp_path / "shared" / "partition-1")["samples"] == 40
    assert all(norewind("resume", tmp_path / "shared" / f"partition-{n}", "--final", "--quiet") == 0 for n in (0, 2))


def test_the_settings_that_workers_need(cluster, tmp_path, capfd):
    place = ("train", "kafka://moving/*", "--out", tmp_path / "shared", "--brokers", cluster.brokers)
    assert_rejected(capfd, norewind(*place), "share the partitions (--group)")
    assert_rejected(capfd, norewind(*place, "--group", "g", "--final"), "leave out --final")
    place = ("train", "kafka://nowhere/*", *place[2:], "--group", "g")
    assert_rejected(capfd, norewind(*place), "no topic 'nowhere'")
    assert not (tmp_path / "shared").exists()
