"""A fleet of keys: each learns as if it were alone, however its samples come, also over the disk."""

import jax
import numpy as np
import pytest
from quick import optimised

import norewind
from norewind.fleets import private
from norewind.fleets.fleet import Fleet
from norewind.fleets.private import LANES
from norewind.fleets.slots import Slots
from norewind.fleets.store import Entry, Store
from norewind.learners.least_squares import LeastSquares
from norewind.streams.scaling import Layout, nothing_known, scaled


def learner(method="uoro", inputs=2, hidden=4, rate=1e-2, outputs=1):
    cell = norewind.cells.gru(inputs=inputs, hidden=hidden, outputs=outputs, symbols=False)
    estimator = getattr(norewind, method)(cell.transition, norewind.losses.known_squared_error)
    made = norewind.online(estimator, norewind.adam(norewind.inverse_sqrt(rate, 0.02)))
    return made, made.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))


def rows(count, keys, seed=0):
    """Rows of keys at different rates, in any order."""
    rng = np.random.default_rng(seed)
    names = [b"\x00\xff" * (1 + k % 3) + str(k).encode() for k in range(keys)]
    chosen = [names[k] for k in (keys * rng.random(count) ** 2).astype(int)]
    xs = rng.normal(size=(count, 2)).astype(np.float32)
    return np.array(chosen, object), xs, xs[:, :1] * 0.5 + 0.1


def scanned(fleet, keys, xs, ys, cuts):
    run, losses = fleet.init(), []
    for start, stop in zip([0, *cuts], [*cuts, len(keys)], strict=True):
        run, lost = fleet.scan(run, norewind.Keyed(keys[start:stop], xs[start:stop]), ys[start:stop])
        losses.append(lost)
    return run, np.concatenate(losses)


def squares(steps, targets=1):
    return LeastSquares(2, targets, steps=steps, lags=3, forgetting=0.99, limit=5.0)


def trees_equal(one, other):
    parts = [jax.tree.leaves(tree) for tree in (one, other)]
    assert len(parts[0]) == len(parts[1])
    for a, b in zip(*parts, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("steps", "targets"), [((1,), 1), ((0,), 2), ((1, 2, 3), 1), ((2, 5), 2)])
@pytest.mark.parametrize(("resident", "cuts"), [(100, []), (100, [1, 2, 333]), (9, [5, 400])])
def test_least_squares_of_a_key_are_those_of_its_rows_alone(steps, targets, resident, cuts):
    """Bit for bit, in chunks of any size, over the disk and in any slot: losses, forecasts, and what was forecast."""
    keys, xs, ys = rows(600, 23)
    ys = np.tile(np.concatenate([ys] * targets, axis=1), (1, len(steps)))
    ys[::17] = np.nan
    made = squares(steps, targets)
    fleet, run, found = norewind.fleet(made, made.init(), resident=resident), None, []
    run = fleet.init()
    for start, stop in zip([0, *cuts], [*cuts, len(keys)], strict=True):
        part = slice(start, stop)
        run, seen = fleet.scan(run, norewind.Keyed(keys[part], xs[part]), ys[part], outputs=True)
        found.append(seen)
    ours = jax.tree.map(lambda *parts: np.concatenate(parts), *found)
    assert fleet.keys == min(resident, 23)
    for key in dict.fromkeys(keys):
        own = keys == key
        alone = made.scan(made.init(), xs[own], ys[own], outputs=True)[1]
        trees_equal(jax.tree.map(lambda leaf: leaf[own], ours), alone)  # noqa: B023


def table(steps):
    """Two columns of numbers, of which the first is the target."""
    two, none = np.arange(2), np.zeros(0, np.int64)
    return Layout(2, np.array(steps), two, two[:1], none, none, np.zeros(0), none, True, True, False, False)


def test_raw_rows_are_standardised_by_their_key_s_past_alone():
    """As samples of the key's rows alone are, which a single learner learns from."""
    keys, xs, _ = rows(500, 11)
    raw, steps = 100 * xs.astype(np.float64) + 7, (1, 2)
    raw[::13, 0] = np.nan
    made = squares(steps)
    fleet = Fleet(made, made.init(), table=table(steps), resident=6)
    _, (losses, (forecasts, due, samples)) = fleet.scan(fleet.init(), norewind.Keyed(keys, raw), outputs=True)
    assert np.isfinite(samples.targets).sum() > 300
    for key in dict.fromkeys(keys):
        own = keys == key
        alone = scaled(table(steps), nothing_known(table(steps)), raw[own])
        trees_equal([part[own] for part in samples[:6]], list(alone))
        _, (lost, (there, was)) = made.scan(made.init(), *alone[:2], outputs=True)
        trees_equal([losses[own], forecasts[own], due[own]], [lost, there, was])


def test_errors_of_keys_are_added_up():
    keys, xs, _ = rows(400, 3)
    made = squares((1,))
    fleet = Fleet(made, made.init(), table=table((1,)))
    _, (_, (_, due, samples)) = fleet.scan(fleet.init(), norewind.Keyed(keys, xs), outputs=True)
    for place, name in enumerate(fleet.slots.names):
        target, last, was = (part[keys == name, 0].astype(float) for part in (samples.targets, samples.last, due))
        known = np.isfinite(target)
        expected = [known.sum(), *(np.sum((target - one)[known] ** 2) for one in (was, last, 0))]
        np.testing.assert_allclose(fleet.slots.arrays["errors"][place], expected, rtol=1e-12)


@pytest.mark.parametrize("share", [False, True])
def test_networks_of_keys_forecast_all_steps(share):
    """Every key as `Ahead` alone; keys that share a network at least the same targets from the same rows."""
    steps, loss = (1, 3), norewind.losses.known_squared_error
    inner, start = learner("bptt", outputs=len(steps))
    ahead = norewind.Ahead(inner, loss, steps)
    x, pair = np.zeros(2, np.float32), np.zeros(2, np.float32)
    begin = ahead.init(start, x, pair, pair)
    keys, xs, ys = rows(480, 1 if share else 9)
    ys = np.tile(ys, (1, len(steps)))
    ys[::11] = np.nan
    fleet = norewind.fleet(ahead, begin, share=share, window=1 if share else 256)
    run, found = fleet.init(), []
    for part in (slice(0, 100), slice(100, None)):
        run, seen = fleet.scan(run, norewind.Keyed(keys[part], xs[part]), ys[part], outputs=True)
        found.append(seen)
    ours = jax.tree.map(lambda *parts: np.concatenate(parts), *found)
    for key in dict.fromkeys(keys):
        own = keys == key
        run, alone = ahead.scan(begin, xs[own], ys[own], outputs=True)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[own], b, rtol=1e-4, atol=2e-5)
        place = fleet.slots.names.index(key)
        record = fleet.slots._records([place])[0]
        np.testing.assert_allclose(fleet.engine.pending(record), ahead.pending(run), rtol=1e-4, atol=2e-5)


def test_what_cannot_be_run_for_keys_says_so():
    made = squares((1,))
    with pytest.raises(norewind.ModelError, match="with share.*not a LeastSquares"):
        norewind.fleet(made, made.init(), share=True)
    keys = norewind.fleet(made, made.init())
    with pytest.raises(norewind.ModelError, match="not a Fleet"):
        norewind.fleet(keys, keys.init())
    with pytest.raises(norewind.ModelError, match="fleet.answer"):
        keys.forward(keys.init(), np.zeros((1, 2)))
    with pytest.raises(norewind.ModelError, match="other keys"):
        keys.reset(keys.init())


@pytest.mark.slow
def test_every_key_learns_as_if_it_were_alone():
    """In single precision, to a few units of rounding after hundreds of updates: 1e-5 of losses of order one."""
    made, start = learner()
    keys, xs, ys = rows(600, 23)
    _, losses = scanned(norewind.fleet(made, start), keys, xs, ys, [])
    for key in dict.fromkeys(keys):
        own = keys == key
        _, alone = made.scan(start, xs[own], ys[own])
        np.testing.assert_allclose(losses[own], alone, rtol=1e-4, atol=1e-5)


@optimised
def test_neither_batches_nor_other_keys_nor_the_disk_change_a_bit(tmp_path):
    made, start = learner()
    keys, xs, ys = rows(600, 23)
    fleets = [norewind.fleet(made, start, resident=resident) for resident in (100, 100, 16)]
    whole, cut, small = (
        scanned(f, keys, xs, ys, c)[1] for f, c in zip(fleets, ([], [7, 8, 300], [90, 91, 400]), strict=True)
    )
    assert np.array_equal(whole, cut)
    assert np.array_equal(whole, small)
    assert fleets[2].keys <= 16
    assert len(fleets[2].slots.store) > 0
    few = np.isin(keys, list(dict.fromkeys(keys))[:5])
    _, losses = scanned(norewind.fleet(made, start), keys[few], xs[few], ys[few], [])
    assert np.array_equal(losses, whole[few])
    # In any place of a group, the same rows give the same numbers.
    alike = np.repeat([str(key).encode() for key in range(LANES)], 12).astype(object)
    _, losses = scanned(
        norewind.fleet(made, start), alike, np.tile(xs[:12], (LANES, 1)), np.tile(ys[:12], (LANES, 1)), []
    )
    assert (losses.reshape(LANES, 12) == losses[:12]).all()


def test_a_key_s_place_in_a_batch_depends_on_the_rows_alone(monkeypatch):
    """Not on its slot: a resumed run has other slots, and XLA does not promise that all places round alike."""
    made, start = learner("bptt")
    keys, xs, ys = rows(128, 40)
    fleets = [norewind.fleet(made, start) for _ in range(2)]
    fleets[1].slots.places(sorted(keys), 0)
    assert fleets[0].slots.names != fleets[1].slots.names
    seen, batch = [[], []], private.Private._batch
    for found, fleet in zip(seen, fleets, strict=True):

        def spy(self, arrays, places, at, samples, found=found, names=fleet.slots.names):
            found.append(([names[place] for place in places], at.tolist()))
            return batch(self, arrays, places, at, samples)

        monkeypatch.setattr(private.Private, "_batch", spy)
        scanned(fleet, keys, xs, ys, [])
    assert seen[0] == seen[1]
    for names, at in seen[0]:
        assert [list(keys[row]) for row in at] == [[name] * len(row) for name, row in zip(names, at, strict=True)]


def test_keys_that_share_a_network_do_not_depend_on_their_slots():
    made, start = learner("bptt")
    keys, xs, ys = rows(128, 40)
    fleets = [norewind.fleet(made, start, share=True, window=64) for _ in range(2)]
    fleets[1].slots.places(sorted(keys), 0)
    found = []
    for fleet in fleets:
        run, seen = fleet.scan(fleet.init(), norewind.Keyed(keys, xs), ys, outputs=True)
        own = [fleet.slots._records([fleet.slots.names.index(key)]).view(np.uint8) for key in keys]
        found.append([run, seen, own])
    assert fleets[0].slots.names != fleets[1].slots.names
    trees_equal(*found)


def test_a_new_key_compiles_nothing():
    made, start = learner("bptt")
    fleet = norewind.fleet(made, start)
    keys, xs, ys = rows(300, 40)
    run, _ = scanned(fleet, keys, xs, ys, [100, 110])
    with jax.log_compiles(), pytest.MonkeyPatch.context() as patch:
        compiled = []
        patch.setattr(jax._src.interpreters.pxla.logger, "log", lambda level, text, *a, **k: compiled.append(text % a))
        more, xs, ys = rows(150, 60, seed=1)
        fleet.scan(run, norewind.Keyed(more, xs), ys)
    assert fleet.keys > 40
    assert not compiled


def test_numbers_that_are_not_finite_cost_one_key_that_sample_only():
    made, start = learner("bptt")
    keys, xs, ys = rows(200, 5)
    bad = 120
    odd = xs.copy()
    odd[bad] = np.inf
    fine, spoilt = norewind.fleet(made, start), norewind.fleet(made, start)
    _, losses = scanned(fine, keys, xs, ys, [])
    _, others = scanned(spoilt, keys, odd, ys, [])
    elsewhere = keys != keys[bad]
    assert np.array_equal(losses[elsewhere], others[elsewhere])
    after = np.flatnonzero(keys == keys[bad])
    after = after[after > bad]
    assert np.isfinite(others[after]).all()


def test_shared_keys_take_the_steps_of_parallel():
    """Rows of all keys in turn are the streams of `parallel`, whose every step is one update."""
    _, start = learner("bptt")
    cell = norewind.cells.gru(inputs=2, hidden=4, outputs=1, symbols=False)
    streams, steps = 8, 40
    estimator = norewind.parallel(norewind.bptt(cell.transition, norewind.losses.known_squared_error), streams)
    together = norewind.online(estimator, norewind.adam(1e-2))
    plain = norewind.online(norewind.bptt(cell.transition, norewind.losses.known_squared_error), norewind.adam(1e-2))
    begin = plain.init(start.params, start.state, jax.random.key(1))
    state = np.stack([np.asarray(start.state)] * streams)
    run = together.init(start.params, state, jax.random.key(1))
    rng = np.random.default_rng(0)
    xs = rng.normal(size=(steps, streams, 2)).astype(np.float32)
    ys = xs[..., :1] * 0.5
    run, losses = together.scan(run, xs, ys)
    fleet = norewind.fleet(plain, begin, share=True, window=streams)
    keys = np.array([b"%d" % k for k in range(streams)] * steps, object)
    shared, lost = scanned(fleet, keys, xs.reshape(-1, 2), ys.reshape(-1, 1), [5 * streams])
    np.testing.assert_allclose(lost / streams, losses, rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(jax.tree.leaves(shared.shared.params), jax.tree.leaves(run.params), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.slow
def test_shared_keys_come_and_go_and_cuts_change_nothing():
    made, start = learner("uoro")
    keys, xs, ys = rows(640, 30)
    one, other = (norewind.fleet(made, start, share=True, window=64) for _ in range(2))
    (first, whole), (second, cut) = (scanned(f, keys, xs, ys, c) for f, c in ((one, []), (other, [64, 320])))
    assert np.array_equal(whole, cut)
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (first, second)), strict=True))
    assert whole[-3:].mean() < whole[:3].mean()


def test_a_key_that_goes_to_disk_often_replaces_its_row_there(tmp_path):
    """Rows that checkpoints need stay: those at 10 and 20 samples, here."""
    slots = Slots({"numbers": np.zeros(3), "samples": np.zeros((), np.int64)}, 2)
    slots.keep_in(tmp_path, 0)
    names = [b"a", b"b", b"c", b"d"]
    for turn in range(40):
        place = slots.places([names[turn % 4]], turn)
        slots.arrays["samples"][place] += 1
        if turn in (9, 19):
            slots.settle(turn + 1, 10)

    def counts(until):
        found = {key: slots.store.read(key, until) for key in names}
        return [int(slots.record(key, found[key])["samples"][0]) for key in names]

    assert (counts(10), counts(20)) == ([3, 3, 2, 2], [5, 5, 5, 5])
    (most,) = slots.store._base.execute("SELECT max(n) FROM (SELECT count(*) AS n FROM runs GROUP BY key)").fetchone()
    assert most <= 4  # at most two for each: when it went to disk before, and at the checkpoint
    slots.settle(40, 20)
    assert (counts(20), counts(40)) == ([5, 5, 5, 5], [10, 10, 10, 10])
    slots.close()


def test_damage_and_other_models_are_noticed(tmp_path):
    store = Store(tmp_path, "a")
    store.write([Entry(b"k", b"12345678")], at=5, oldest=0)
    store._base.execute("UPDATE runs SET content = x'00'")
    with pytest.raises(norewind.CheckpointError, match="checksum"):
        store.read(b"k")
    store.close()
    with pytest.raises(norewind.CheckpointError, match="another model"):
        Store(tmp_path, "b")
