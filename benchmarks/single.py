"""Single calls of a GRU-64, for `python -m benchmarks single`."""

import jax
import numpy as np

import norewind
from benchmarks.ours import learner_and_run, text
from benchmarks.timing import Case

CALLS = 200


def cases() -> list[Case]:
    learner, run = learner_and_run("uoro")
    single = norewind.learners.PackedLearner(learner)
    packed = single.pack(run)
    inputs, targets = text(CALLS)
    pairs = list(zip(map(np.int32, inputs), map(np.int32, targets), strict=True))

    def stepping(learner, run):
        for x, target in pairs:
            run, *results = learner.step(run, x, target)
        jax.block_until_ready(results)

    def answering(learner, run):
        for x, target in pairs:
            run, _ = learner.predict(run, x)
            run, *results = learner.learn(run, target)
        jax.block_until_ready(results)

    return [
        Case("step", lambda: stepping(learner, run), CALLS),
        Case("predict + learn", lambda: answering(learner, run), CALLS),
        Case("step, packed", lambda: stepping(single, packed), CALLS),
        Case("predict + learn, packed", lambda: answering(single, packed), CALLS),
    ]
