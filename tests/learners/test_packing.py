"""Packing is lossless, and packed runs learn like plain ones."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alike import assert_same, same_bits

import norewind
from norewind.engines.compilation import compiled_kernel
from norewind.learners import packing
from norewind.learners.packed_layout import layout_of

TEXT = [0, 2, 1, 1, 0, 2, 2, 1, 0, 0, 1, 2] * 2


def test_packing_loses_nothing():
    tree = {
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(4), 2),
        "complex": jnp.array([[1 + 2j, jnp.inf - 3j]], jnp.complex64),
        "counts": (jnp.array(7, jnp.int32), jnp.array([2**32 - 1], jnp.uint32)),
        "flag": jnp.array([True, False]),
        "half": jnp.array([1.5, jnp.nan], jnp.bfloat16),
        "none": None,
        "empty": jnp.zeros((0, 3)),
        "large": jnp.arange(2_000, dtype=jnp.float32).reshape(40, 50) - 7.5,
        "large complex": jnp.arange(1_500) * (1 - 2j),
        "many keys": jax.random.split(jax.random.key(5), 600),
    }
    layout = layout_of(tree)
    vectors = layout.pack_now(tree)
    assert sorted(str(vector.dtype) for vector in vectors) == ["bfloat16", "complex64", "float32", "uint32"]
    assert same_bits(layout.unpack_now(vectors), tree)
    assert same_bits(jax.jit(layout.unpack)(vectors), tree)
    assert layout_of(jax.tree.map(lambda leaf: leaf, tree)) is layout


def learner_and_run(method="uoro", cell="gru", dtype=jnp.float32, hidden=5, **options):
    model = getattr(norewind.cells, cell)(inputs=3, hidden=hidden, outputs=3)
    estimator = norewind.registry.parse_method(method).make(
        model.transition, norewind.losses.cross_entropy, jnp.array(0)
    )
    learner = norewind.online(estimator, norewind.adam(norewind.inverse_sqrt(1e-2, alpha=0.03)), **options)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, dtype)), model.init(jax.random.key(0)))
    state = jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, dtype)), model.initial_state())
    return learner, learner.init(params, state, jax.random.key(1))


# At 33 units, the recurrent weights are large enough for a separate vector.
CASES = [("uoro", "gru", 33), ("rtrl", "gru", 5), ("bptt", "lstm", 5), ("snap1", "lru", 5)]


def assert_close(one, other):
    """Equal in float64 up to rounding: a single kernel adds in another order than many kernels."""
    assert_same(one, other, 1e-12, absolute=1e-13)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert (jnp.result_type(a), jnp.shape(a)) == (jnp.result_type(b), jnp.shape(b))


@pytest.mark.parametrize(("method", "cell", "hidden"), CASES)
def test_a_packed_run_learns_like_the_plain_one(method, cell, hidden):
    with jax.enable_x64(True):
        learner, run = learner_and_run(method, cell, jnp.float64, hidden)
        single = norewind.learners.PackedLearner(learner)
        packed = single.pack(run)
        for x, target in pairwise(TEXT):
            run, estimate = learner.step(run, np.int32(x), np.int32(target))
            packed, *found = single.step(packed, np.int32(x), np.int32(target))
        assert_close(found, [estimate.loss, np.asarray(estimate.output)])
        assert_close(packed.unpack(), run)
        assert int(packed.unpack().samples) == len(TEXT) - 1


@pytest.mark.parametrize(("method", "cell"), [("uoro", "gru")])
def test_late_targets_and_inputs_that_wait(method, cell):
    with jax.enable_x64(True):
        learner, run = learner_and_run(method, cell, jnp.float64)
        single = norewind.learners.PackedLearner(learner)
        packed = single.pack(run)
        for place, x in enumerate(TEXT):
            run, output = learner.predict(run, x)
            packed, found = single.predict(packed, x)
            assert_close(found, np.asarray(output))
            if place >= 2:
                run, _ = learner.learn(run, TEXT[place - 1])
                packed, _, _ = single.learn(packed, TEXT[place - 1])
        assert_close(packed.unpack(), run)
        assert same_bits(single.pack(run).unpack(), run)
        with pytest.raises(ValueError, match="2 inputs are still waiting for their targets"):
            single.step(packed, 0, 0)
        with pytest.raises(ValueError, match="2 inputs are still waiting for their targets"):
            single.scan(packed, jnp.zeros(3, int), jnp.zeros(3, int))


def test_float32_is_as_close_to_scan_as_its_rounding():
    learner, run = learner_and_run()
    single = norewind.learners.PackedLearner(learner)
    packed = single.pack(run)
    for x, target in pairwise(TEXT[:10]):
        run, losses, _ = learner.scan(run, np.array([x]), np.array([target]), count=1)
        packed, loss, _ = single.step(packed, x, target)
        np.testing.assert_allclose(loss, losses[0], rtol=1e-5)
    assert_near(packed.unpack().params, run.params)


def assert_near(params, others):
    for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_step_is_one_kernel_where_possible():
    learner, run = learner_and_run()
    single = norewind.learners.PackedLearner(learner)
    single.step(single.pack(run), 0, 1)
    (program,) = single._programs.values()
    assert program.kernel.__name__ == "marked"
    sorting = compiled_kernel(lambda values: jax.numpy.sort(values), np.array([3.0, 1.0, 2.0]))
    assert sorting(np.array([3.0, 1.0, 2.0])).tolist() == [1.0, 2.0, 3.0]
    square = np.ones((200, 200), np.float32)
    adding = compiled_kernel(lambda values: jnp.sum(values * values), square)
    assert (adding.__name__, float(adding(square))) == ("marked", 40_000)


def test_inputs_may_be_arrays_on_a_device():
    learner, run = learner_and_run()
    single = norewind.learners.PackedLearner(learner)
    packed = single.pack(run)
    x, target = jax.device_put((jnp.array(2), jnp.array(1)), jax.devices()[0])
    packed, output = single.predict(packed, x)
    packed, loss, _ = single.learn(packed, target)
    plain, *found = single.step(single.pack(run), np.int32(2), np.int32(1))
    assert same_bits(packed.unpack(), plain.unpack())
    assert same_bits([loss, output], found)


def test_symbols_seen_before_are_still_checked():
    cell = norewind.cells.gru(inputs=3, hidden=4, outputs=2)
    learner = norewind.online(norewind.uoro(cell.transition, norewind.losses.cross_entropy), norewind.adam(1e-2))
    run = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    single = norewind.learners.PackedLearner(learner)
    packed = single.pack(run)
    for kind in (int, np.int32, np.int64, np.uint8, np.asarray, jnp.asarray):
        same, _, _ = single.step(packed, kind(2), kind(1))
        assert same_bits(same.unpack(), single.step(packed, 2, 1)[0].unpack())
        for bad, words in [((1, 2), "target 2"), ((3, 1), "input 3")]:
            with pytest.raises(norewind.core.ModelError, match=f"step: {words} is out of range"):
                single.step(packed, *map(kind, bad))
        with pytest.raises(norewind.core.ModelError, match="predict: input 3 is out of range"):
            single.predict(packed, kind(3))


def test_symbols_keep_their_type_on_the_device():
    """Otherwise equal symbols of another type would be compiled for again."""
    for kind in (int, np.int32, np.uint8, np.int8):
        assert packing._placed(kind(1), False).dtype == jnp.asarray(kind(1)).dtype


def test_single_numbers_are_passed_on_as_they_are():
    def transition(params, state, x):
        state = jnp.tanh(params["a"] * state + params["b"] * x)
        return state, state

    learner = norewind.online(norewind.uoro(transition, norewind.losses.squared_error), norewind.adam(1e-2))
    params = {"a": jnp.array(0.5), "b": jnp.array(0.3)}
    run = learner.init(params, jnp.array(0.1), jax.random.key(1))
    single = norewind.learners.PackedLearner(learner)
    packed = single.pack(run)
    for x, target in [(0.5, 1.0), (-0.25, 0.5), (2, 0.5), (3, 0.25), (np.float32(0.1), 1), (np.float32(0.2), 1)]:
        run, output = learner.predict(run, x)
        packed, found = single.predict(packed, x)
        np.testing.assert_allclose(found, output, rtol=1e-5)
        run, estimate = learner.learn(run, target)
        packed, loss, _ = single.learn(packed, target)
        np.testing.assert_allclose(loss, estimate.loss, rtol=1e-5)
    assert_near(packed.unpack().params, run.params)


def test_errors_of_single_calls():
    learner, run = learner_and_run()
    single = norewind.learners.PackedLearner(learner)
    packed = single.pack(run)
    with pytest.raises(ValueError, match="no pending input"):
        single.learn(packed, 0)
    with pytest.raises(norewind.core.ModelError, match="input 3 is out of range: this model takes 0 to 2"):
        single.step(packed, 3, 0)
    with pytest.raises(norewind.core.ModelError, match="target -1 is out of range"):
        single.step(packed, 0, -1)
    packed, _, _ = single.step(packed, 0, 1)
    assert same_bits(single.reset(packed).unpack(), learner.reset(packed.unpack()))
    good = packed.unpack()
    broken = single.pack(good._replace(params=jax.tree.map(lambda leaf: leaf * jnp.nan, good.params)))
    with pytest.raises(norewind.core.NonFiniteError, match="step 2 ") as error:
        single.step(broken, 0, 1)
    assert error.value.run is broken


def test_skipping():
    learner, run = learner_and_run(nonfinite="skip")
    single = norewind.learners.PackedLearner(learner)
    packed = single.pack(run._replace(params=jax.tree.map(lambda leaf: leaf * jnp.nan, run.params)))
    after = single.step(packed, 0, 1)[0].unpack()
    assert (int(after.skipped), int(after.steps)) == (1, 1)


def test_arrays_are_found_by_type_and_shape_and_those_of_symbols_are_still_looked_at():
    cell = norewind.cells.gru(inputs=3, hidden=2, outputs=3)
    model = norewind.window(cell.transition, norewind.losses.cross_entropy)
    learner = norewind.online(norewind.uoro(*model), norewind.adam(1e-2))
    single = norewind.learners.PackedLearner(learner)
    packed = single.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    for _ in range(2):
        packed, _, _ = single.step(packed, np.array([0, 1]), np.array([1, 2]))
        with pytest.raises(norewind.core.ModelError, match="target 3 is out of range: this model takes 0 to 2"):
            single.step(packed, np.array([0, 1]), np.array([1, 3]))

    def transition(params, state, x):
        return state, {"sum": params * jnp.sum(x) * (1 + jnp.size(x)), "same": x}

    learner = norewind.online(norewind.bptt(transition, norewind.losses.squared_error), norewind.adam(1e-2))
    single = norewind.learners.PackedLearner(learner)
    packed = single.init(jnp.ones(1), jnp.zeros(1), jax.random.key(1))
    arrays = np.ones(2, np.float32), np.ones(3, np.float32), np.ones(2, np.int32)
    for _ in range(2):
        for x in (*arrays, *map(jnp.asarray, arrays), 1.0, 1):
            _, output = single.predict(packed, x)
            np.testing.assert_allclose(output["sum"], np.size(x) * (1 + np.size(x)))
            np.testing.assert_array_equal(output["same"], x)
            assert output["same"].dtype == jnp.asarray(x).dtype
