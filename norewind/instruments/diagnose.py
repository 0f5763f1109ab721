"""The instrument: how far each estimator is from the exact gradient, along a real trajectory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from norewind import checks
from norewind.checks import ModelError
from norewind.estimator import Estimator, Loss, Transition
from norewind.estimators import rtrl, sliding_bptt
from norewind.instruments.diagnosis import Diagnosis, Finding, Moments, mean_finding
from norewind.names import Method, parse_method
from norewind.structure import reaches_state
from norewind.trees import Tree, is_key, real_leaves

# RTRL is the reference up to this many numbers in its influence matrix, e.g. a state of 64 with 6·10⁴ parameters.
AFFORDABLE = 4_000_000

# The steps that the reference looks back where RTRL is not affordable.
LONG = 200

# What is diagnosed: (transition, loss, params, state).
Subject = tuple[Transition, Loss, Tree, Tree]


def diagnose(
    methods: Sequence[str | Method] | Mapping[str, Callable[[Transition, Loss], Estimator]],
    model: Subject | Callable[[int, int], Subject],
    stream: tuple[Tree, Tree],
    *,
    hidden: Sequence[int] = (),
    repeats: int = 1,
    keys: int = 100,
    seed: int = 0,
    optimizer: optax.GradientTransformation | None = None,
    readout: bool = False,
    report: Callable[[int, int, str], None] = lambda done, total, words: None,
) -> Diagnosis:
    """Measure every method's bias, variance and cosine to the exact gradient, along a stream.

    `methods` are names (`"uoro"`, `"bptt:16"`, see `norewind.names`), or a dict of
    functions `(transition, loss) -> Estimator` for your own. `model` is (transition,
    loss, params, state), or a function of a size and a number that returns one; it is
    called for every size in `hidden` with the numbers below `repeats` (use them as seeds
    of the weights), and the findings are means over these models. `stream` is
    (xs, targets), one entry per step along the leading axis.

    All methods follow the same trajectory, each with `keys` independent seeds of its
    noise, derived from `seed`. At every step they are compared with the exact gradient of
    that step's loss (for a window, of the sum of its losses): RTRL's, or that of sliding
    BPTT over the last 200 steps where the model is too large for RTRL. Without an
    `optimizer` the parameters are frozen; with one they move by the exact gradient, and
    the reference is as stale as RTRL is.

    Only the parameters that reach the state are compared, unless `readout` is set: the
    gradient of the others is exact under every method. Everything is relative to the
    squared norm of the exact gradient, summed over the steps (of the whole stream, or of
    one of 20 spans of time):

    - bias²: ‖E[g̃] − g‖², estimated without bias, so that it scatters around zero (also
      below it) for an unbiased method;
    - variance: E‖g̃ − E[g̃]‖²;
    - cosine: between single estimates and the exact gradient, averaged.

    Standard errors are over keys (jackknife), or over models where there are several. A
    method without noise runs once. One that perturbs the state (`diffusion`) follows its
    own noisy states, and is compared with the gradient of the model without noise. `dni`
    looks ahead where the exact gradient looks back: step by step the two differ even for
    a perfect predictor, only their sums over a sequence agree.

    `report(done, total, words)` is called before each method on each model.

    >>> import jax, numpy as np, norewind
    >>> cell = norewind.cells.elman(inputs=3, hidden=4, outputs=3)
    >>> model = (cell.transition, norewind.losses.cross_entropy, cell.init(jax.random.key(0)), cell.initial_state())
    >>> text = np.tile([0, 0, 2, 1, 1, 2], 5)
    >>> report = norewind.diagnose(["uoro", "bptt:2"], model, (text[:-1], text[1:]), keys=10)
    >>> [(finding.method, finding.variance.value > 0) for finding in report.findings]
    [('uoro', True), ('bptt:2', False)]
    """
    checks.at_least_one("diagnose: keys", keys)
    checks.at_least_one("diagnose: repeats", repeats)
    if callable(model):
        if not hidden:
            raise ValueError("diagnose: the model is a function of its size: give the sizes, e.g. hidden=(8, 16, 32).")
        for size in hidden:
            checks.at_least_one("diagnose: hidden", size)
        subjects = [(size, [model(size, number) for number in range(repeats)]) for size in hidden]
    else:
        subjects = [(None, [model])]
    if isinstance(methods, Mapping):
        chosen = [Method(name, 1, lambda t, l, x, make=make: make(t, l)) for name, make in methods.items()]  # noqa: E741
    else:
        chosen = [parse_method(method) if isinstance(method, str) else method for method in methods]
    block = lcm(*(method.window for method in chosen))
    samples = checks.common_length("diagnose", xs=stream[0], targets=stream[1]) // block * block
    if samples == 0:
        raise ValueError(f"diagnose: the stream is shorter than one block of {block} samples, which all windows share.")
    data = jax.tree.map(lambda leaf: np.asarray(leaf)[:samples], stream)
    question = Question(data, samples, block, keys, seed, optimizer, readout)
    total = sum(len(alike) for _, alike in subjects) * len(chosen)
    findings, references, done = [], [], 0
    for size, alike in subjects:
        compiled: Compiled = {}
        found: list[Finding] = []
        for number, subject in enumerate(alike):
            where = "" if size is None else f", hidden {size}, model {number + 1} of {len(alike)}"
            report(done, total, f"exact gradient{where}")
            exact = _exact(question, subject, compiled)
            references.append(exact.name)
            for method in chosen:
                report(done, total, f"{method.name}{where}")
                moments = _measured(question, subject, exact, method, compiled)
                found.append(Finding.of(method.name, size, moments, method.window))
                done += 1
        findings += [mean_finding(found[number :: len(chosen)]) for number in range(len(chosen))]
    return Diagnosis(findings, reference=", ".join(dict.fromkeys(references)), moving=optimizer is not None)


# Models of one size that share their transition also share what is compiled for them.
Compiled = dict[tuple, Callable]


@dataclass(frozen=True)
class Question:
    """What is asked of every model. A block holds whole windows of all methods; parameters move between blocks."""

    data: tuple[Tree, Tree]
    samples: int
    block: int
    keys: int
    seed: int
    optimizer: optax.GradientTransformation | None
    readout: bool

    @property
    def x(self) -> Tree:
        return jax.tree.map(lambda leaf: leaf[0], self.data[0])

    def windows(self, length: int) -> Tree:
        return jax.tree.map(lambda leaf: leaf.reshape(-1, length, *leaf.shape[1:]), self.data)


class Exact(NamedTuple):
    """The gradient to compare with at every step, and the parameters of every block, flat."""

    grads: np.ndarray
    trajectory: jax.Array
    chosen: np.ndarray
    name: str


def _exact(question: Question, subject: Subject, compiled: Compiled) -> Exact:
    transition, loss, params, state = subject
    size = ravel_pytree(params)[0].size
    reach = reaches_state(transition, params, state, question.x)
    compared = jax.tree.map(lambda reach, leaf: np.full(np.size(leaf), reach or question.readout), reach, params)
    chosen = np.flatnonzero(np.concatenate(jax.tree.leaves(compared)))
    if chosen.size == 0:
        raise ModelError("diagnose: no parameter of this model reaches its state. Set readout=True to compare others.")
    entries = sum(leaf.size for leaf in jax.tree.leaves(real_leaves(state)))
    affordable = entries * size <= AFFORDABLE
    place = None, transition, loss
    if place not in compiled:
        long = sliding_bptt(transition, loss, length=LONG, x=question.x)
        compiled[place] = _follower(rtrl(transition, loss) if affordable else long, question.optimizer)
    grads, trajectory = compiled[place](params, state, question.windows(question.block))
    grads = np.asarray(grads).reshape(question.samples, size)[:, chosen]
    if not grads.any():
        raise ModelError(
            "diagnose: the exact gradient of this model is zero at every step, so there is nothing to compare with: "
            "the parameters that reach the state do not reach the loss (as behind a readout of zeros). Start from "
            "other parameters, let them move (optimizer=, or --moving), or compare the readout as well (readout=True, "
            "or --readout)."
        )
    return Exact(grads, trajectory, chosen, "RTRL" if affordable else f"BPTT over {LONG} steps")


def _measured(question: Question, subject: Subject, exact: Exact, method: Method, compiled: Compiled) -> Moments:
    """The moments of a method's errors, window by window."""
    transition, loss, params, state = subject
    place = method.name, transition, loss
    if place not in compiled:
        estimator = method.make(transition, loss, question.x)
        compiled[place] = _measurer(estimator, ravel_pytree(params)[1], exact.chosen, question.keys)
    data = question.windows(method.window) if method.window > 1 else question.data
    wanted = exact.grads.reshape(-1, method.window, exact.chosen.size).sum(axis=1)
    # The parameters of the block that each window lies in.
    at = np.arange(question.samples // method.window) * method.window // question.block
    results = compiled[place](jax.random.key(question.seed), exact.trajectory, state, (data, wanted, at))
    return Moments(*(np.asarray(result, np.float64) for result in results))


def _follower(reference: Estimator, optimizer: optax.GradientTransformation | None):
    """A function that gives the exact gradient of every step, and the parameters of every block, both flat."""

    def one_block(loop, data):
        params, optimizer_state, state, carry = loop

        def one_step(inner, sample):
            state, carry, estimate = reference.step(params, *inner, *sample)
            return (state, carry), ravel_pytree(estimate.grad)[0]

        (state, carry), grads = jax.lax.scan(one_step, (state, carry), data)
        new = params
        if optimizer is not None:
            total = ravel_pytree(params)[1](jnp.sum(grads, axis=0))
            updates, optimizer_state = optimizer.update(total, optimizer_state, params)
            new = optax.apply_updates(params, updates)
        return (new, optimizer_state, state, carry), (grads, ravel_pytree(params)[0])

    @jax.jit
    def follow(params, state, blocks):
        carry = reference.init(params, state, jax.random.key(0))
        start = params, optimizer.init(params) if optimizer is not None else (), state, carry
        return jax.lax.scan(one_block, start, blocks)[1]

    return follow


def _measurer(estimator: Estimator, unravel, chosen: np.ndarray, keys: int):
    """A function that runs an estimator along a trajectory under many keys, and gives the moments of each step."""

    @jax.jit
    def measure(key, trajectory, state, steps):
        def start(key):
            return state, estimator.init(unravel(trajectory[0]), state, key)

        # One run is enough for a method without noise.
        has_noise = any(is_key(leaf) for leaf in jax.tree.leaves(jax.eval_shape(start, key)[1]))
        runs = keys if has_noise else 1

        def one_step(loop, inputs):
            (x, target), wanted, place = inputs
            params = unravel(trajectory[place])

            def one_run(state, carry):
                state, carry, estimate = estimator.step(params, state, carry, x, target)
                return (state, carry), ravel_pytree(estimate.grad)[0][chosen]

            loop, grads = jax.vmap(one_run, axis_size=runs)(*loop)
            errors = grads - wanted
            size, own = jnp.linalg.norm(wanted), jnp.linalg.norm(grads, axis=1)
            cosine = grads @ wanted / jnp.maximum(size * own, jnp.finfo(grads.dtype).tiny)
            return loop, (jnp.sum(errors**2, axis=1), errors @ jnp.sum(errors, axis=0), cosine, size**2)

        begin = jax.vmap(start)(jax.random.split(key, runs))
        return jax.lax.scan(one_step, begin, steps)[1]

    return measure
