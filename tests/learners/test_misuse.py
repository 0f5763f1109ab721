"""Likely mistakes in Python raise errors that say what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import norewind
from norewind import cells, online, parallel, uoro, window
from norewind.core import ModelError
from norewind.core.losses import cross_entropy

KEY = jax.random.key(0)
CELL = cells.gru(3, 4, 3)
PARAMS, STATE = CELL.init(KEY), CELL.initial_state()


def started(estimator, streams=None):
    learner = online(estimator, optax.sgd(0.1))
    state = STATE if streams is None else jnp.stack([STATE] * streams)
    return learner, learner.init(PARAMS, state, KEY)


ESTIMATOR = uoro(CELL.transition, cross_entropy)
LEARNER, RUN = started(ESTIMATOR)
GOOD = np.array([0, 1, 2, 1])


@pytest.mark.parametrize(("bad", "found"), [(7, 7), (3, 3), (-1, -1)])
def test_symbols_and_labels_out_of_range(bad, found):
    spoiled = np.array([0, bad, 2, 1])
    for array in (np.asarray, jnp.asarray):
        with pytest.raises(ModelError, match=rf"scan: target {found} is out of range: this model takes 0 to 2"):
            LEARNER.scan(RUN, array(GOOD), array(spoiled))
        with pytest.raises(ModelError, match=rf"scan: input {found} is out of range: .* 0 to 2.*more inputs"):
            LEARNER.scan(RUN, array(spoiled), array(GOOD))
    for x in (bad, jnp.array(bad)):
        with pytest.raises(ModelError, match=f"step: target {found} is out of range"):
            LEARNER.step(RUN, 1, x)
        with pytest.raises(ModelError, match=f"predict: input {found} is out of range"):
            LEARNER.predict(RUN, x)


def test_labels_out_of_range_in_windows_in_streams_and_in_fit():
    wide = jnp.array([[0, 1], [7, 1]])
    for estimator, streams in ((uoro(*window(CELL.transition, cross_entropy)), None), (parallel(ESTIMATOR, 2), 2)):
        learner, run = started(estimator, streams)
        with pytest.raises(ModelError, match="target 7 is out of range"):
            learner.scan(run, jnp.zeros((2, 2), int), wide)
    with pytest.raises(ModelError, match="target 7 is out of range"):
        norewind.fit([(0, 1), (1, 7)], LEARNER, RUN)


def test_symbols_beyond_count_may_be_out_of_range():
    LEARNER.scan(RUN, np.array([0, 1, 9]), np.array([1, 2, -1]), count=2)


def test_a_users_model_may_take_any_symbol():
    def transition(params, state, x):
        return CELL.transition(params, state, x % 3)

    learner = online(uoro(transition, lambda output, target: cross_entropy(output, target % 3)), optax.sgd(0.1))
    _, losses, _ = learner.scan(learner.init(PARAMS, STATE, KEY), np.array([0, 4]), np.array([4, 8]))
    assert bool(jnp.isfinite(losses).all())


def test_known_symbols_and_labels_are_checked_at_once():
    with pytest.raises(ModelError, match="target 7 is out of range: this model takes 0 to 2.*more outputs"):
        cross_entropy(jnp.zeros(3), jnp.array(7))
    with pytest.raises(ModelError, match="input 9 is out of range"):
        CELL.transition(PARAMS, STATE, jnp.array(9))
    for target in (1.0, jnp.array(True)):
        with pytest.raises(ModelError, match="cross_entropy: the target has dtype .*squared_error for numbers"):
            cross_entropy(jnp.zeros(3), target)


@pytest.mark.parametrize("make", [cells.gru, cells.lstm])
def test_swapped_parameters_and_state(make):
    cell = make(3, 4, 3)
    for transition, loss in ((cell.transition, cross_entropy), window(cell.transition, cross_entropy)):
        learner = online(uoro(transition, loss), optax.sgd(0.1))
        x = jnp.zeros((), int) if transition is cell.transition else jnp.zeros(2, int)
        with pytest.raises(Exception, match=".") as raised:
            learner.step(learner.init(cell.initial_state(), cell.init(KEY), KEY), x, x)
        assert "init(params, state, key), with the arguments in this order" in "".join(raised.value.__notes__)


@pytest.mark.parametrize("value", [PARAMS, (RUN, None), None], ids=["params", "pair", "None"])
def test_an_object_that_is_not_a_run(value):
    calls = {
        "step": lambda: LEARNER.step(value, 0, 0),
        "scan": lambda: LEARNER.scan(value, GOOD, GOOD),
        "forward": lambda: LEARNER.forward(value, GOOD),
        "predict": lambda: LEARNER.predict(value, 0),
        "learn": lambda: LEARNER.learn(value, 0),
        "reset": lambda: LEARNER.reset(value),
    }
    for name, call in calls.items():
        with pytest.raises(ModelError, match=f"{name} takes a run, as returned by learner.init"):
            call()


def test_a_model_of_the_wrong_kind():
    for make in (uoro, norewind.bptt, norewind.rtrl, window):
        with pytest.raises(ModelError, match="the transition is a Cell.*Pass cell.transition"):
            make(CELL, cross_entropy)
        with pytest.raises(ModelError, match="the loss is a str, not a function.*cross_entropy"):
            make(CELL.transition, "cross_entropy")


def test_half_precision_is_rejected_by_name():
    cell = cells.gru(3, 4, 3, dtype=jnp.float16)
    learner = online(uoro(cell.transition, cross_entropy), optax.sgd(0.1))
    with pytest.raises(ModelError, match=r"params\['bias'\] has dtype float16.*bfloat16"):
        learner.init(cell.init(KEY), cell.initial_state(), KEY)


def test_a_module_instead_of_its_factory():
    import equinox
    from flax import nnx

    for module in (equinox.nn.GRUCell, equinox.nn.GRUCell(3, 4, key=KEY)):
        with pytest.raises(ModelError, match="from_equinox takes a function that makes the module, such as lambda key"):
            cells.from_equinox(module, 3, 3)
    with pytest.raises(ModelError, match="from_flax takes a function that makes the module.*not a GRUCell"):
        cells.from_flax(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)), 3, 3)


@pytest.mark.parametrize(
    "value", [PARAMS, norewind.learners.PackedLearner(LEARNER).pack(RUN)], ids=["params", "packed"]
)
def test_only_a_run_is_packed(value):
    with pytest.raises(ModelError, match="pack takes a run"):
        norewind.learners.PackedLearner(LEARNER).pack(value)


@pytest.mark.parametrize(
    ("arguments", "more", "words"),
    [
        ((LEARNER, RUN, [(0, 1)]), {}, r"Call fit\(stream, learner, run\)"),
        (([(0, 1)], LEARNER, norewind.learners.PackedLearner(LEARNER).pack(RUN)), {}, "the run is packed"),
        ((3, LEARNER, RUN), {}, "the stream is a int"),
        (([(0, 1)], LEARNER, RUN), {"samples": -5}, "samples must be a whole number"),
        (([(0, 1)], LEARNER, RUN), {"samples": 5.5}, "samples must be a whole number"),
    ],
    ids=["swapped", "packed", "number", "negative", "fraction"],
)
def test_fit_of_something_else(arguments, more, words):
    with pytest.raises(ModelError, match=words):
        norewind.fit(*arguments, **more)


def test_an_array_is_a_stream_of_pairs():
    with pytest.raises(ValueError, match="item 1 of the stream is not a pair"):
        norewind.fit(np.zeros(10), LEARNER, RUN)
    assert norewind.fit(np.zeros((10, 2), int), LEARNER, RUN).samples == 10


@pytest.mark.parametrize("hidden", [0, "4", 4.5])
def test_a_cell_of_size_zero(hidden):
    with pytest.raises(ModelError, match="the size of a layer must be"):
        cells.gru(inputs=3, hidden=hidden, outputs=3).init(jax.random.key(0))


def test_several_keys_instead_of_one():
    with pytest.raises(ModelError, match=r"an array of shape \(3,\), not one PRNG key"):
        LEARNER.init(PARAMS, CELL.initial_state(), jax.random.split(jax.random.key(0), 3))


@pytest.mark.parametrize("packed", [False, True])
def test_runs_and_data_of_another_learner(packed):
    plain = online(ESTIMATOR, optax.adam(0.1))
    learner = norewind.learners.PackedLearner(plain) if packed else plain

    def prepared(run):
        return learner.pack(run) if packed else run

    exact = online(norewind.rtrl(CELL.transition, cross_entropy), optax.adam(0.1))
    for part, run in {"carry": exact.init(PARAMS, STATE, KEY), "opt_state": RUN}.items():
        with pytest.raises(ModelError, match=f"step: this run was made by another learner: its {part}"):
            learner.step(prepared(run), 0, 1)
    own = plain.init(PARAMS, STATE, KEY)
    with pytest.raises(ModelError, match="step: target is 'a', not a number"):
        learner.step(prepared(own), 0, "a")
    with pytest.raises(ModelError, match=r"predict: x\['a'\] is 'b', not a number"):
        learner.predict(prepared(own), {"a": "b"})
    # For another cell, the cause is not certain.
    lstm = cells.lstm(3, 4, 3)
    run = plain.init(lstm.init(KEY), lstm.initial_state(), KEY)
    with pytest.raises(KeyError) as error:
        learner.step(prepared(run), 0, 1)
    assert "step: was the run made by this learner's init" in " ".join(error.value.__notes__)
