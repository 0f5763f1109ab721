"""Single calls of a GRU-64, for `python -m benchmarks single`."""

import jax
import numpy as np

import norewind
from benchmarks.ours import learner_and_run, text
from benchmarks.timing import Case

CALLS = 200


def cases() -> list[Case]:
    learner, run = learner_and_run("uoro")
    packed = norewind.learners.pack(run)
    inputs, targets = text(CALLS)
    pairs = list(zip(map(np.int32, inputs), map(np.int32, targets), strict=True))

    def stepping(start):
        run = start
        for x, target in pairs:
            run, estimate = learner.step(run, x, target)
            loss = estimate.loss
        jax.block_until_ready(loss)

    def answering(start):
        run = start
        for x, target in pairs:
            run, _ = learner.predict(run, x)
            run, estimate = learner.learn(run, target)
            loss = estimate.loss
        jax.block_until_ready(loss)

    return [
        Case("step", lambda: stepping(run), CALLS),
        Case("predict + learn", lambda: answering(run), CALLS),
        Case("step, packed", lambda: stepping(packed), CALLS),
        Case("predict + learn, packed", lambda: answering(packed), CALLS),
    ]
