"""What one's own loops need: resets, episodes inside windows, watching the carry, donated runs, named leaves."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import structured

from norewind import cells, online, parallel, uoro, window
from norewind.core import ModelError, NonFiniteError, linearise, losses, model_of, restarting
from norewind.errors import Diverged
from norewind.estimators import rtrl, snap1
from norewind.learners import PackedLearner
from norewind.storage import checkpoint
from norewind.storage.checkpoint import CheckpointError
from norewind.testing import check_exact, check_structure


def learner_of(make=uoro, cell=None, optimizer=None):
    cell = cell or cells.elman(3, 2, 3)
    learner = online(make(cell.transition, losses.cross_entropy), optimizer or optax.sgd(0.1))
    return learner, learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))


def test_a_vector_of_resets_needs_streams():
    learner, run = learner_of()
    with pytest.raises(ModelError, match=r"`when` has shape \(2,\), but this learner has one stream.*parallel"):
        learner.reset(run, when=np.array([True, False]))
    symbols = np.zeros(3, int)
    with pytest.raises(ModelError, match=r"an entry of `resets` has shape \(2,\)"):
        learner.scan(run, symbols, symbols, np.zeros((3, 2), bool))
    cell = cells.elman(3, 2, 3)
    many = online(parallel(uoro(cell.transition, losses.cross_entropy), 2), optax.sgd(0.1))
    run = many.init(cell.init(jax.random.key(0)), jnp.ones((2, 2)), jax.random.key(1))
    moved = run._replace(state=run.state + 1)
    assert many.reset(moved, when=np.array([True, False])).state[:, 0].tolist() == [1, 2]


def test_a_fresh_run_can_be_donated():
    learner, run = learner_of(optimizer=optax.adam(0.1))
    step = jax.jit(lambda run: learner.step(run, jnp.array(0), jnp.array(1))[0], donate_argnums=0)
    assert int(step(step(jax.tree.map(lambda leaf: leaf, run))).steps) == 2


@pytest.mark.parametrize("whole_chunk", [False, True])
def test_the_error_names_the_leaf(whole_chunk):
    def transition(params, state, x):
        return state, params["a"] * x + jnp.sqrt(params["b"] * x)

    learner = online(uoro(transition, losses.squared_error), optax.sgd(0.1))
    run = learner.init({"a": jnp.ones(()), "b": jnp.ones(())}, jnp.zeros(1), jax.random.key(0))
    with pytest.raises(NonFiniteError, match=r"first are in grad\['b'\]\. ") as error:
        if whole_chunk:
            learner.scan(run, jnp.array([1.0, 0.0, 2.0]), jnp.zeros(3))
        else:
            learner.step(run, jnp.array(0.0), jnp.array(0.0))
    assert error.value.step == 1 + whole_chunk
    with pytest.raises(NonFiniteError, match=r"first are in x\. "):
        learner.step(run, jnp.array(jnp.nan), jnp.array(0.0))


def test_scan_watches_the_carry():
    def exploding(params, state, x):
        return 3 * state + params * x, state

    learner = online(rtrl(exploding, lambda output, target: 0 * output), optax.sgd(0.1))
    run = learner.init(jnp.ones(()), jnp.zeros(()), jax.random.key(0))
    xs = jnp.ones(5)
    run, *_ = learner.scan(run, xs, xs, carry_limit=1e6)
    with pytest.raises(Diverged, match="after sample 15 the norm of the carry is .*, above 1e\\+06") as error:
        learner.scan(learner.scan(run, xs, xs)[0], xs, xs, carry_limit=1e6)
    assert int(error.value.run.samples) == 10


@pytest.mark.usefixtures("x64")
def test_decay_and_clipping_limit_the_carry_of_uoro():
    example = structured.of_cell("elman")

    def sizes(**options):
        estimator = uoro(example.transition, example.loss, **options)
        carry = estimator.init(example.params, example.state, jax.random.key(0))
        step = jax.jit(estimator.step)
        for x, target in zip(example.xs, example.targets, strict=True):
            carry = step(example.params, example.state, carry, x, target)[1]
        return np.prod([optax.tree.norm(tree) for tree in carry[:2]])

    assert sizes(clip=0.01) == pytest.approx(0.01, rel=1e-6)
    assert sizes(clip=1e9) == sizes() > 0.01
    assert sizes(decay=0.5) != sizes()
    for wrong in ({"decay": 0.0}, {"decay": 1.1}, {"clip": 0}):
        with pytest.raises(ValueError, match="must be above 0"):
            uoro(example.transition, example.loss, **wrong)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("make", [rtrl, snap1])
def test_sequences_begin_inside_a_window(make):
    """The gradient is exact, which is that of each sequence; declarations are kept."""
    example = structured.of_cell("mingru")
    told = restarting(example.transition, example.state)
    xs = example.xs, np.array([False, True, False, False])
    episodes = example._replace(transition=told, xs=xs, state=jax.tree.map(lambda leaf: leaf + 1, example.state))
    check_structure(told, episodes.params, episodes.state, jax.tree.map(lambda leaf: leaf[0], xs))
    check_exact(lambda *model: make(*window(*model)), window=4, models=[episodes])
    with pytest.raises(ModelError, match="takes a single step"):
        restarting(window(example.transition, example.loss)[0], example.state)


@pytest.mark.usefixtures("x64")
def test_a_linearisation_has_the_derivative_along_the_parameters():
    example = structured.of_cell("lstm")
    point = linearise(
        model_of(example.transition, example.loss), example.params, example.state, example.xs[0], example.targets[0]
    )
    direction = jax.tree.map(lambda leaf: jnp.cos(jnp.arange(leaf.size * 1.0)).reshape(leaf.shape), example.params)

    def results(params):
        state, output = example.transition(params, example.state, example.xs[0])
        return state, example.loss(output, example.targets[0])

    expected = jax.jvp(results, (example.params,), (direction,))[1]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10), point.jvp_params(direction), expected)


def test_a_packed_run_can_be_saved(tmp_path):
    learner, _ = learner_of()
    packed, cell = PackedLearner(learner), cells.elman(3, 2, 3)
    run = packed.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    new = run
    for symbol in (0, 2, 1):
        new = packed.step(new, symbol, symbol)[0]
    loaded, _ = checkpoint.load(checkpoint.save(tmp_path, 3, new), run)
    for one in (loaded, new):
        assert packed.step(one, 1, 2)[1] == packed.step(new, 1, 2)[1]
    with pytest.raises(CheckpointError, match="arrays and numbers, not a str"):
        checkpoint.save(tmp_path, 0, {"name": "text"})
