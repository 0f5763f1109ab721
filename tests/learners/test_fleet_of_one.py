"""A key of a fleet learns like a single run."""

import jax
import numpy as np
import optax
import pytest
from keyed_rows import rows
from run_folders import norewind as command

import norewind
from norewind.training.log import read_log


@pytest.mark.parametrize("share", [False, True])
def test_with_plain_gradients_and_a_schedule(share):
    """With Adam, a sum instead of a mean, or a rate that is off by a factor, would not be noticed."""
    cell = norewind.cells.gru(inputs=2, hidden=3, outputs=1, symbols=False)
    estimator = norewind.bptt(cell.transition, norewind.losses.known_squared_error)
    learner = norewind.online(estimator, optax.sgd(norewind.inverse_sqrt(0.3, 0.5)))
    start = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    keys, xs, ys = rows(120, 1 if share else 5)
    fleet = norewind.fleets.Fleet(learner, start, share=share)
    run, losses, _ = fleet.scan(fleet.init(), norewind.fleets.Keyed(keys, xs), ys)
    for key in dict.fromkeys(keys):
        alone, lost, _ = learner.scan(start, xs[keys == key], ys[keys == key])
        np.testing.assert_allclose(losses[keys == key], lost, rtol=1e-4, atol=1e-6)
    if share:
        for ours, theirs in zip(jax.tree.leaves(run.shared.params), jax.tree.leaves(alone.params), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert np.mean(losses[-20:]) < np.mean(losses[:20])


@pytest.mark.usefixtures("shared_programs")
@pytest.mark.parametrize("horizon", [0, 1, 3])
def test_a_run_with_one_key_is_a_run_without(horizon, tmp_path):
    values = np.random.default_rng(0).normal(size=(150, 2)).cumsum(axis=0)
    # Each value is far from earlier ones, so that including it in its own scale would be noticed.
    values[::10] *= 5
    table = "".join(f"k,{a:.3f},{b:.3f}\n" for a, b in values)
    (tmp_path / "rows.csv").write_text("key,a,b\n" + table)
    options = ("--horizon", horizon, "--inputs", "a", "--targets", "b", "--method", "bptt", "--hidden", 3, "--quiet")
    options = (*options, "--optimizer", "sgd", "--rate", 0.01, "--predictions", "file")
    entries = []
    for name, key in (("with", ("--key", "key")), ("without", ())):
        assert command("train", tmp_path / "rows.csv", "--out", tmp_path / name, *options, *key) == 0
        entries.append(read_log(tmp_path / name / "predictions.jsonl"))
    entry = "forecast" if horizon else "prediction"

    def numbers(lines):
        each = [line.get(entry) for line in lines]
        return [jax.tree.leaves(one) if one is not None else [np.nan] for one in each]

    assert len(entries[0]) == len(entries[1]) == 150
    for ours, theirs in zip(*map(numbers, entries), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
