"""The score of the Numenta Anomaly Benchmark, by hand, and compared with a slow reference that follows its rules."""

import json
import math

import numpy as np
import pytest

from scoreboards.nab_score import PROFILES, Series, best_result, probation, read_corpus, values_of_alarms


def series(rows, *windows):
    return Series("one", np.zeros(rows), windows)


def alarms(rows, *places):
    return np.isin(np.arange(rows), places).astype(float)


def reference(corpus, scores, weights, threshold):
    """The sum of a corpus at one threshold, row by row."""
    total = 0.0
    for one, score in zip(corpus, scores, strict=True):
        best = dict.fromkeys(one.windows, -weights.miss)
        for row in range(probation(len(score)), len(score)):
            if score[row] < threshold:
                continue
            window = next((window for window in one.windows if window[0] <= row <= window[1]), None)
            if window:
                place = -(window[1] - row + 1) / (window[1] - window[0] + 1)
                gain = (2 / (1 + math.exp(5 * place)) - 1) / (2 / (1 + math.exp(-5)) - 1)
                best[window] = max(best[window], weights.hit * gain)
            else:
                before = [window for window in one.windows if window[1] < row]
                place = (row - before[-1][1]) / (before[-1][1] - before[-1][0]) if before else 3
                total += weights.wrong * (2 / (1 + math.exp(5 * place)) - 1 if place < 3 else -1)
        total += sum(best.values())
    return total


@pytest.mark.parametrize("profile", PROFILES)
def test_the_best_threshold_is_that_of_a_slow_search(profile):
    noise, weights = np.random.default_rng(0), PROFILES[profile]
    corpus = [series(200, (60, 79), (90, 99)), series(150), series(100, (20, 29))]
    scores = [np.round(noise.random(len(one.values)), 1) for one in corpus]  # with ties
    for one, score in zip(corpus, scores, strict=True):
        for first, _ in one.windows:
            score[first + 4] = 1.1  # a detector that is better than chance
    found = best_result(corpus, scores, weights)
    sums = {threshold: reference(corpus, scores, weights, threshold) for threshold in np.unique(np.concatenate(scores))}
    null, perfect = -3 * weights.miss, 3 * weights.hit
    best = max(sums, key=sums.__getitem__)
    assert sums[best] > null
    assert found.score == pytest.approx(100 * (sums[best] - null) / (perfect - null))
    assert found.threshold == best


def test_a_detector_that_never_alarms_has_0_and_a_perfect_one_100():
    corpus = [series(100, (40, 49), (70, 79)), series(100)]
    for weights in PROFILES.values():
        silent = best_result(corpus, [np.zeros(100), np.zeros(100)], weights)
        assert (silent.score, silent.threshold, silent.missed) == (0.0, np.inf, 2)
        perfect = best_result(corpus, [alarms(100, 40, 70), np.zeros(100)], weights)
        assert (perfect.score, perfect.wrong, perfect.missed) == (pytest.approx(100), 0, 0)


def test_values_by_hand():
    worth, inside = values_of_alarms(100, [(40, 49), (70, 70)])
    assert inside.tolist() == [-1] * 40 + [0] * 10 + [-1] * 20 + [1] + [-1] * 29
    assert (worth[:40] == -1).all()  # before the first window
    assert worth[40] == pytest.approx(1)
    assert worth[49] == pytest.approx(0.244919 / 0.986614, abs=1e-6)  # 2 / (1 + exp(-1/2)) - 1
    assert worth[58] == pytest.approx(-0.986614, abs=1e-6)  # a window's length behind it
    assert -1 < worth[69] < -0.9999  # 20 / 9 windows behind it
    assert (worth[76:] == -1).all()


def test_the_first_rows_are_not_scored():
    one = series(100, (20, 29))
    assert probation(100) == 15
    assert best_result([one], [alarms(100, *range(15), 20)], PROFILES["standard"]).score == pytest.approx(100)
    early = best_result([one], [alarms(100, 15, 20)], PROFILES["standard"])
    assert (early.score, early.wrong) == (pytest.approx(100 * (2 - 0.11) / 2), 1)


def test_a_corpus_is_read(tmp_path):
    (tmp_path / "labels").mkdir()
    (tmp_path / "data/real").mkdir(parents=True)
    table = "timestamp,value\n2014-01-01 00:00:00,1\n2014-01-01 00:05:00,2.5\n2014-01-01 00:10:00,-3\n"
    (tmp_path / "data/real/a.csv").write_text(table)
    labels = tmp_path / "labels/combined_windows.json"
    labels.write_text(json.dumps({"real/a.csv": [["2014-01-01 00:05:00.000000", "2014-01-01 00:10:00.000000"]]}))
    (one,) = read_corpus(tmp_path)
    assert (one.name, one.values.tolist(), one.windows) == ("real/a.csv", [1, 2.5, -3], [(1, 2)])
    labels.write_text(json.dumps({"real/a.csv": [["2014-01-01 00:05:00", "2014-01-01 00:11:00"]]}))
    with pytest.raises(ValueError, match=r"a\.csv: there is no row at 2014-01-01 00:11:00, the edge of a window"):
        read_corpus(tmp_path)
