"""The main claims with XLA's optimisations on. Run by test_optimised.py in a separate process."""

import jax
import numpy as np
import optax
import pytest
from alike import same_bits

from norewind import cells, online, rtrl, uoro
from norewind.core.losses import cross_entropy
from norewind.core.trees import is_prng_key
from norewind.testing import check_exact, check_unbiased, example

TEXT = np.random.default_rng(0).integers(0, 3, 41).astype(np.int32)
XS, TARGETS = TEXT[:-1], TEXT[1:]

assert not jax.config.read("jax_disable_most_optimizations"), "run test_optimised.py instead"


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["gru", "user_made"])
def test_rtrl_is_exact(name):
    check_exact(rtrl, models=[example(name)])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["gru", "user_made"])
def test_uoro_is_unbiased(name):
    check_unbiased(uoro, models=[example(name)])


def through_bytes(leaf):
    if is_prng_key(leaf):
        return jax.random.wrap_key_data(through_bytes(jax.random.key_data(leaf)))
    array = np.asarray(leaf)
    return jax.numpy.asarray(np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape))


def test_a_saved_run_continues_bit_for_bit_however_the_stream_is_cut():
    cell = cells.gru(3, 8, 3)
    learner = online(uoro(cell.transition, cross_entropy), optax.adam(1e-2))
    begin = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))

    def train(cuts):
        """Train in chunks of 20 steps, partly filled according to the cuts, and save and restore the run after each."""
        run, losses = begin, []
        for start, stop in zip((0, *cuts), (*cuts, 40), strict=True):
            padded = [np.resize(data[start:stop], 20) for data in (XS, TARGETS)]
            run, values, _ = learner.scan(run, *padded, count=stop - start)
            run = jax.tree.map(through_bytes, run)
            losses.append(values[: stop - start])
        return run, np.concatenate(losses)

    whole, losses = train([20])
    assert not np.array_equal(whole.params["bias"], begin.params["bias"])
    for cuts in ([7, 20], [1, 2, 20, 39]):
        run, again = train(cuts)
        assert same_bits(run, whole)
        np.testing.assert_array_equal(again, losses)
