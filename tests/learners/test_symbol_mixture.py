"""The mixture of counts and networks equals a plain Bayesian mixture of them, in its losses and its distributions."""

import numpy as np
import pytest

from norewind.learners.learner import Learner
from norewind.learners.symbol_mixture import SYMBOL_SWITCHING, SymbolMixture

SYMBOLS, LENGTH = 4, 120


class Logits(Learner):
    """A network with given outputs."""

    window = 0

    def __init__(self, seed):
        self.logits = np.random.default_rng(seed).normal(size=(3 * LENGTH, SYMBOLS)).astype(np.float32)

    def forward(self, run, xs, *, count=None):
        made = self.logits[int(run[0]) : int(run[0]) + np.size(xs)].reshape(*np.shape(xs), SYMBOLS)
        return run + np.size(xs[:count]), made

    def scan(self, run, xs, targets, *, count=None, outputs=False):
        run, made = self.forward(run, xs, count=count)
        return run, None, made

    def reset(self, run):
        return 0 * run


def mixture_of(window=1):
    networks = [(Logits(seed), np.zeros(1, int)) for seed in (1, 2)]
    return SymbolMixture(networks, SYMBOLS, window=window, megabytes=0.1)


def plain_mixture(mixture, xs, targets, more):
    """Compute the losses and distributions of `mixture`, and its predictions of `more` symbols, by a plain loop."""
    logs = np.stack([network.logits[: len(xs) + len(more)] for network in mixture.networks], axis=1).astype(float)
    logs -= np.log(np.exp(logs).sum(axis=-1, keepdims=True))
    counts = mixture.counts
    run, losses, whole = counts.scan(
        counts.init(), xs, targets, outputs=True, expert_log_probabilities=logs[: len(xs)].astype(np.float32)
    )
    _, rest = counts.forward(run, more, expert_log_probabilities=logs[len(xs) :].astype(np.float32))
    experts = np.exp(np.concatenate([logs, np.concatenate([whole, rest])[:, None]], axis=1))
    weights, totals, mixed = np.full(3, 1 / 3), [], []
    for t, probabilities in enumerate(experts):
        mixed.append(np.log(weights @ probabilities))
        if t < len(xs):
            gained = weights * [*probabilities[:2, targets[t]], np.exp(-losses[t])]
            totals.append(-np.log(gained.sum()))
            weights = gained / gained.sum()
            weights = (1 - SYMBOL_SWITCHING) * weights + SYMBOL_SWITCHING / 2 * (1 - weights)
    return np.array(totals), np.array(mixed[: len(xs)]), np.array(mixed[len(xs) :])


@pytest.mark.parametrize("window", [1, 4])
def test_losses_and_distributions_are_those_of_a_plain_mixture(window):
    """They are made before the weights learn from their symbols, and without learning by the weights learned so far."""
    text = np.random.default_rng(0).integers(0, SYMBOLS, 2 * LENGTH + 1).astype(np.int32)
    # The second network is usually right.
    mixture = mixture_of(window)
    mixture.networks[1].logits[np.arange(2 * LENGTH), text[1:]] += 2
    xs, targets, more = text[:LENGTH], text[1 : LENGTH + 1], text[LENGTH : 2 * LENGTH]
    expected, distributions, later = plain_mixture(mixture, xs, targets, more)
    shape = (LENGTH,) if window == 1 else (-1, window)
    run, losses, outputs = mixture.scan(mixture.init(), xs.reshape(shape), targets.reshape(shape), outputs=True)
    np.testing.assert_allclose(losses, expected.reshape(-1, window).sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(outputs.reshape(LENGTH, SYMBOLS), distributions, atol=1e-5)
    moved, first = mixture.forward(run, more[:50])
    _, second = mixture.forward(moved, more[50:])
    np.testing.assert_allclose(np.concatenate([first, second]), later, atol=1e-5)
    assert np.abs(later - mixture.forward(run._replace(mix=mixture.mixture.init()), more)[1]).max() > 0.1


def test_a_new_text_begins_without_a_past():
    text = np.random.default_rng(0).integers(0, SYMBOLS, LENGTH + 1).astype(np.int32)
    mixture = mixture_of()
    run, _, _ = mixture.scan(mixture.init(), text[:-1], text[1:])
    weights = mixture.mixture.weights(run.mix).copy()
    run = mixture.reset(run)
    assert [int(network[0]) for network in run.networks] == [0, 0]
    np.testing.assert_array_equal(run.counts.past, mixture.counts.reset(run.counts).past)
    np.testing.assert_array_equal(mixture.mixture.weights(run.mix), weights)
