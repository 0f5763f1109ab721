"""`shrunk` is its definition, written out, and c goes to 1 where the rest is known and matters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import structured

from examples.paper.influence import InfluenceBalancing
from norewind import bptt, inverse_sqrt, online, unbiased
from norewind.core import ModelError
from norewind.estimators import shrunk, snap1
from norewind.estimators.shrunk import RATIO_MEMORY
from norewind.testing import check_exact
from norewind.testing.oracles import run_estimator

CARRIES, DECAY, LIMIT = 3, 0.7, 1.2
SLOWER = 1 - (1 - DECAY) / RATIO_MEMORY


def by_hand(example, carry, per_leaf):
    """The gradients of `shrunk(snap1)` from those of `unbiased(snap1)` with the keys of its carries."""
    biased, whole = snap1(*example[3:5]), unbiased(snap1(*example[3:5]))
    known = run_estimator(biased, example, biased.init(example.params, example.state, None))[2].grad
    singles = [whole.init(example.params, example.state, key)._replace(key=key) for key in carry.rest.key]
    each = [run_estimator(whole, example, single)[2].grad for single in singles]
    leaves, structure = jax.tree.flatten(known)
    rests = [[np.asarray(g) - np.asarray(k) for g, k in zip(jax.tree.leaves(one), leaves, strict=True)] for one in each]
    size = weight = 0
    for t in range(len(leaves[0])):
        norms = np.array([np.sqrt(sum(np.sum(leaf[t] ** 2) for leaf in rest)) for rest in rests])
        if norms.min() > 0:
            size = DECAY * size + (1 - DECAY) * np.mean(np.log(norms))
            weight = DECAY * weight + 1 - DECAY
        for rest, norm in zip(rests, norms, strict=True):
            for leaf in rest if weight and norm > LIMIT * np.exp(size / weight) else ():
                leaf[t] *= LIMIT * np.exp(size / weight) / norm
    groups = [[i] for i in range(len(leaves))] if per_leaf else [list(range(len(leaves)))]
    grads, shrinkages = [np.array(leaf) for leaf in leaves], []
    for group in groups:
        means, agreement, weight = 0, 0, 0
        for t in range(len(leaves[0])):
            vectors = np.stack([np.concatenate([rest[i][t].ravel() for i in group]) for rest in rests])
            means = DECAY * means + (1 - DECAY) * vectors
            square = np.mean(np.sum(means**2, axis=1))
            pairs = [means[j] @ means[k] for j in range(CARRIES) for k in range(CARRIES) if j != k]
            agreement = SLOWER * agreement + (1 - SLOWER) * (np.mean(pairs) / square if square else 0)
            weight = SLOWER * weight + (1 - SLOWER) * (square > 0)
            share = min(1, max(0, agreement / weight)) if weight else 0
            c = share / (share + (1 - share) / CARRIES)
            shrinkages.append(c)
            for i in group:
                grads[i][t] += c * np.mean([rest[i][t] for rest in rests], axis=0)
    return jax.tree.unflatten(structure, grads), shrinkages


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("per_leaf", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_it_is_its_definition(per_leaf):
    example = structured.of_cell("elman", 3, 10)
    estimator = shrunk(snap1(*example[3:5]), carries=CARRIES, decay=DECAY, limit=LIMIT, per_leaf=per_leaf)
    carry = estimator.init(example.params, example.state, jax.random.key(3))
    expected, shrinkages = by_hand(example, carry, per_leaf)
    assert any(0.01 < c < 0.99 for c in shrinkages)
    _, last, estimates = run_estimator(estimator, example, carry)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10), estimates.grad, expected)
    length = len(example.xs)
    np.testing.assert_allclose(estimator.report(last)["shrinkage"], np.mean(shrinkages[length - 1 :: length]))


@pytest.mark.usefixtures("x64")
def test_it_is_exact_where_the_method_is():
    check_exact(lambda *model: shrunk(snap1(*model)), models=[structured.turning()])


def test_a_reset_keeps_what_was_learned_and_forgets_the_past():
    example = structured.of_cell("elman", 3, 10)
    estimator = shrunk(snap1(*example[3:5]), decay=0.9)
    carry = estimator.init(example.params, example.state, jax.random.key(3))
    carry = run_estimator(estimator, example, carry)[1]
    again = estimator.reset(example.params, example.state, carry, jnp.array(True))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves((again.rest.s_tilde, again.rest.theta_tilde)))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(again.approximation))
    assert estimator.report(again) == estimator.report(carry)
    np.testing.assert_array_equal(*(jax.random.key_data(one.rest.key) for one in (again, carry)))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_it_learns_where_the_biased_method_diverges():
    """Influence balancing, of a size at which UORO needs few samples: truncated BPTT goes the wrong way."""
    task, nothing, final = InfluenceBalancing(11, 7), jnp.zeros(10_000), {}
    for name, make in {"biased": bptt, "shrunk": lambda *model: shrunk(bptt(*model))}.items():
        learner = online(make(task.transition, task.loss), optax.sgd(inverse_sqrt(1e-3, alpha=1)))
        run = learner.init(task.init(), task.initial_state(), jax.random.key(0))
        run, losses, _ = learner.scan(run, nothing, nothing)
        final[name] = float(losses[-1])
    assert final["biased"] > 10
    assert final["shrunk"] < 0.01
    assert shrunk(bptt(task.transition, task.loss)).report(run.carry)["shrinkage"] > 0.5


def test_mistakes_are_explained():
    whole = snap1(*structured.of_cell("elman")[3:5])
    with pytest.raises(ModelError, match="carries must be at least 2"):
        shrunk(whole, carries=1)
    with pytest.raises(ValueError, match="decay must be between 0 and 1"):
        shrunk(whole, decay=1.0)
    with pytest.raises(ValueError, match="limit must be above 0"):
        shrunk(whole, limit=0)
    with pytest.raises(ModelError, match="shrunk completes a method that carries"):
        shrunk(unbiased(whole))
