"""Learners for many keys: each key learns as if it were alone, or all share one model row by row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alike import assert_same
from keyed_rows import learner, rows, scanned

import norewind
from norewind.fleets.fleet import Fleet
from norewind.learners import expert_weights, key_mixture
from norewind.learners.key_mixture import KeyMixture
from norewind.learners.keyed import separate_networks
from norewind.learners.keyed.shared_network import ROWS_PER_CALL
from norewind.learners.least_squares import LeastSquares
from norewind.learners.linear import Linear
from norewind.streams.table.scaling import TableLayout, init_series, scale_rows
from norewind.testing import check_learner


def squares(steps, targets=1):
    return LeastSquares(2, targets, steps=steps, lags=3, forgetting=0.99, limit=5.0)


PERIODS = (3, 4)


def mixture(steps, targets=1):
    known = range(targets) if steps != (0,) else ()
    return KeyMixture(2, targets, steps=steps, model=Linear(3, 0.99), limit=5.0, known=known, periods=PERIODS)


@pytest.mark.parametrize("make", [squares, mixture])
@pytest.mark.parametrize(("steps", "targets"), [((1,), 1), ((0,), 2), ((1, 2, 3), 1), ((2, 5), 2)])
@pytest.mark.parametrize(("resident", "cuts"), [(100, []), (100, [1, 2, 333]), (9, [5, 400])])
def test_a_key_learns_like_its_rows_alone(make, steps, targets, resident, cuts):
    """Losses and forecasts are equal bit for bit, in chunks of any size, in any slot and after storage on disk."""
    keys, xs, ys = rows(600, 23)
    ys = np.tile(np.concatenate([ys] * targets, axis=1), (1, len(steps)))
    ys[::17] = np.nan
    made = make(steps, targets)
    fleet, run, found = norewind.fleets.Fleet(made, made.init(), resident=resident), None, []
    run = fleet.init()
    for start, stop in zip([0, *cuts], [*cuts, len(keys)], strict=True):
        part = slice(start, stop)
        run, *seen = fleet.scan(run, norewind.fleets.Keyed(keys[part], xs[part]), ys[part], outputs=True)
        found.append(seen)
    ours = jax.tree.map(lambda *parts: np.concatenate(parts), *found)
    assert fleet.keys == min(resident, 23)
    for key in dict.fromkeys(keys):
        own = keys == key
        alone = list(made.scan(made.init(), xs[own], ys[own], outputs=True)[1:])
        assert_same(jax.tree.map(lambda leaf: leaf[own], ours), alone)  # noqa: B023


@pytest.mark.parametrize("make", [squares, mixture])
@pytest.mark.parametrize("steps", [(0,), (1, 2)])
def test_a_forecast_for_a_key_without_learning_is_that_of_its_learner_alone(make, steps):
    made = make(steps)
    _, xs, ys = rows(60, 1)
    ys = np.tile(ys, (1, len(steps)))
    program, slots = made.for_keys(made.init()), np.zeros(50, np.int64)
    arrays = {name: part[None].copy() for name, part in program.own.items()}
    program.learn(program.shared, arrays, slots, xs[:50], ys[:50])
    run = made.scan(made.init(), xs[:50], ys[:50])[0]
    assert_same(list(program.forward(arrays, xs[50:51])), list(made.forward(run, xs[50:51])[1]))


def table(steps):
    """Return two columns of numbers, the first of which is the target."""
    two, none = np.arange(2), np.zeros(0, np.int64)
    return TableLayout(2, np.array(steps), two, two[:1], none, none, np.zeros(0), none, True, True, False, False)


def test_raw_rows_are_standardised_by_their_key_s_past_alone():
    """Scan the rows of each key as a separate stream."""
    keys, xs, _ = rows(500, 11)
    raw, steps = 100 * xs.astype(np.float64) + 7, (1, 2)
    raw[::13, 0] = np.nan
    made = squares(steps)
    fleet = Fleet(made, made.init(), table=table(steps), resident=6)
    _, losses, (forecasts, due, samples) = fleet.scan(fleet.init(), norewind.fleets.Keyed(keys, raw), outputs=True)
    assert np.isfinite(samples.targets).sum() > 300
    for key in dict.fromkeys(keys):
        own = keys == key
        alone = scale_rows(table(steps), init_series(table(steps)), raw[own])
        assert_same([part[own] for part in samples[:6]], list(alone))
        _, lost, (there, was) = made.scan(made.init(), *alone[:2], outputs=True)
        assert_same([losses[own], forecasts[own], due[own]], [lost, there, was])


def test_a_key_s_forecasts_are_those_of_a_plain_loop():
    """Rules repeat raw values, although the scale changes with every row. Experts are weighted by their errors."""
    keys, xs, _ = rows(400, 5)
    steps, raw = (1, 4), 10 + 3 * xs.astype(np.float64).cumsum(axis=0)
    raw[::13, 0] = np.nan
    made, model = mixture(steps), LeastSquares(2, 1, steps=steps, lags=3, forgetting=0.99, limit=5.0, together=True)
    fleet = Fleet(made, made.init(), table=table(steps))
    _, _, (found, _, samples) = fleet.scan(fleet.init(), norewind.fleets.Keyed(keys, raw), outputs=True)
    for key in dict.fromkeys(keys):
        own = keys == key
        means, deviations = np.moveaxis(samples.scales_after[own], 2, 0)
        values = samples.xs[own, 0] * deviations[:, 0] + means[:, 0]
        first = np.isfinite(values).argmax()
        # The first values have no scale, and are taken as if they had the first one.
        values[:first] = samples.xs[own, 0][:first] * deviations[first, 0] + means[first, 0]
        linear = model.scan(model.init(), samples.xs[own], samples.targets[own])[2].made
        for place, step in enumerate(steps):
            experts = np.full((own.sum(), 5), np.nan, np.float32)
            experts[:, 0], experts[:, 4] = 0, linear[:, place]
            for t in range(own.sum()):
                for rule, period in enumerate((0, *PERIODS)):
                    if t >= period:
                        repeated = values[t + step - -(-step // period) * period] if period else values[t]
                        experts[t, 1 + rule] = np.nan_to_num((repeated - means[t, place]) / deviations[t, place])
            expected = weighted(experts, samples.targets[own, place], step)
            np.testing.assert_allclose(found[own, place][first:], expected[first:], atol=1e-4)


def weighted(experts, targets, step):
    """Weight the experts' forecasts of one step by their likelihood, with the variances of their recent errors."""
    variances, losses, known = np.ones(5), np.zeros(5), np.zeros(5)
    losses[1] = -2 * key_mixture.FIRST_WEIGHT
    found = []
    for t, target in enumerate(targets):
        due = experts[t - step] if t >= step else np.zeros(5)
        if t >= step and np.isfinite(target):
            known = known + 1
            errors = np.minimum((due - target) ** 2, expert_weights.MAX_ERROR**2 * variances)
            variances = variances + np.maximum(1 / (known + 1), expert_weights.MIN_RATE) * (errors - variances)
            variances = np.maximum(variances, expert_weights.MIN_VARIANCE)
            losses = expert_weights.LOSS_DECAY * losses + errors / variances + np.log(variances)
        absent = np.isnan(due)
        variances, losses = np.where(absent, variances[0], variances), np.where(absent, losses[0], losses)
        known = np.where(absent, 0, known)
        weights = np.where(np.isnan(experts[t]), 0, np.exp((np.min(losses) - losses) / 2))
        found.append(weights @ np.nan_to_num(experts[t]) / weights.sum())
    return np.array(found)


def test_errors_of_keys_are_added_up():
    keys, xs, _ = rows(400, 3)
    made = squares((1,))
    fleet = Fleet(made, made.init(), table=table((1,)))
    _, _, (_, due, samples) = fleet.scan(fleet.init(), norewind.fleets.Keyed(keys, xs), outputs=True)
    for place, name in enumerate(fleet.slots.names):
        target, last, was = (part[keys == name, 0].astype(float) for part in (samples.targets, samples.last, due))
        known = np.isfinite(target)
        expected = [known.sum(), *(np.sum((target - one)[known] ** 2) for one in (was, last, 0))]
        np.testing.assert_allclose(fleet.slots.arrays["errors"][place], expected, rtol=1e-12)


@pytest.mark.parametrize("share", [False, True])
def test_networks_of_keys_forecast_all_steps(share):
    """Every key learns like a single `AheadLearner`; with `share`, this is checked for a single key."""
    steps, loss = (1, 3), norewind.losses.known_squared_error
    inner, start = learner("bptt", outputs=len(steps))
    ahead = norewind.learners.AheadLearner(inner, loss, steps)
    x, pair = np.zeros(2, np.float32), np.zeros(2, np.float32)
    begin = ahead.init(start, x, pair, pair)
    keys, xs, ys = rows(480, 1 if share else 9)
    ys = np.tile(ys, (1, len(steps)))
    ys[::11] = np.nan
    fleet = norewind.fleets.Fleet(ahead, begin, share=share)
    run, found = fleet.init(), []
    for part in (slice(0, 100), slice(100, None)):
        run, *seen = fleet.scan(run, norewind.fleets.Keyed(keys[part], xs[part]), ys[part], outputs=True)
        found.append(seen)
    ours = jax.tree.map(lambda *parts: np.concatenate(parts), *found)
    for key in dict.fromkeys(keys):
        own = keys == key
        run, *alone = ahead.scan(begin, xs[own], ys[own], outputs=True)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[own], b, rtol=1e-4, atol=2e-5)
        place = fleet.slots.names.index(key)
        record = fleet.slots._records([place])[0]
        np.testing.assert_allclose(fleet.program.upcoming(record), ahead.upcoming(run), rtol=1e-4, atol=2e-5)


def test_the_first_rows_of_a_key_have_no_loss():
    """No earlier row has forecast them. A loss of one's own need not know what NaN means."""
    inner, start = learner("bptt")
    ahead = norewind.learners.AheadLearner(inner, lambda output, target: jnp.abs(output - target).sum(), (2,))
    keys, xs, ys = rows(60, 3)
    begin = ahead.init(start, xs[0], ys[0], ys[0])
    _, losses = scanned(norewind.fleets.Fleet(ahead, begin), keys, xs, ys, [])
    for key in dict.fromkeys(keys):
        own = keys == key
        _, alone, _ = ahead.scan(begin, xs[own], ys[own])
        np.testing.assert_array_equal(alone[:2], 0)
        assert (alone[2:] > 0).all()
        np.testing.assert_allclose(losses[own], alone, rtol=1e-4, atol=2e-5)


def test_a_packed_network_learns_keys_like_the_plain_one():
    inner, start = learner("bptt")
    keys, xs, ys = rows(200, 5)
    row, target = np.zeros(2, np.float32), np.zeros(1, np.float32)
    found = []
    for packed in (False, True):
        used = norewind.learners.PackedLearner(inner) if packed else inner
        ahead = norewind.learners.AheadLearner(used, norewind.losses.known_squared_error, (2,))
        begin = ahead.init(start, row, target, target)
        begin = begin._replace(run=used.pack(begin.run)) if packed else begin
        found.append(scanned(norewind.fleets.Fleet(ahead, begin), keys, xs, ys, [])[1])
    assert_same(*found)


def test_learners_that_cannot_be_run_for_keys_raise_errors():
    made = squares((1,))
    with pytest.raises(norewind.core.ModelError, match="LeastSquares cannot be run for many keys that share one model"):
        norewind.fleets.Fleet(made, made.init(), share=True)
    keys = norewind.fleets.Fleet(made, made.init())
    with pytest.raises(norewind.core.ModelError, match="not a Fleet"):
        norewind.fleets.Fleet(keys, keys.init())


def test_keys_that_share_a_network_cannot_answer_single_rows():
    fleet = norewind.fleets.Fleet(*learner("bptt"), share=True)
    with pytest.raises(norewind.core.ModelError, match="only while it learns"):
        fleet.program.forward(dict(fleet.slots.arrays), np.zeros((1, 2), np.float32))


@pytest.mark.slow
def test_every_key_learns_as_if_it_were_alone():
    """In single precision, to a few units of rounding after hundreds of updates: 1e-5 of losses of order one."""
    made, start = learner()
    keys, xs, ys = rows(600, 23)
    _, losses = scanned(norewind.fleets.Fleet(made, start), keys, xs, ys, [])
    for key in dict.fromkeys(keys):
        own = keys == key
        _, alone, _ = made.scan(start, xs[own], ys[own])
        np.testing.assert_allclose(losses[own], alone, rtol=1e-4, atol=1e-5)


def test_a_key_s_place_in_a_batch_depends_on_the_rows_alone(monkeypatch):
    """Slots differ after a run is resumed, and XLA does not guarantee equal rounding at every position."""
    made, start = learner("bptt")
    keys, xs, ys = rows(128, 40)
    fleets = [norewind.fleets.Fleet(made, start) for _ in range(2)]
    fleets[1].slots.load(sorted(keys))
    assert fleets[0].slots.names != fleets[1].slots.names
    seen, batch = [[], []], separate_networks.SeparateNetworks._batch
    for found, fleet in zip(seen, fleets, strict=True):

        def spy(self, arrays, places, at, samples, found=found, names=fleet.slots.names):
            found.append(([names[place] for place in places], at.tolist()))
            return batch(self, arrays, places, at, samples)

        monkeypatch.setattr(separate_networks.SeparateNetworks, "_batch", spy)
        scanned(fleet, keys, xs, ys, [])
    assert seen[0] == seen[1]
    for names, at in seen[0]:
        assert [list(keys[row]) for row in at] == [[name] * len(row) for name, row in zip(names, at, strict=True)]


def test_keys_that_share_a_network_do_not_depend_on_their_slots():
    made, start = learner("bptt")
    keys, xs, ys = rows(128, 40)
    fleets = [norewind.fleets.Fleet(made, start, share=True) for _ in range(2)]
    fleets[1].slots.load(sorted(keys))
    found = []
    for fleet in fleets:
        run, *seen = fleet.scan(fleet.init(), norewind.fleets.Keyed(keys, xs), ys, outputs=True)
        own = [fleet.slots._records([fleet.slots.names.index(key)]).view(np.uint8) for key in keys]
        found.append([run, seen, own])
    assert fleets[0].slots.names != fleets[1].slots.names
    assert_same(*found)


def test_keys_that_share_a_model_keep_their_own_states_in_chunks_of_several_calls():
    made, start = learner("bptt")
    keys, xs, ys = rows(2 * ROWS_PER_CALL + 100, 30)
    fleets = [norewind.fleets.Fleet(made, start, share=True) for _ in range(2)]
    whole, cut = (
        scanned(f, keys, xs, ys, c)[1] for f, c in zip(fleets, ([], [ROWS_PER_CALL, 2 * ROWS_PER_CALL]), strict=True)
    )
    np.testing.assert_array_equal(whole, cut)


@pytest.mark.parametrize("horizon", [0, 2])
def test_keys_that_share_a_model_are_learned_row_by_row(horizon):
    """Equals a plain loop: each row is one step of the learner with its key's state and carry, then a forecast."""
    inner, start = learner("uoro")
    keys, xs, ys = rows(200, 7)
    ys[::11] = np.nan
    made, begin, transition = inner, start, jax.jit(inner.update.estimator.model.transition)
    if horizon:
        made = norewind.learners.AheadLearner(inner, norewind.losses.known_squared_error, (horizon,))
        begin = made.init(start, xs[0], ys[0], ys[0])
    run, own, latest, past, outputs = start, {}, {}, {}, []
    for key, x, y in zip(keys, xs, ys, strict=True):
        rows_of_key = past.setdefault(key, [])
        rows_of_key.append(x)
        if len(rows_of_key) > horizon:
            state, carry = own.get(key, (start.state, start.carry))
            run, estimate = inner.step(run._replace(state=state, carry=carry), rows_of_key[-1 - horizon], y)
            own[key], output = (run.state, run.carry), estimate.output
        if horizon:
            latest[key], output = transition(run.params, latest.get(key, start.state), x)
        outputs.append(np.asarray(output))
    fleet = norewind.fleets.Fleet(made, begin, share=True, resident=4)
    shared, ours = fleet.init(), []
    for part in (slice(0, 77), slice(77, None)):
        shared, _, found = fleet.scan(shared, norewind.fleets.Keyed(keys[part], xs[part]), ys[part], outputs=True)
        ours.append(found.made)
    np.testing.assert_allclose(np.concatenate(ours), outputs, rtol=1e-4, atol=2e-5)
    for one, other in zip(jax.tree.leaves(shared.shared.params), jax.tree.leaves(run.params), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("steps", [(0,), (1, 3)])
def test_a_mixture_of_one_key_is_a_learner(steps):
    _, xs, ys = rows(120, 1)
    check_learner(mixture(steps), mixture(steps).init(), xs, np.tile(ys, (1, len(steps))))
