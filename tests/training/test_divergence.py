"""Runs that diverge, and the detection of divergence."""

import json

import msgspec
import pytest
from run_folders import SMALL, assert_rejected, latest, norewind

from norewind.errors import Diverged
from norewind.scoring import divergence
from norewind.scoring.divergence import DivergenceDetector

pytestmark = pytest.mark.usefixtures("shared_programs")


def test_non_finite_numbers_end_with_the_exit_code_of_divergence(tmp_path, capsys):
    rows = [str(i % 7 / 10) for i in range(600)]
    rows[550] = "1e30"
    (tmp_path / "table.csv").write_text("\n".join(["a", *rows, ""]))
    run = tmp_path / "run"
    code = norewind("train", tmp_path / "table.csv", "--out", run, *SMALL, "--no-standardise")
    # Row 551 holds the target of the forecast made at row 550.
    words = ["the run diverged: sample 551 gave numbers that are not finite", f"{latest(run)}, is kept", "--rate"]
    assert_rejected(capsys, code, *words, expected=3)
    assert int(latest(run).name[:15]) == 500
    assert norewind("predict", run, "--samples", 20) == 0


def test_an_exploding_carry_ends_with_the_exit_code_of_divergence(whole, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(divergence, "CARRY_LIMIT", 1e-9)
    run = tmp_path / "run"
    code = norewind("train", whole / "table.csv", "--out", run, *SMALL)
    words = ["the run diverged: at sample 300 the norm of the carry is", "is kept"]
    assert_rejected(capsys, code, *words, expected=3)
    assert int(latest(run).name[:15]) == 250
    code = norewind("train", whole / "table.csv", "--out", tmp_path / "off", *SMALL, "--no-stop-if-diverged")
    assert code == 0


def line(loss, carry=1.0, baseline: float | None = 2.0):
    return {"samples": 10, "loss": loss, "carry": carry, "baseline": baseline}


def test_the_detector_requires_that_something_was_learned_first():
    detector = DivergenceDetector()
    for _ in range(50):
        detector.check(line(9.0))
    assert detector.healthy


def test_the_detector_distinguishes_divergence_from_an_unusual_part():
    detector = DivergenceDetector()
    for loss in [1.0] * 5 + [9.0] * 4:
        detector.check(line(loss))
    assert not detector.healthy
    detector.check(line(1.9))
    assert detector.healthy
    for _ in range(4):
        detector.check(line(9.0))
    # After saving and restoring, the detector is in the same state.
    detector = DivergenceDetector(**json.loads(json.dumps(msgspec.to_builtins(detector))))
    assert not detector.healthy
    with pytest.raises(Diverged, match=r"at sample 10 the loss \(9\) .* \(2\) for 5 lines"):
        detector.check(line(9.0))


def test_the_detector_counts_good_lines_in_a_row():
    detector = DivergenceDetector()
    for loss in [1.0, 1.0, 1.0, 1.0, 1.95] * 3 + [9.0] * 20:
        detector.check(line(loss))
    assert detector.healthy


def test_the_detector_handles_negative_baselines():
    """A Gaussian's loss may be below zero."""
    detector = DivergenceDetector()
    for _ in range(5):
        detector.check(line(-1.05, baseline=-1.0))
    assert detector.good == 0
    for _ in range(5):
        detector.check(line(-1.2, baseline=-1.0))
    assert detector.good == 5


@pytest.mark.parametrize("carry", [None, 1e7])
def test_the_detector_limits_the_carry(carry):
    with pytest.raises(Diverged, match="the norm of the carry is"):
        DivergenceDetector().check(line(1.0, carry=carry))


def test_the_detector_ignores_lines_without_a_loss():
    detector = DivergenceDetector()
    detector.check(line(None))
    detector.check(line(1.0, baseline=None))
    assert detector.healthy
