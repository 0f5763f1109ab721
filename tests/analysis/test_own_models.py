"""`compare` and `diagnose` take one's own models, estimators and streams."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import norewind
from norewind import bptt, cells, losses, rtrl, uoro
from norewind.core import ModelError
from norewind.estimators import snap1
from norewind.sweeps.record import read_records
from norewind.training import Settings, SettingsError

CELL = cells.elman(3, 2, 3)
TEXT = np.tile([0, 0, 2, 1, 1, 2], 40)
STREAM = TEXT[:-1], TEXT[1:]


def model(seed):
    def transition(params, state, x):
        return CELL.transition(params, state, x)

    return transition, losses.cross_entropy, CELL.init(jax.random.key(seed)), CELL.initial_state()


METHODS = {"mine": uoro, "truncated": bptt, "needs structure": snap1}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    return norewind.compare(METHODS, model, STREAM, seeds=2, rates=(0.03, 0.01), out=folder), folder


def test_a_lane_is_a_plain_run(result):
    """Each rate and seed gives the numbers of a separate loop."""
    record = result[0].records["truncated_rate0.01_seed1"]
    transition, loss, params, state = model(1)
    learner = norewind.online(bptt(transition, loss), norewind.adam(0.01))
    _, values, _ = learner.scan(learner.init(params, state, jax.random.key(0)), *STREAM)
    ends = record["every"] * np.arange(1, len(record["curve"]) + 1)
    means = [values[end - record["every"] : end].mean() for end in ends]
    np.testing.assert_allclose(record["curve"], means, rtol=1e-4)
    assert record["samples"] == ends[-1]


def test_every_method_is_shown_at_its_best_rate(result):
    comparison, folder = result
    rows = {row["method"]: row for row in comparison.rows()}
    assert len(comparison.records) == 12
    for name in ("mine", "truncated"):
        finals = {}
        for rate in (0.03, 0.01):
            curves = [comparison.records[f"{name}_rate{rate:g}_seed{seed}"]["curve"] for seed in (0, 1)]
            tail = max(1, len(curves[0]) // 10)
            finals[rate] = np.mean([curve[-tail:] for curve in curves])
        assert rows[name]["rate"] == min(finals, key=finals.get)
        assert rows[name]["final loss"] == pytest.approx(min(finals.values()), rel=0.05)
        assert rows[name]["CPU µs per sample"] > 0
        assert rows[name]["runs"] == 2
    assert rows["mine"]["bytes carried"] > rows["truncated"]["bytes carried"] == 0
    assert read_records(folder).keys() == comparison.records.keys()
    assert (folder / "comparison.png").exists()


def test_a_method_that_rejects_is_a_row(result):
    (row,) = (row for row in result[0].rows() if row["method"] == "needs structure")
    assert row["final loss"] is None
    assert row["problem"].startswith("rejected: snap1 needs to know how each unit depends on itself alone")
    assert "rejected" in str(result[0])


def test_a_run_that_diverges_is_a_row():
    def transition(params, state, x):
        return params * state + x, state

    own = transition, losses.squared_error, jnp.array(3.0), jnp.array(1.0)
    stream = np.ones(300), np.ones(300)
    comparison = norewind.compare({"exact": rtrl}, own, stream, rates=(1e-9,), optimizer=optax.sgd)
    (row,) = comparison.rows()
    assert row["problem"].startswith("diverged: numbers that are not finite before sample")


def test_streams_may_depend_on_the_seed_and_windows_share_their_samples():
    def stream(seed):
        return np.roll(TEXT, seed)[:-1], np.roll(TEXT, seed)[1:]

    comparison = norewind.compare(["bptt:4", "bptt"], model(0), stream, seeds=2, rates=(0.01,))
    assert {record["samples"] for record in comparison.records.values()} == {236}
    first, second = (comparison.records[f"bptt_rate0.01_seed{seed}"]["curve"] for seed in (0, 1))
    assert first != second
    assert [row["updates"] for row in comparison.rows()] == [59, 236]


def test_rates_are_tried_for_settings_too():
    settings = Settings("anbn", hidden=2, samples=200, metrics_every=50)
    comparison = norewind.compare(["bptt"], settings, rates=(0.01, 1e-9))
    assert comparison.rates == [0.01, 1e-9]
    assert comparison.rows()[0]["rate"] == 0.01
    assert "| rate |" in str(comparison)


def test_mistakes_are_named():
    with pytest.raises(SettingsError, match="your own model needs a stream"):
        norewind.compare(["uoro"], model)
    with pytest.raises(SettingsError, match="must be settings, not a list.*or your own model"):
        norewind.compare(["uoro"], [], STREAM)
    with pytest.raises(SettingsError, match="needs your own model in place of settings"):
        norewind.compare(METHODS, Settings("anbn"))


def test_diagnose_measures_every_method_at_every_rate():
    """A rate gives what a separate call with its optimizer gives, and progress covers all of them."""
    own, short, seen = model(0), tuple(part[:40] for part in STREAM), []
    report = norewind.diagnose(
        {"truncated": bptt}, own, short, rates=(0.5, 0.1), optimizer=optax.sgd, report=lambda *words: seen.append(words)
    )
    alone = norewind.diagnose({"truncated": bptt}, own, short, optimizer=optax.sgd(0.1)).findings[0]
    fast, slow = report.findings
    assert (fast.rate, slow.rate) == (0.5, 0.1)
    assert slow.bias_squared == alone.bias_squared != fast.bias_squared
    assert "| truncated | 0.1 |" in str(report)
    assert "truncated, rate 0.1" in report.leaf_table()
    assert {total for _, total, _ in seen} == {2}
    assert [done for done, _, _ in seen] == [0, 0, 1, 1]
    for mistake in ({"rates": (0.1,), "optimizer": optax.sgd(0.1)}, {"optimizer": optax.sgd}):
        with pytest.raises(ValueError, match="rates need a function from a rate to an optimizer"):
            norewind.diagnose({"truncated": bptt}, own, short, **mistake)


def test_diagnose_says_why_a_method_rejects():
    report = norewind.diagnose(METHODS, model(0), STREAM, keys=2)
    assert [finding.method for finding in report.findings] == ["mine", "truncated"]
    assert "needs structure rejected: snap1 needs to know" in str(report)
    with pytest.raises(ModelError, match="all methods reject this model"):
        norewind.diagnose({"needs structure": snap1}, model(0), STREAM, keys=2)
