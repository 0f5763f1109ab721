"""The instrument: how far each estimator is from the exact gradient, along a real trajectory."""

from collections.abc import Callable, Mapping, Sequence
from math import lcm

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from norewind import checks
from norewind.checks import ModelError
from norewind.diagnosis.findings import Diagnosis, Finding, Moments, mean_finding
from norewind.estimator import Estimator, Loss, Transition
from norewind.estimators import rtrl, sliding_bptt
from norewind.names import Method, parse_method
from norewind.structure import reaches_state
from norewind.trees import Tree, is_key, real_leaves

AFFORDABLE = 4_000_000
"""RTRL is the reference up to so many numbers in its influence matrix: a state of 64 with 6·10⁴ parameters, say."""

LONG = 200
"""The steps that the reference looks back where RTRL is not affordable."""

Subject = tuple[Transition, Loss, Tree, Tree]
"""What is diagnosed: (transition, loss, params, state)."""


def diagnose(
    estimators: Sequence[str | Method] | Mapping[str, Callable[[Transition, Loss], Estimator]],
    model: Subject | Callable[[int, int], Subject],
    stream: tuple[Tree, Tree],
    *,
    sizes: Sequence[int] = (),
    repeats: int = 1,
    keys: int = 100,
    seed: int = 0,
    optimizer: optax.GradientTransformation | None = None,
    readout: bool = False,
    bins: int = 20,
) -> Diagnosis:
    """Measure every estimator's bias, variance and cosine to the exact gradient, along a stream.

    `estimators` are methods by name (`"uoro"`, `"bptt:16"`, see `norewind.names`), or a
    dict of functions `(transition, loss) -> Estimator` for your own. `model` is
    (transition, loss, params, state), or a function from a size and a number to that,
    with `sizes` to measure against; it is called with the numbers below `repeats` (seeds
    of the weights, say), and the findings are means over these models. `stream` is
    (xs, targets), one entry per step along the leading axis.

    All estimators follow the same trajectory, each with `keys` independent seeds of its
    noise, and at every step are compared with the exact gradient of that step's loss
    (for a window, of the sum of its losses): RTRL's, or that of sliding BPTT over the
    last 200 steps where the model is too large for RTRL. With an `optimizer` the
    parameters move along the way, by the exact gradient; then the reference is as stale
    as RTRL is. Without, they are frozen.

    Only the parameters that reach the state are compared, unless `readout` is set: the
    gradient of the others needs no past, is exact under every method, and would make all
    of them look alike. Everything is relative to the squared norm of the exact gradient, summed over the
    steps (of the whole stream, or of one of `bins` spans of time):

    - bias²: ‖E[g̃] − g‖², estimated without bias of its own, so that it scatters around
      zero (also below it) for an unbiased method;
    - variance: E‖g̃ − E[g̃]‖²;
    - cosine: between single estimates and the exact gradient, averaged.

    Standard errors are over keys (jackknife), or over models where there are several. A
    method without noise runs once. One that perturbs the state (`diffusion`) follows its
    own noisy states, and is compared with the gradient of the model without noise. `dni`
    looks ahead where the exact gradient looks back: step by step the two differ even for
    a perfect predictor, only their sums over a sequence agree.

    >>> import jax, numpy as np, norewind
    >>> cell = norewind.cells.elman(inputs=3, hidden=4, outputs=3)
    >>> model = (cell.transition, norewind.losses.cross_entropy, cell.init(jax.random.key(0)), cell.initial_state())
    >>> text = np.tile([0, 0, 2, 1, 1, 2], 5)
    >>> report = norewind.diagnose(["uoro", "bptt:2"], model, (text[:-1], text[1:]), keys=10)
    >>> [(finding.method, finding.variance.value > 0) for finding in report.findings]
    [('uoro', True), ('bptt:2', False)]
    """
    methods = _methods(estimators)
    checks.at_least_one("diagnose: keys", keys)
    checks.at_least_one("diagnose: repeats", repeats)
    if callable(model):
        if not sizes:
            raise ValueError(
                "diagnose: the model is a function of its size, so give the sizes, e.g. sizes=(8, 16, 32)."
            )
        for size in sizes:
            checks.at_least_one("diagnose: a size", size)
        subjects = [(size, [model(size, number) for number in range(repeats)]) for size in sizes]
    else:
        subjects = [(None, [model])]
    findings, references = [], []
    for size, alike in subjects:
        settings = size, keys, seed, optimizer, readout, bins
        compiled: dict = {}
        found = []
        for subject in alike:
            results, reference = _diagnose_one(methods, subject, stream, settings, compiled)
            found.append(results)
            references.append(reference)
        findings += [mean_finding(list(of_one_method)) for of_one_method in zip(*found, strict=True)]
    return Diagnosis(findings, reference=", ".join(dict.fromkeys(references)), moving=optimizer is not None)


def _methods(estimators) -> list[Method]:
    if isinstance(estimators, Mapping):
        return [Method(name, 1, lambda t, l, x, make=make: make(t, l)) for name, make in estimators.items()]  # noqa: E741
    return [parse_method(method) if isinstance(method, str) else method for method in estimators]


def _diagnose_one(methods, subject, stream, settings, compiled) -> tuple[list[Finding], str]:
    transition, loss, params, state = subject
    size, keys, seed, optimizer, readout, bins = settings
    block = lcm(*(method.window for method in methods))
    steps = checks.common_length("diagnose", xs=stream[0], targets=stream[1]) // block * block
    if steps == 0:
        raise ValueError(f"diagnose: the stream is shorter than one block of {block} steps, which all windows share.")
    xs, targets = jax.tree.map(lambda leaf: np.asarray(leaf)[:steps], stream)
    x = jax.tree.map(lambda leaf: leaf[0], xs)
    flat, unravel = ravel_pytree(params)
    chosen = np.arange(flat.size) if readout else _reaching(transition, params, state, x)
    entries = sum(leaf.size for leaf in jax.tree.leaves(real_leaves(state)))
    affordable = entries * flat.size <= AFFORDABLE

    def compile_once(name, make):
        """Models of one size that share their transition also share what is compiled for them."""
        place = name, transition, loss
        if place not in compiled:
            compiled[place] = make()
        return compiled[place]

    def make_follower():
        reference = rtrl(transition, loss) if affordable else sliding_bptt(transition, loss, length=LONG, x=x)
        return _follower(reference, optimizer)

    blocks = _blocks((xs, targets), block)
    exact, trajectory = compile_once(None, make_follower)(params, state, blocks)
    exact = np.asarray(exact).reshape(steps, flat.size)[:, chosen]

    findings = []
    for method in methods:
        measure = compile_once(
            method.name, lambda m=method: _measurer(m.make(transition, loss, x), unravel, chosen, keys)
        )
        data = _blocks((xs, targets), method.window) if method.window > 1 else (xs, targets)
        wanted = exact.reshape(-1, method.window, chosen.size).sum(axis=1)
        # The parameters of the block that each window lies in: they move only between blocks.
        at = np.arange(steps // method.window) * method.window // block
        results = measure(jax.random.key(seed), trajectory, state, (data, wanted, at))
        moments = Moments(*(np.asarray(result, np.float64) for result in results))
        findings.append(Finding.of(method.name, size, moments, method.window, bins))
    return findings, "RTRL" if affordable else f"BPTT over {LONG} steps"


def _reaching(transition, params, state, x) -> np.ndarray:
    """The places, in the flat parameters, of those that reach the state."""
    reach = reaches_state(transition, params, state, x)
    mask = jax.tree.map(lambda reach, leaf: np.full(np.shape(leaf), reach), reach, params)
    places = np.flatnonzero(np.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(mask)]))
    if places.size == 0:
        raise ModelError("diagnose: no parameter of this model reaches its state. Set readout=True to compare others.")
    return places


def _blocks(data: Tree, length: int) -> Tree:
    return jax.tree.map(lambda leaf: leaf.reshape(-1, length, *leaf.shape[1:]), data)


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
