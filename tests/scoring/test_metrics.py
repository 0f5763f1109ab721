"""Lines of metrics: how many there are, how many samples each covers, and how divergence is detected from them."""

import numpy as np
import pytest

from norewind.plotting.figures import curves_figure
from norewind.scoring.divergence import DETECTION_SAMPLES, DivergenceDetector
from norewind.scoring.metrics import next_line

pytestmark = pytest.mark.usefixtures("shared_programs")


def test_lines_of_metrics_are_about_200_whatever_the_length():
    for samples, window in ((400, 1), (10**3, 1), (10**4, 1), (10**4, 16), (10**6, 1), (10**6, 16)):
        line, count = 0, 0
        while (line := next_line(line, window=window)) <= samples:
            count += 1
        assert 150 < count < 270


def test_points_of_a_curve_are_means_of_20_samples_or_more():
    lines = [{"samples": n, "loss": None if n < 3 else float(n)} for n in range(1, 51)]
    (ax,) = curves_figure([("run", [*lines, {"samples": 80, "loss": 7.0}])], "loss").axes
    samples, values = ax.get_lines()[0].get_data()
    assert [*samples] == [*range(3, 51), 80]
    expected = [np.mean([k for k in range(3, 51) if n - 20 < k <= n]) for n in range(3, 51)]
    np.testing.assert_allclose(values, [*expected, 7], rtol=1e-12)


def test_the_detector_averages_short_lines():
    detector = DivergenceDetector()
    for number in range(1, 501):
        detector.check({"samples": 100 * number, "loss": 1.0, "carry": 1.0, "baseline": 2.0}, DETECTION_SAMPLES)
    assert detector.good == 5
    # Fifty consecutive bad lines are averaged to one.
    for number in range(501, 551):
        detector.check({"samples": 100 * number, "loss": 9.0, "carry": 1.0, "baseline": 2.0}, DETECTION_SAMPLES)
    assert detector.healthy
