"""Topics as sources: bad messages, unreachable brokers, deleted positions. No processes are killed here."""

import os
import signal
import socket
import threading

import pytest

pytest.importorskip("confluent_kafka")
from kafka_cluster import Cluster, rows
from run_folders import assert_rejected, at_sample, everything, norewind

from norewind.storage.checkpoint import checkpoints, read_metadata
from norewind.streams.stream import StreamError
from norewind.training import kafka_answers
from norewind.training.log import read_log
from norewind.training.settings import Settings

pytestmark = pytest.mark.usefixtures("shared_programs")

SMALL = ("--method", "uoro", "--hidden", 4, "--metrics-every", 100, "--checkpoint-every", 100, "--quiet")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr("norewind.streams.kafka.client.START_SECONDS", 5.0)
    monkeypatch.setattr("norewind.streams.kafka.topic.OUTAGE_SECONDS", 2.0)
    monkeypatch.setattr("norewind.training.kafka_answers.OUTAGE_SECONDS", 2.0)


def train(cluster, topic, out, *more):
    return norewind("train", f"kafka://{topic}", "--brokers", cluster.brokers, "--out", out, *SMALL, *more)


def position(run):
    return read_metadata(checkpoints(run / "checkpoints")[-1])["position"]["stream"]["messages"]


def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(cluster, tmp_path, monkeypatch):
    cluster.send("calm", rows(400))
    options = ("--final", "--predictions", "file", "--copy", "@key", "@time", "--group", "watched")
    assert train(cluster, "calm", tmp_path / "whole", *options) == 0
    with monkeypatch.context() as patch:
        at_sample(patch, 150, lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert train(cluster, "calm", tmp_path / "run", *options) == 143
    assert norewind("resume", tmp_path / "run", "--quiet") == 0
    assert everything(tmp_path / "run") == everything(tmp_path / "whole")
    lines = read_log(tmp_path / "run" / "predictions.jsonl")
    assert len({(line["partition"], line["offset"]) for line in lines}) == len(lines) == 400
    assert all(line["copied"]["@key"] == f"s{line['partition']}" for line in lines)
    offsets = position(tmp_path / "run")["offsets"]
    assert [max(0, offset) for offset in cluster.group("watched", "calm")] == list(offsets.values())


POISON = [
    b"not JSON",
    None,
    b"",
    b"\xff{}",
    b"[1]",
    b'{"level": "high"}',
    b'{"level": 1, "x": "' + b"a" * (1 << 20) + b'"}',
]
REASONS = ["not valid JSON", "tombstone", "it is empty", "not valid UTF-8, at byte 0", "JSON list", "'high' is not a"]


def test_bad_messages_are_reported_with_their_location(cluster, tmp_path, capfd):
    good = [(2, 1_700_000_000_000 + i, b"k", {"level": i % 7}) for i in range(30)]
    bad = [(2, 1_700_000_000_100 + i, b"k", value) for i, value in enumerate(POISON[:-1])]
    cluster.send("poison", [*good, *bad, *((2, moment + 200, key, value) for _, moment, key, value in good)])
    options = ("--final", "--predictions", "file")
    assert_rejected(
        capfd, train(cluster, "poison", tmp_path / "run", *options), "kafka://poison, partition 2, offset 30"
    )
    assert position(tmp_path / "run")["offsets"]["2"] == 30
    assert norewind("resume", tmp_path / "run", "--bad", "skip", "--quiet") == 0
    output = capfd.readouterr().err
    for number, reason in enumerate(REASONS, 30):
        assert any(f"partition 2, offset {number}" in line and reason in line for line in output.splitlines()), reason
    assert len(read_log(tmp_path / "run" / "predictions.jsonl")) == 60
    assert read_log(tmp_path / "run" / "metrics.jsonl")[-1]["skipped"] == {"bad rows": 6}


def test_unreachable_brokers_and_unknown_topics_are_named(cluster, tmp_path, monkeypatch, capfd):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        closed = f"127.0.0.1:{nobody.getsockname()[1]}"
    with monkeypatch.context() as patch:
        patch.setattr("norewind.streams.kafka.client.START_SECONDS", 2.0)
        code = norewind("train", "kafka://t", "--brokers", closed, "--out", tmp_path / "run", *SMALL)
    assert_rejected(capfd, code, closed, "do not answer", "refused")
    assert_rejected(capfd, train(cluster, "nowhere", tmp_path / "run"), "no topic 'nowhere'")
    cluster.create("some")
    assert_rejected(capfd, train(cluster, "some/9", tmp_path / "run"), "no partition 9, only 4")
    assert_rejected(capfd, train(cluster, "some", tmp_path / "run", "--final"), "kafka://some is empty")
    assert_rejected(capfd, train(cluster, "some", tmp_path / "run", "--format", "csv"), "read as JSON")
    assert_rejected(capfd, norewind("train", "kafka://some", "--out", tmp_path / "run", *SMALL), "--brokers")
    assert not (tmp_path / "run").exists()


def test_wrong_credentials_and_options_are_named(cluster, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("norewind.streams.kafka.client.START_SECONDS", 2.0)
    options = tmp_path / "client"
    for text, word in [
        ("security.protocol = sasl_plaintext\nsasl.mechanism = PLAIN\nsasl.username = a\nsasl.password = b", "SASL"),
        ("no.such.option = 1", "no.such.option"),
        ("nonsense", "line 1: not of the form"),
    ]:
        options.write_text(text + "\n")
        assert_rejected(capfd, train(cluster, "t", tmp_path / "run", "--client", options), word)
    assert_rejected(capfd, train(cluster, "t", tmp_path / "run", "--client", tmp_path / "none"), "cannot be read")


def test_deleted_messages_are_not_skipped_silently(cluster, tmp_path, capfd):
    cluster.send("old", [(0, 1_700_000_000_000 + i, None, {"level": i % 7}) for i in range(200)])
    assert train(cluster, "old", tmp_path / "run", "--final") == 0
    # The mock keeps five megabytes per partition.
    for _ in range(14):
        cluster.send("old", [(0, 1_700_000_001_000, None, {"level": 1, "x": "a" * 500_000})])
    cluster.send("old", [(0, 1_700_000_002_000 + i, None, {"level": i % 7}) for i in range(20)])
    code = norewind("resume", tmp_path / "run", "--quiet")
    assert_rejected(
        capfd, code, "partition 0", "continues at offset 200", "deleted before they were read", "--continues"
    )
    assert norewind("resume", tmp_path / "run", "--continues", "--quiet") == 0
    skipped = read_log(tmp_path / "run" / "metrics.jsonl")[-1]["skipped"]["messages deleted before they were read"]
    assert position(tmp_path / "run")["offsets"]["0"] == 234
    assert read_metadata(checkpoints(tmp_path / "run" / "checkpoints")[-1])["samples"] == 234 - skipped


def test_brokers_may_be_unreachable_for_a_while(tmp_path, monkeypatch, capfd):
    cluster = Cluster()
    cluster.send("away", rows(300))
    at_sample(monkeypatch, 300, cluster.disconnect)
    try:
        code = train(cluster, "away", tmp_path / "run", "--flush", "0.2")
        assert_rejected(capfd, code, "do not answer for")
    finally:
        cluster.come_back()
    assert read_metadata(checkpoints(tmp_path / "run" / "checkpoints")[-1])["samples"] == 300
    monkeypatch.undo()
    monkeypatch.setattr("norewind.streams.kafka.topic.OUTAGE_SECONDS", 20.0)
    blinks = iter([cluster.disconnect])
    at_sample(monkeypatch, 320, lambda: next(blinks, lambda: None)())
    at_sample(monkeypatch, 360, lambda: os.kill(os.getpid(), signal.SIGTERM))
    cluster.send("away", list(rows(320))[300:])
    back = threading.Timer(3, lambda: (cluster.come_back(), cluster.send("away", list(rows(360))[320:])))
    back.start()
    assert norewind("resume", tmp_path / "run", "--quiet") == 143
    back.join()
    assert read_metadata(checkpoints(tmp_path / "run" / "checkpoints")[-1])["samples"] == 360


def test_answers_belong_to_one_run_of_a_group(cluster, tmp_path, capfd):
    cluster.send("asked", rows(100))
    cluster.create("told")
    answers = ("--final", "--predictions", "kafka://told")
    assert_rejected(capfd, train(cluster, "asked", tmp_path / "run", *answers), "pass --group")
    answers = (*answers, "--group", "one")
    assert train(cluster, "asked", tmp_path / "run", *answers) == 0
    assert sum(map(len, cluster.committed("told").values())) == 100
    assert_rejected(capfd, train(cluster, "asked", tmp_path / "other", *answers), "another run answers under this name")
    code = train(cluster, "asked", tmp_path / "other", "--group", "two", "--predictions", "kafka://asked")
    assert_rejected(capfd, code, "a different topic than the one that is read")
    code = train(cluster, "asked", tmp_path / "other", "--group", "two", "--predictions", "kafka://untold")
    assert_rejected(capfd, code, "no topic 'untold'")


def test_a_second_process_fences_the_first(cluster, tmp_path, monkeypatch, capfd):
    from norewind.training.kafka_answers import Answers
    from norewind.training.settings import Settings

    cluster.send("fenced", rows(300))
    cluster.create("fenced-answers")
    options = {
        "source": "kafka://fenced",
        "brokers": cluster.brokers,
        "group": "f",
        "predictions": "kafka://fenced-answers",
    }

    def take_over():
        other = Answers(Settings(**options), lambda: False)
        other._producer.init_transactions(5)
        other.abandon()

    acts = iter([take_over])
    at_sample(monkeypatch, 150, lambda: next(acts, lambda: None)())
    code = train(
        cluster, "fenced", tmp_path / "run", "--group", "f", "--predictions", "kafka://fenced-answers", "--final"
    )
    assert_rejected(capfd, code, "another process has begun to answer")
    monkeypatch.undo()
    assert norewind("resume", tmp_path / "run", "--quiet") == 0
    answers = [answer for part in cluster.committed("fenced-answers").values() for answer in part]
    assert sorted(answer["sample"] for _, answer in answers) == list(range(1, 301))


def test_partitions_are_separate_runs(cluster, tmp_path):
    """On shared storage, another worker continues a partition from its folder."""
    cluster.send("parts", rows(300))
    assert train(cluster, "parts/1,2", tmp_path / "some", "--final", "--predictions", "file") == 0
    lines = read_log(tmp_path / "some" / "predictions.jsonl")
    assert {line["partition"] for line in lines} == {1, 2}
    assert set(position(tmp_path / "some")["offsets"]) == {"1", "2"}


def test_failed_answers_close_their_client(monkeypatch):
    class Lost:
        open = True

        def return_to_commit(self, *_, **__):
            raise StreamError("the group is another's.")

        def abandon(self):
            self.open = False

    lost = Lost()
    monkeypatch.setattr(kafka_answers, "Answers", lambda *_: lost)
    settings = Settings("kafka://in", predictions="kafka://out")
    with pytest.raises(StreamError), kafka_answers.answering(settings, None, continues=False, stop=lambda: False):
        pass
    assert not lost.open
