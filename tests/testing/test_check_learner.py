"""Our learners pass the conformance suite, and the suite detects broken ones."""

import jax
import numpy as np
import optax
import pytest

from norewind import cells, online, uoro
from norewind.core.losses import cross_entropy, known_squared_error
from norewind.estimators import snap1
from norewind.learners import AheadLearner, Learner, PackedLearner
from norewind.learners.symbol_mixture import SymbolMixture
from norewind.testing import check_learner, yield_learner_checks

# JAX compiles a loop for each length of a chunk.
ROUNDING = 2e-4


def symbols(rows=40, seed=0):
    text = np.random.default_rng(seed).integers(0, 3, rows + 1).astype(np.int32)
    return text[:-1], text[1:]


def numbers(rows=60, inputs=2, steps=1, seed=0):
    xs = np.random.default_rng(seed).normal(size=(rows, inputs)).astype(np.float32)
    return xs, np.tile(xs[:, :1], (1, steps))


def networks(steps=(), packed=False):
    cell = cells.lru(2, 4, max(1, len(steps)), symbols=False)
    learner = online(snap1(cell.transition, known_squared_error), optax.sgd(1e-2))
    run = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    if not steps:
        return learner, run, *numbers()
    single = PackedLearner(learner)
    ahead = AheadLearner(single if packed else learner, known_squared_error, steps)
    xs, targets = numbers(steps=len(steps))
    run = ahead.init(run, xs[0], targets[0], targets[0])
    return ahead, run._replace(run=single.pack(run.run)) if packed else run, xs, targets


def of_symbols():
    cell = cells.gru(3, 4, 3)
    learner = online(uoro(cell.transition, cross_entropy), optax.sgd(1e-2))
    return learner, learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1)), *symbols()


def of_text():
    network, run, xs, targets = of_symbols()
    learner = SymbolMixture([(network, run)], 3, megabytes=0.1)
    return learner, learner.init(), xs, targets


CASES = {
    "online": (of_symbols, ROUNDING),
    "rows": (networks, ROUNDING),
    "same row": (lambda: networks((0,)), ROUNDING),
    "ahead": (lambda: networks((1, 2, 5)), ROUNDING),
    "one far step": (lambda: networks((4,)), ROUNDING),
    "text": (of_text, ROUNDING),
    "packed": (lambda: networks((1, 2, 5), packed=True), ROUNDING),
}


def checks():
    for name, (make, tolerance) in CASES.items():
        for check in yield_learner_checks(*make(), tolerance=tolerance):
            yield pytest.param(check, id=f"{name}-{check.__name__}")


@pytest.mark.parametrize("check", list(checks()))
def test_our_learners(check):
    check()


class RunningMean(Learner):
    """Predicts the mean of the targets so far, with an optional mistake."""

    def __init__(self, mistake=None):
        self.mistake = mistake

    def init(self):
        return {"sum": np.zeros(1), "count": np.zeros(1), "seen": np.zeros(1)}

    def scan(self, run, xs, targets, *, count=None, outputs=False):
        count = len(xs) if count is None else count
        made, losses = np.zeros(len(xs)), np.zeros(len(xs))
        for row in range(count):
            if self.mistake == "future" and row + 1 < count:
                run["sum"] += 0.01 * targets[row + 1, 0]
            if self.mistake == "target":
                run["sum"] += targets[row, 0]
            made[row] = run["sum"][0] / max(1, run["count"][0])
            losses[row] = (made[row] - targets[row, 0]) ** 2
            if self.mistake != "target":
                run["sum"] += targets[row, 0]
            run["count"] += 1
        if self.mistake == "chunks":
            run["sum"] += 1
        if self.mistake == "hidden":
            self.calls = getattr(self, "calls", 0) + 1
            made += self.calls
        return run, losses, made

    def forward(self, run, xs, *, count=None):
        if self.mistake == "forward":
            run["sum"] += 1
        made = np.full(len(xs), run["sum"][0] / max(1, run["count"][0]))
        if self.mistake == "fresh":
            made[:] = 0
        return {**run, "seen": run["seen"] + len(xs)}, made + (self.mistake == "state") * run["seen"]

    def reset(self, run):
        return {**run, "seen": run["seen"] + 1 if self.mistake in ("reset", "state") else 0 * run["seen"]}


def test_a_plain_learner_passes():
    learner = RunningMean()
    check_learner(learner, learner.init(), *numbers())


@pytest.mark.parametrize(
    ("mistake", "noticed_by"),
    [
        ("future", "nothing_from_the_future"),
        ("target", "nothing_from_the_future"),
        ("chunks", "cuts_change_nothing"),
        ("hidden", "cuts_change_nothing"),
        ("forward", "predicting_learns_nothing"),
        ("fresh", "predicting_uses_everything_learned"),
        ("state", "a_reset_forgets_the_sequence"),
        ("reset", "a_second_reset_changes_nothing"),
    ],
)
def test_mistakes_are_noticed(mistake, noticed_by):
    learner = RunningMean(mistake)
    failed = []
    for check in yield_learner_checks(learner, learner.init(), *numbers()):
        try:
            check()
        except AssertionError:
            failed.append(check.__name__)
    assert noticed_by in failed
