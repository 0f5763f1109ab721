"""CPU microseconds of single calls on a GRU-64: `python -m benchmarks.calls`. Run it on an idle machine."""

from benchmarks.timing import Case, measure, use_one_core

use_one_core()

import math  # noqa: E402

import jax  # noqa: E402
import numpy as np  # noqa: E402

import norewind  # noqa: E402
from benchmarks.ours import learner_and_run, text  # noqa: E402

CALLS = 1_000


def cases() -> list[Case]:
    learner, run = learner_and_run("uoro")
    single, now = norewind.packed(learner, run)
    inputs, targets = text(CALLS)
    pairs = list(zip(map(np.int32, inputs), map(np.int32, targets), strict=True))

    def stepping(learner, start):
        def go():
            run = start
            for x, target in pairs:
                run, estimate = learner.step(run, x, target)
            jax.block_until_ready(estimate.loss)

        return go

    def answering(learner, start):
        def go():
            run = start
            for x, target in pairs:
                run, _ = learner.predict(run, x)
                run, estimate = learner.learn(run, target)
            jax.block_until_ready(estimate.loss)

        return go

    model = norewind.Forecaster("tide")
    rows = [{"tide": math.sin(t / 2), "wind": math.cos(t / 7)} for t in range(CALLS)]
    return [
        Case("scan, a character", lambda: jax.block_until_ready(learner.scan(run, inputs, targets)), CALLS),
        Case("step", stepping(learner, run), CALLS),
        Case("predict + learn", answering(learner, run), CALLS),
        Case("packed step", stepping(single, now), CALLS),
        Case("packed predict + learn", answering(single, now), CALLS),
        Case("Forecaster.learn_one (auto, two columns)", lambda: [model.learn_one(row) for row in rows], CALLS),
        Case("Forecaster.predict_one", lambda: [model.predict_one(row) for row in rows], CALLS),
    ]


if __name__ == "__main__":
    for row in measure(cases(), rounds=5):
        print(f"{row['us']:8.1f} µs  {row['case']}")
