"""The mixture keeps its guarantee on adversarial streams, and its weights equal exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from norewind.core.checks import ModelError
from norewind.learners.bayesian import BayesMixture

LOSS = st.one_of(st.floats(0, 1e-6), st.floats(0, 20), st.floats(0, 1e5), st.just(np.inf), st.just(np.nan))
LENGTH = 40


@st.composite
def streams(draw):
    return draw(arrays(np.float64, (LENGTH, draw(st.sampled_from([1, 2, 3]))), elements=LOSS))


def rounding(losses):
    """Return the rounding that the docstring allows: 2⁻⁴⁴ (1 + the largest loss or log-weight) per sample."""
    finite = np.where(np.isfinite(losses), losses, 0)
    return len(losses) * 2.0**-44 * (1 + finite.sum(0).max())


def trap(experts):
    """The expert with the largest weight has the largest loss at the next sample."""
    lead = np.eye(experts)[np.arange(LENGTH) % experts]
    return 1e-3 + 12 * lead


@settings(max_examples=150, deadline=None)
@given(streams())
@example(trap(2))
@example(trap(3))
@example(np.full((LENGTH, 3), np.inf))
def test_never_worse_than_the_best_expert_by_more_than_log_k(losses):
    experts = losses.shape[1]
    mixture = MIXTURES[experts, 0.0]
    run, mixed = mixture.scan(mixture.init(), losses)
    best = np.where(np.isnan(losses), np.inf, losses).sum(0).min()
    assert mixed.sum() <= best + np.log(experts) + rounding(losses)
    assert abs(mixture.weights(run).sum() - 1) < 1e-9


@settings(max_examples=150, deadline=None)
@given(streams(), st.sampled_from([0.3, 1e-3]))
@example(trap(3), 0.3)
def test_never_worse_than_any_sequence_of_experts_by_more_than_fixed_shares_bound(losses, switching):
    experts = losses.shape[1]
    mixture = MIXTURES[experts, switching]
    _, mixed = mixture.scan(mixture.init(), losses)
    known = np.where(np.isnan(losses), np.inf, losses)
    stay = -np.log1p(-switching) if experts > 1 else 0.0
    switch = np.log((experts - 1) / switching) if experts > 1 else np.inf
    # The sequence of experts with the smallest bound (Viterbi).
    cheapest = np.log(experts) + known[0]
    for now in known[1:]:
        others = np.array([np.delete(cheapest, i).min(initial=np.inf) for i in range(experts)])
        cheapest = np.minimum(cheapest + stay, others + switch) + now
    assert mixed.sum() <= cheapest.min() + rounding(losses)


SHARES = 0.0, 0.3, 1e-3
MIXTURES = {(number, share): BayesMixture(number, switching=share) for number in (1, 2, 3) for share in SHARES}


@pytest.mark.parametrize("switching", [0.0, 0.25])
def test_the_losses_are_those_of_exact_fractions(switching):
    probabilities = np.random.default_rng(0).uniform(1e-4, 1, (30, 3))
    mixture = BayesMixture(3, switching=switching)
    _, mixed = mixture.scan(mixture.init(), -np.log(probabilities))
    weights, share = [Fraction(1, 3)] * 3, Fraction(switching)
    for row, loss in zip(probabilities, mixed, strict=True):
        joint = [weight * Fraction(p) for weight, p in zip(weights, row, strict=True)]
        assert abs(loss + np.log(float(sum(joint)))) < 1e-12
        posterior = [one / sum(joint) for one in joint]
        weights = [(1 - share) * one + share / 2 * (1 - one) for one in posterior]


def test_a_mixture_of_distributions_sums_to_one_and_gives_the_loss():
    rng = np.random.default_rng(1)
    logs = rng.normal(size=(20, 3, 7)) * 3
    logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
    targets = rng.integers(0, 7, 20)
    mixture = BayesMixture(3, switching=0.01)
    run, losses = mixture.init(), -np.take_along_axis(logs, targets[:, None, None], 2)[..., 0]
    whole = mixture.distributions(run, logs, losses)
    for t, (log_probabilities, target) in enumerate(zip(logs, targets, strict=True)):
        mixed = mixture.distributions(run, log_probabilities[None])[0]
        assert abs(np.exp(mixed).sum() - 1) < 1e-12
        np.testing.assert_array_equal(mixed, whole[t])
        run, loss = mixture.scan(run, -log_probabilities[None, :, target])
        assert abs(loss[0] + mixed[target]) < 1e-12


@pytest.mark.parametrize("size", [1e37, 1e39, 1e300])
def test_losses_may_add_up_to_more_than_32_bits_hold(size):
    losses = size * np.array([[1.0, 2.0]] * 100)
    for switching in (0.0, 0.01):
        mixture = BayesMixture(2, switching=switching)
        run, mixed = mixture.scan(mixture.init(), losses.astype(np.float32) if size < 1e38 else losses)
        np.testing.assert_allclose(mixed, size, rtol=1e-6)
        assert mixture.weights(run) == pytest.approx([1 - switching, switching])


@pytest.mark.parametrize("size", [3.4e38, 1e300, -3.4e38])
def test_weights_add_up_to_one_after_a_large_loss(size):
    mixture = BayesMixture(2)
    run, mixed = mixture.scan(mixture.init(), [[size, size], [1.0, 1.0]])
    assert mixture.weights(run) == pytest.approx([0.5, 0.5])
    assert mixed == pytest.approx([size, 1.0])


@pytest.mark.parametrize("switching", [0.0, 0.25])
def test_a_loss_of_minus_infinity(switching):
    mixture = BayesMixture(3, switching=switching)
    run, _ = mixture.scan(mixture.init(), np.log([[3.0, 1.5, 1.0]]))
    before = mixture.weights(run)
    run, mixed = mixture.scan(run, [[-np.inf, -np.inf, 5.0]])
    assert mixed == [-np.inf]
    share = np.array([*before[:2] / before[:2].sum(), 0])
    np.testing.assert_allclose(mixture.weights(run), (1 - switching) * share + switching / 2 * (1 - share))
    # Later losses are finite again, but a weight of 0 does not recover.
    run, mixed = mixture.scan(run, [[1.0, 1.0, 1.0], [1.0, np.nan, -np.inf], [2.0, 2.0, 2.0]])
    assert mixed[0] == pytest.approx(1.0)
    assert mixed[1] == pytest.approx(1.0 - np.log(share[0])) if switching == 0 else mixed[1] == -np.inf
    assert mixed[2] == pytest.approx(2.0)
    assert mixture.weights(run).sum() == pytest.approx(1)


def test_dividing_a_stream_changes_no_bit():
    losses = np.random.default_rng(2).exponential(3, (50, 2))
    mixture = BayesMixture(2, switching=1e-3)
    whole_run, whole = mixture.scan(mixture.init(), losses)
    run, first = mixture.scan(mixture.init(), losses, count=17)
    run, second = mixture.scan(run, np.roll(losses, -17, 0), count=33)
    assert np.array_equal(np.concatenate([first[:17], second[:33]]), whole)
    np.testing.assert_array_equal(run.log_weights, whole_run.log_weights)


def test_bad_arguments_raise_errors():
    with pytest.raises(ModelError, match="at least one expert"):
        BayesMixture(0)
    with pytest.raises(ModelError, match="from 0 to less than 1"):
        BayesMixture(2, switching=1.0)
    with pytest.raises(ModelError, match=r"\(samples, 2\)"):
        BayesMixture(2).scan(BayesMixture(2).init(), np.zeros((5, 3)))
