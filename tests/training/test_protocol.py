"""The protocols of answers in transactions and of late labels: every state of a model, and real runs on schedules."""

import pytest

pytest.importorskip("confluent_kafka")
from protocol_model import KafkaModel, LabelsModel, explore
from run_folders import norewind
from scheduled_runs import follow, scheduling

from norewind.storage.checkpoint import checkpoints
from norewind.training.settings import Settings

# Rows of one message of the model: a checkpoint is written after each.
CHUNK, MESSAGES = 2, 3


@pytest.mark.parametrize(
    "model",
    [
        KafkaModel(lock=True),
        pytest.param(KafkaModel(lock=False), marks=pytest.mark.slow),
        KafkaModel(lock=False, messages=2),
        LabelsModel(),
    ],
    ids=["one process at a time", "two processes", "two processes, two messages", "labels"],
)
def test_in_no_state_is_anything_lost_or_repeated(model):
    states, broken, _ = explore(model)
    assert broken is None
    assert states > 1_000


BROKEN = {
    "commit before the checkpoint": (KafkaModel(("learn", "offsets", "commit", "write", "remove")), "is gone"),
    "remove before commit": (KafkaModel(("learn", "write", "remove", "offsets", "commit"), lock=True), "is gone"),
    "no fencing": (KafkaModel(fences=False), "are visible"),
    "continue from the latest checkpoint": (KafkaModel(returns=False, lock=True), "in the end"),
    "remove later checkpoints too": (KafkaModel(removes_later=True), "is gone"),
    "labels after the checkpoint": (LabelsModel(("checkpoint", "labels", "forget")), "learned from twice"),
    "forget accepted rows beyond the checkpoint": (LabelsModel(forgets_all=True), "are lost by a kill"),
    "durable before the checkpoint": (LabelsModel(("labels", "forget", "checkpoint")), "no checkpoint contains"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_model_finds_a_protocol_that_is_broken(name):
    model, words = BROKEN[name]
    _, broken, _ = explore(model)
    assert broken is not None
    assert words in broken[1]


def settings_of(cluster, name):
    """Settings of runs on a new topic with this many messages of the model."""
    cluster.create(name, f"{name}-answers")
    cluster.send(name, [(0, 1_700_000_000_000 + i, None, {"level": i * i % 7}) for i in range(CHUNK * MESSAGES)])
    return Settings(
        source=f"kafka://{name}/0",
        brokers=cluster.brokers,
        group=name,
        predictions=f"kafka://{name}-answers",
        targets=("level",),
        inputs=("level",),
        method="uoro",
        cell="rnn",
        hidden=2,
        metrics_every=CHUNK,
        checkpoint_every=CHUNK,
        keep=1,
        final=True,
    )


class Watch:
    """Checks the invariants of the model on the cluster and in the folder."""

    def __init__(self, cluster, name, run):
        self.cluster, self.name, self.run = cluster, name, run

    def seen(self):
        answers = self.cluster.committed(f"{self.name}-answers")
        return sorted(answer["sample"] for part in answers.values() for _, answer in part)

    def __call__(self, action, runs):
        done = max(0, self.cluster.group(self.name, self.name)[0])
        assert self.seen() == list(range(1, done + 1)), action
        samples = [int(path.name[:15]) for path in checkpoints(self.run / "checkpoints")]
        assert not done or done in samples, (action, done, samples)


def replay(cluster, tmp_path, name, schedule, **options):
    """Follow a schedule with real runs; then one more run ends it, and every message is answered once."""
    settings, run = settings_of(cluster, name), tmp_path / "run"
    watch = Watch(cluster, name, run)
    with scheduling(**options):
        follow(schedule, settings, run, watch)
    if (run / "settings.toml").exists():
        assert norewind("resume", run, "--quiet") == 0
    else:
        with scheduling(**options):
            follow([(0, "start"), *[(0, step) for step in ONE * MESSAGES]], settings, run, watch)
    assert watch.seen() == list(range(1, CHUNK * MESSAGES + 1))


ONE = ("learn", "write", "offsets", "commit", "remove")


def schedules():
    """A crash of the first run before each step of its second message, and then the second run, also interrupted."""
    begin = [(0, "start"), *[(0, step) for step in ONE]]
    for place, step in enumerate(ONE):
        before = [*begin, *[(0, step) for step in ONE[:place]], (0, "crash")]
        yield f"killed-before-{step}", [*before, (1, "start"), *[(1, step) for step in ONE[: place + 1]], (1, "crash")]


def paused():
    """The first run is paused before each step, loses the run to the second one, and continues at any time."""
    for place, step in enumerate(ONE):
        begin = [(0, "start"), *[(0, step) for step in ONE[:place]], (1, "start")]
        for later in (1, 4, 7):
            between = [(1, (ONE * 2)[i]) for i in range(later)]
            yield f"paused-before-{step}-{later}", [*begin, *between, *[(0, step) for step in ONE[place:]]]


QUICK = ("killed-before-commit", "paused-before-remove-7")


def slow_but_quick(pairs):
    return [pytest.param(n, s, id=n, marks=() if n in QUICK else pytest.mark.slow) for n, s in pairs]


@pytest.mark.parametrize(("name", "schedule"), slow_but_quick(schedules()))
def test_killed_runs_follow_the_model(cluster, tmp_path, name, schedule):
    replay(cluster, tmp_path, name, schedule)


@pytest.mark.parametrize(("name", "schedule"), slow_but_quick(paused()))
def test_paused_runs_follow_the_model(cluster, tmp_path, name, schedule):
    """On a file system without locks. The one that was paused is fenced, or has only its old checkpoints to remove."""
    replay(cluster, tmp_path, name, schedule, lock=False)


@pytest.mark.slow
def test_a_partition_that_is_handed_over(cluster, tmp_path):
    given = [(0, "start"), *[(0, step) for step in ONE], (0, "leave"), (1, "start"), *[(1, step) for step in ONE]]
    replay(cluster, tmp_path, "given", [*given, (1, "crash")])


@pytest.mark.slow
def test_the_schedule_of_the_model_breaks_the_real_code_too(cluster, tmp_path):
    """When checkpoints are removed before the commit, the schedule that the model finds loses the committed one."""
    schedule = [(0, "start"), *[(0, step) for step in ONE], (0, "learn"), (0, "write")]
    with pytest.raises(AssertionError, match="'write'"):
        replay(cluster, tmp_path, "broken", schedule, order="remove before commit")
