"""Scores of anomalies mean what they say through the detector: without anomalies, they are rarely high.

tests/scoring/test_anomalies.py has more kinds of noise, tests/scoring/test_line_score.py lines of text. The service
answers with the same entries (tests/serving/test_service.py).
"""

import numpy as np
import pytest

import norewind
from norewind.training.hooks import Hooks

ROWS = 6_000


def memory(noise):
    values = noise.normal(size=ROWS)
    for row in range(1, ROWS):
        values[row] += 0.9 * values[row - 1]
    return values


STREAMS = {
    "white noise": lambda noise: noise.normal(size=ROWS),
    "heavy tails": lambda noise: noise.standard_t(3, ROWS),
    "counts": lambda noise: noise.poisson(3, ROWS) * 1.0,
    "memory": memory,
    "a noisy wave": lambda noise: np.sin(np.arange(ROWS) / 15) + 0.2 * noise.normal(size=ROWS),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_a_score_comes_up_at_most_as_often_as_it_says(kind):
    values = STREAMS[kind](np.random.default_rng(0)).tolist()
    entries = []
    model = norewind.AnomalyDetector("value", budget=20)  # too little for networks, which take time
    model.fit(({"value": value} for value in values[:-1]), hooks=Hooks(predictions=entries.extend))
    scores = np.array([entry.get("anomaly", 0.0) for entry in entries])
    assert len(scores) == ROWS - 1
    for share in (0.1, 0.01):
        assert (scores >= 1 - share).mean() <= share
    assert (scores >= 0.9).any()
    # A single row has the score that it gets when it is learned from.
    alone = model.score_one({"value": values[-1]})
    model.fit([{"value": values[-1]}], hooks=Hooks(predictions=entries.extend))
    assert entries[-1].get("anomaly", 0.0) == pytest.approx(alone, abs=1e-8)
