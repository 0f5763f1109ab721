"""The measured workload in norewind: next-character prediction of aⁿbⁿ, Adam at every step, float32."""

from importlib import import_module
from unittest import mock

import jax
import jax.numpy as jnp

import norewind
from benchmarks.timing import Case

TASK = norewind.tasks.anbn(1, 32)
SYMBOLS = len(TASK.alphabet)
RATE = norewind.inverse_sqrt(1e-3, alpha=0.03)


def text(length: int) -> tuple[jax.Array, jax.Array]:
    """The first `length` characters of aⁿbⁿ as inputs and targets."""
    inputs, targets = next(TASK.pairs(0, length))
    return jnp.asarray(inputs), jnp.asarray(targets)


def learner_and_run(method: str, cell: str = "gru", hidden: int = 64, streams: int = 0, **options):
    """Build a learner and its run before the first character.

    Args:
        method: the method, by name (`"uoro:rank=8"`).
        cell: the cell, by name.
        hidden: the number of hidden units.
        streams: the number of streams of `parallel`; 0 to do without it.
        options: further options of `online`.
    """
    model = getattr(norewind.cells, cell)(SYMBOLS, hidden, SYMBOLS)
    parsed = norewind.registry.parse_method(method)
    estimator = parsed.make(model.transition, norewind.losses.cross_entropy, jnp.array(0))
    state = model.initial_state()
    if streams:
        estimator = norewind.parallel(estimator, streams)
        state = jax.tree.map(lambda leaf: jnp.stack([leaf] * streams), state)
    learner = norewind.online(estimator, norewind.adam(RATE), **options)
    return learner, learner.init(model.init(jax.random.key(0)), state, jax.random.key(1))


def learning(name: str, method: str, length: int, **options) -> Case:
    """The case of one `scan`.

    Args:
        name: the name of the case.
        method: the method, by name.
        length: the number of characters.
        options: further options of `learner_and_run`.
    """
    learner, run = learner_and_run(method, **options)
    window = norewind.registry.parse_method(method).window
    inputs, targets = (part if window == 1 else part.reshape(-1, window) for part in text(length))
    return waiting(name, length, learner.scan, run, inputs, targets)


def waiting(name: str, units: int, function, *arguments) -> Case:
    """The case of a call of JAX, measured until its results are available.

    Args:
        name: the name of the case.
        units: the number of characters it processes.
        function: the function to call.
        arguments: its arguments.
    """
    return Case(name, lambda: jax.block_until_ready(function(*arguments)), units)


def changed_uoro(name: str, length: int, optimizer=norewind.adam, norm=norewind.core.trees.norm, **options) -> Case:
    """The case of UORO on a GRU-64 with one part replaced, to measure the cost of that part.

    Args:
        name: the name of the case.
        length: the number of characters.
        optimizer: makes an optimizer from a learning rate.
        norm: the function for norms.
        options: further options of `uoro`.
    """
    model = norewind.cells.gru(SYMBOLS, 64, SYMBOLS)
    learner = norewind.online(
        norewind.uoro(model.transition, norewind.losses.cross_entropy, **options), optimizer(RATE)
    )
    run = learner.init(model.init(jax.random.key(0)), model.initial_state(), jax.random.key(1))
    inputs, targets = text(length)
    with mock.patch.object(import_module("norewind.estimators.uoro"), "norm", norm):
        learner.scan(run, inputs, targets)  # traced here, with the replaced norm
    return waiting(name, length, learner.scan, run, inputs, targets)


def forward(name: str, length: int, cell: str = "gru", hidden: int = 64) -> Case:
    """The case of the forward pass alone: the model and its loss, without learning.

    Args:
        name: the name of the case.
        length: the number of characters.
        cell: the cell, by name.
        hidden: the number of hidden units.
    """
    model = getattr(norewind.cells, cell)(SYMBOLS, hidden, SYMBOLS)
    params, state = model.init(jax.random.key(0)), model.initial_state()
    inputs, targets = text(length)

    def body(state, sample):
        state, output = model.transition(params, state, sample[0])
        return state, norewind.losses.cross_entropy(output, sample[1])

    compiled = jax.jit(lambda state, *stream: jax.lax.scan(body, state, stream))
    return waiting(name, length, compiled, state, inputs, targets)


def carried_bytes(method: str, **options) -> int:
    """The bytes that a method carries from step to step in place of the past.

    Args:
        method: the method, by name.
        options: further options of `learner_and_run`.
    """
    _, run = learner_and_run(method, **options)
    return sum(leaf.nbytes for leaf in jax.tree.leaves(run.carry))
