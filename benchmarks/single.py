"""CPU microseconds of single calls on a GRU-64: `python -m benchmarks.single`. Run it on an idle machine."""

from benchmarks.timing import Case, measure, use_one_core

use_one_core()

import jax  # noqa: E402
import numpy as np  # noqa: E402

import norewind  # noqa: E402
from benchmarks.ours import learner_and_run, text  # noqa: E402

CALLS = 100


def cases() -> list[Case]:
    learner, run = learner_and_run("uoro")
    packed = norewind.pack(run)
    inputs, targets = text(CALLS)
    pairs = list(zip(map(np.int32, inputs), map(np.int32, targets), strict=True))

    def stepping(start):
        run = start
        for x, target in pairs:
            run, estimate = learner.step(run, x, target)
        jax.block_until_ready(estimate.loss)

    def answering(start):
        run = start
        for x, target in pairs:
            run, _ = learner.predict(run, x)
            run, estimate = learner.learn(run, target)
        jax.block_until_ready(estimate.loss)

    return [
        Case("scan", lambda: jax.block_until_ready(learner.scan(run, inputs, targets)), CALLS),
        Case("step", lambda: stepping(run), CALLS),
        Case("predict + learn", lambda: answering(run), CALLS),
        Case("step, packed", lambda: stepping(packed), CALLS),
        Case("predict + learn, packed", lambda: answering(packed), CALLS),
    ]


if __name__ == "__main__":
    for row in measure(cases(), rounds=20):
        print(f"{row['us']:8.1f} µs  {row['case']}")
