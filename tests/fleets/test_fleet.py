"""A fleet: results do not depend on which keys are in memory, in which slot, or on disk."""

import jax
import numpy as np
import pytest
from keyed_rows import learner, rows, scanned
from quick import optimised

import norewind
from norewind.fleets.slots import Slots
from norewind.fleets.store import KeyStore
from norewind.learners.keyed.separate_networks import LANES


@optimised
def test_neither_batches_nor_other_keys_nor_the_disk_change_a_bit(tmp_path):
    made, start = learner()
    keys, xs, ys = rows(600, 23)
    fleets = [norewind.fleets.Fleet(made, start, resident=resident) for resident in (100, 100, 16)]
    whole, cut, small = (
        scanned(f, keys, xs, ys, c)[1] for f, c in zip(fleets, ([], [7, 8, 300], [90, 91, 400]), strict=True)
    )
    assert np.array_equal(whole, cut)
    assert np.array_equal(whole, small)
    assert fleets[2].keys <= 16
    assert len(fleets[2].slots.store) > 0
    few = np.isin(keys, list(dict.fromkeys(keys))[:5])
    _, losses = scanned(norewind.fleets.Fleet(made, start), keys[few], xs[few], ys[few], [])
    assert np.array_equal(losses, whole[few])
    # At every position of a group, the same rows give the same numbers.
    alike = np.repeat([str(key).encode() for key in range(LANES)], 12).astype(object)
    _, losses = scanned(
        norewind.fleets.Fleet(made, start), alike, np.tile(xs[:12], (LANES, 1)), np.tile(ys[:12], (LANES, 1)), []
    )
    assert (losses.reshape(LANES, 12) == losses[:12]).all()


def test_a_new_key_compiles_nothing():
    made, start = learner("bptt")
    fleet = norewind.fleets.Fleet(made, start)
    keys, xs, ys = rows(300, 40)
    run, _ = scanned(fleet, keys, xs, ys, [100, 110])
    with jax.log_compiles(), pytest.MonkeyPatch.context() as patch:
        compiled = []
        patch.setattr(jax._src.interpreters.pxla.logger, "log", lambda level, text, *a, **k: compiled.append(text % a))
        more, xs, ys = rows(150, 60, seed=1)
        fleet.scan(run, norewind.fleets.Keyed(more, xs), ys)
    assert fleet.keys > 40
    assert not compiled


def test_numbers_that_are_not_finite_cost_one_key_that_sample_only():
    made, start = learner("bptt")
    keys, xs, ys = rows(200, 5)
    bad = 120
    odd = xs.copy()
    odd[bad] = np.inf
    fine, spoilt = norewind.fleets.Fleet(made, start), norewind.fleets.Fleet(made, start)
    _, losses = scanned(fine, keys, xs, ys, [])
    _, others = scanned(spoilt, keys, odd, ys, [])
    elsewhere = keys != keys[bad]
    assert np.array_equal(losses[elsewhere], others[elsewhere])
    after = np.flatnonzero(keys == keys[bad])
    after = after[after > bad]
    assert np.isfinite(others[after]).all()


@pytest.mark.slow
def test_with_a_shared_model_evictions_and_cuts_change_nothing():
    made, start = learner("uoro")
    keys, xs, ys = rows(640, 30)
    one, other = (norewind.fleets.Fleet(made, start, share=True) for _ in range(2))
    (first, whole), (second, cut) = (scanned(f, keys, xs, ys, c) for f, c in ((one, []), (other, [64, 320])))
    assert np.array_equal(whole, cut)
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (first, second)), strict=True))
    assert whole[-192:].mean() < whole[:192].mean()


def test_a_key_evicted_repeatedly_replaces_its_row_on_disk(tmp_path):
    """Rows that checkpoints need are kept: here those at 10 and 20 samples."""
    slots = Slots({"numbers": np.zeros(3), "samples": np.zeros((), np.int64)}, 2)
    slots.keep_in(tmp_path, 0)
    names = [b"a", b"b", b"c", b"d"]
    for turn in range(40):
        slot = slots.load([names[turn % 4]])
        slots.arrays["samples"][slot] += 1
        if turn in (9, 19):
            slots.write_keys(turn + 1, 10)

    def counts(until):
        found = {key: slots.store.read(key, until) for key in names}
        return [int(slots.record(key, found[key])["samples"][0]) for key in names]

    assert (counts(10), counts(20)) == ([3, 3, 2, 2], [5, 5, 5, 5])
    (most,) = slots.store._base.execute("SELECT max(n) FROM (SELECT count(*) AS n FROM runs GROUP BY key)").fetchone()
    assert most <= 4  # at most two for each: when it went to disk before, and at the checkpoint
    slots.write_keys(40, 20)
    assert (counts(20), counts(40)) == ([5, 5, 5, 5], [10, 10, 10, 10])
    slots.close()


def test_keys_wait_for_the_disk_only_at_a_checkpoint(tmp_path):
    slots, said = Slots({"numbers": np.zeros(3)}, 1), []
    slots.keep_in(tmp_path, 0)
    slots.store._base.set_trace_callback(said.append)

    def modes():
        found = [line for line in said if "synchronous" in line]
        said.clear()
        return found

    slots.load([b"a"])
    slots.load([b"b"])  # moves the other key to disk
    assert modes() == ["PRAGMA synchronous = NORMAL"]
    slots.write_keys(2, 0)
    assert modes() == ["PRAGMA synchronous = FULL"]
    slots.close()


def test_damage_and_other_models_are_noticed(tmp_path):
    store = KeyStore(tmp_path, "a")
    store.write([b"k"], [((0, 0, 0, 0), b"12345678")], at=5, oldest=0)
    store._base.execute("UPDATE runs SET content = x'00'")
    with pytest.raises(norewind.checkpoint.CheckpointError, match="checksum"):
        store.read(b"k")
    store.close()
    with pytest.raises(norewind.checkpoint.CheckpointError, match="another model"):
        KeyStore(tmp_path, "b")
