"""Measuring how far each estimator is from the exact gradient, along the trajectory of a stream."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import lcm
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from norewind.analysis.findings import Diagnosis, Finding, Moments, mean_finding
from norewind.analysis.own_models import Methods, Subject, methods_of
from norewind.core import checks
from norewind.core.checks import ModelError
from norewind.core.estimator import Estimator
from norewind.core.optimizers import adam
from norewind.core.structure import reaches_state
from norewind.core.trees import Tree, is_prng_key, named_leaves, real_leaves
from norewind.estimators import rtrl, sliding_bptt
from norewind.training.registry import Method

# RTRL is the reference up to this many numbers in its influence matrix, e.g. a state of 64 with 6·10⁴ parameters.
MAX_INFLUENCE_SIZE = 4_000_000

# The number of steps that the reference looks back where RTRL is not affordable.
REFERENCE_STEPS = 200

Optimizer = optax.GradientTransformation


def diagnose(
    methods: Methods,
    model: Subject | Callable[[int, int], Subject],
    stream: tuple[Tree, Tree],
    *,
    hidden: Sequence[int] = (),
    repeats: int = 1,
    keys: int = 100,
    seed: int = 0,
    optimizer: Optimizer | Callable[[float], Optimizer] | None = None,
    rates: Sequence[float] | None = None,
    readout: bool = False,
    report: Callable[[int, int, str], None] = lambda done, total, task: None,
) -> Diagnosis:
    """Measure every method's bias, variance and cosine to the exact gradient, along a stream.

    All methods follow the same trajectory. At every step they are compared with the exact gradient of that step's loss
    (for a window, of the sum of its losses): RTRL's, or that of sliding BPTT over the last 200 steps where the model is
    too large for RTRL. Bias² and variance are relative to the squared norm of the exact gradient. They are summed over
    the steps of the whole stream, or of one of 20 spans of time:

    - bias²: ‖E[g̃] − g‖². The estimate is itself unbiased, so for an unbiased method it scatters around zero and can be
      negative;
    - variance: E‖g̃ − E[g̃]‖²;
    - cosine: between single estimates and the exact gradient, averaged.

    Standard errors are over keys (jackknife), or over models if there are several. A method without noise runs once. A
    method that perturbs the state (`diffusion`) follows its own noisy states, and is compared with the gradient of the
    model without noise. `dni` looks ahead where the exact gradient looks back: the two differ at each step even for a
    perfect predictor, and only their sums over a sequence agree.

    Args:
        methods: names (`"uoro"`, `"bptt:16"`, see `norewind.registry`), or a dict of functions `(transition, loss) ->
            Estimator` for your own.
        model: (transition, loss, params, state), or a function of a size and a number that returns them. It is called
            for every size in `hidden` with the numbers from 0 to `repeats` − 1 (use them as seeds of the weights), and
            the findings are means over these models.
        stream: (xs, targets), with one entry per step along the leading axis.
        hidden: the sizes to measure, if the model is a function.
        repeats: the number of models of each size.
        keys: the number of independent seeds of each method's noise.
        seed: the seed from which these are derived.
        optimizer: updates the parameters by the exact gradient; the reference is then as stale as RTRL is. By default
            the parameters are frozen. With `rates`, a function that makes an optimizer for a learning rate, by default
            `norewind.adam`.
        rates: the learning rates at which to update the parameters. Every method is measured at each of them, along
            the trajectory of that rate.
        readout: also compare parameters that do not influence the state. Their gradient is exact under every method.
        report: called as `report(done, total, task)` before each method on each model.

    Returns:
        The findings, which can be printed, drawn and saved.

    Raises:
        ModelError: there is nothing to compare: no parameter influences the state, the exact gradient is zero, or all
            methods reject the model. (If only some do, the table says why.)
        ValueError: the sizes are missing, the stream is too short, or `rates` are given with an optimizer that has a
            rate already.

    >>> import jax, numpy as np, norewind
    >>> cell = norewind.cells.elman(inputs=3, hidden=4, outputs=3)
    >>> model = (cell.transition, norewind.losses.cross_entropy, cell.init(jax.random.key(0)), cell.initial_state())
    >>> text = np.tile([0, 0, 2, 1, 1, 2], 5)
    >>> report = norewind.diagnose(["uoro", "bptt:2"], model, (text[:-1], text[1:]), keys=10)
    >>> [(finding.method, finding.variance.value > 0) for finding in report.findings]
    [('uoro', True), ('bptt:2', False)]
    """
    checks.check_at_least_one("diagnose: keys", keys)
    checks.check_at_least_one("diagnose: repeats", repeats)
    if rates is not None or callable(optimizer):
        options: Any = {"hidden": hidden, "repeats": repeats, "keys": keys, "seed": seed, "readout": readout}
        return _at_rates(methods, model, stream, rates or (), optimizer, report, options)
    if callable(model) and not hidden:
        raise ValueError("diagnose: the model is a function of its size. Pass the sizes, e.g. hidden=(8, 16, 32).")
    for size in hidden:
        checks.check_at_least_one("diagnose: hidden", size)
    make: Callable[[Any, int], Subject] = model if callable(model) else lambda size, number: model
    sizes = hidden if callable(model) else (None,)
    numbers = range(repeats if callable(model) else 1)
    chosen = methods_of(methods)
    measurements = _Measurements(stream, lcm(*(method.window for method in chosen)), keys, seed, optimizer, readout)
    total = len(sizes) * len(numbers) * len(chosen)
    findings, references = [], []
    rejected: dict[str, str] = {}
    done = 0
    for size in sizes:
        by_model: list[Finding] = []
        # Models of one size that share their transition also share their compiled functions.
        measurements.compiled.clear()
        for number in numbers:
            label = "" if size is None else f", hidden {size}, model {number + 1} of {repeats}"
            report(done, total, f"exact gradient{label}")
            subject = make(size, number)
            exact = measurements.exact(subject)
            references.append(exact.name)
            for method in chosen:
                report(done, total, f"{method.name}{label}")
                done += 1
                if method.name in rejected:
                    continue
                try:
                    moments, reported = measurements.moments(subject, exact, method)
                except ModelError as error:
                    rejected[method.name] = str(error)
                else:
                    by_model.append(Finding.of(method, size, moments, exact.leaves, reported))
        of_methods = [[one for one in by_model if one.method == method.name] for method in chosen]
        findings += [mean_finding(group) for group in of_methods if group]
    moving = optimizer is not None
    if not findings:
        raise ModelError("diagnose: all methods reject this model. " + " ".join(rejected.values()))
    return Diagnosis(findings, reference=", ".join(dict.fromkeys(references)), moving=moving, rejected=rejected)


def _at_rates(
    methods: Methods, model: Any, stream: Any, rates: Sequence[float], optimizer: Any, report: Callable, options: Any
) -> Diagnosis:
    """Diagnose at every learning rate; see `diagnose`."""
    make: Callable[[float], Optimizer] = adam if optimizer is None else optimizer
    if not callable(make) or not rates:
        raise ValueError(
            "diagnose: rates need a function from a rate to an optimizer, and the other way round: "
            "optimizer=norewind.adam, rates=(1e-2, 1e-3)."
        )
    reports = []
    for number, rate in enumerate(rates):

        def tell(done: int, total: int, task: str, number: int = number, rate: float = rate) -> None:
            report(number * total + done, len(rates) * total, f"{task}, rate {rate:g}")

        reports.append(diagnose(methods, model, stream, **options, optimizer=make(rate), report=tell))
    findings = [replace(one, rate=rate) for rate, of in zip(rates, reports, strict=True) for one in of.findings]
    return replace(reports[0], findings=findings)


class Exact(NamedTuple):
    """The reference of a model.

    Attributes:
        grads: the exact gradient at every step, flat.
        trajectory: the parameters of every block, flat.
        chosen: the positions of the parameters that are compared.
        leaves: the names of the leaves of the parameters.
        leaf_of: the number of the leaf of every parameter that is compared.
        name: the method that computed the gradient.
    """

    grads: np.ndarray
    trajectory: jax.Array
    chosen: np.ndarray
    leaves: list[str]
    leaf_of: np.ndarray
    name: str


class _Measurements:
    """Measures methods on one stream. A block holds whole windows of all methods; parameters change between blocks."""

    def __init__(
        self, stream: tuple[Tree, Tree], block: int, keys: int, seed: int, optimizer: Optimizer | None, readout: bool
    ):
        self.samples = checks.common_length("diagnose", xs=stream[0], targets=stream[1]) // block * block
        if self.samples == 0:
            raise ValueError(
                f"diagnose: the stream is shorter than one block of {block} samples, a multiple of all windows."
            )
        self.data = jax.tree.map(lambda leaf: np.asarray(leaf)[: self.samples], stream)
        self.x = jax.tree.map(lambda leaf: leaf[0], self.data[0])
        self.block = block
        self.keys = keys
        self.seed = seed
        self.optimizer = optimizer
        self.readout = readout
        self.compiled: dict[tuple, Callable] = {}

    def windows(self, length: int) -> Tree:
        return jax.tree.map(lambda leaf: leaf.reshape(-1, length, *leaf.shape[1:]), self.data)

    def exact(self, subject: Subject) -> Exact:
        """Compute the exact gradient at every step, by RTRL or, for a large model, by long BPTT.

        Args:
            subject: the model.

        Raises:
            ModelError: there is nothing to compare.
        """
        transition, loss, params, state = subject
        size = ravel_pytree(params)[0].size
        reach = reaches_state(transition, params, state, self.x)
        compared = jax.tree.map(lambda reach, leaf: np.full(np.size(leaf), reach or self.readout), reach, params)
        chosen = np.flatnonzero(np.concatenate(jax.tree.leaves(compared)))
        if chosen.size == 0:
            raise ModelError(
                "diagnose: no parameter of this model influences its state. Set readout=True to compare the others."
            )
        affordable = size * sum(leaf.size for leaf in jax.tree.leaves(real_leaves(state))) <= MAX_INFLUENCE_SIZE
        key = None, transition, loss
        if key not in self.compiled:
            long = sliding_bptt(transition, loss, length=REFERENCE_STEPS, x=self.x)
            self.compiled[key] = _follower(rtrl(transition, loss) if affordable else long, self.optimizer)
        grads, trajectory = self.compiled[key](params, state, self.windows(self.block))
        grads = np.asarray(grads).reshape(self.samples, size)[:, chosen]
        if not grads.any():
            raise ModelError(
                "diagnose: the exact gradient of this model is zero at every step, so there is nothing to compare "
                "with: the parameters that reach the state do not reach the loss (as behind a readout of zeros). Start "
                "from other parameters, train them along the stream, or compare the readout as well (readout=True)."
            )
        names = [place for place, _ in named_leaves("", params)]
        leaf_of = np.repeat(np.arange(len(names)), [np.size(leaf) for leaf in jax.tree.leaves(params)])[chosen]
        name = "RTRL" if affordable else f"BPTT over {REFERENCE_STEPS} steps"
        return Exact(grads, trajectory, chosen, names, leaf_of, name)

    def moments(self, subject: Subject, exact: Exact, method: Method) -> tuple[Moments, dict[str, np.ndarray]]:
        """Measure the moments of a method's errors, and the numbers that it reports, window by window.

        Args:
            subject: the model.
            exact: its exact gradients.
            method: the method.
        """
        transition, loss, params, state = subject
        key = method.name, transition, loss
        if key not in self.compiled:
            estimator = method.make(transition, loss, self.x)
            self.compiled[key] = _measurer(estimator, ravel_pytree(params)[1], exact, self.keys)
        data = self.windows(method.window) if method.window > 1 else self.data
        grads = exact.grads.reshape(-1, method.window, exact.chosen.size).sum(axis=1)
        # The block that each window lies in, which determines its parameters.
        blocks = np.arange(self.samples // method.window) * method.window // self.block
        results = self.compiled[key](jax.random.key(self.seed), exact.trajectory, state, (data, grads, blocks))
        moments, reported = jax.tree.map(lambda result: np.asarray(result, np.float64), results)
        return Moments(*moments), reported


def _follower(reference: Estimator, optimizer: Optimizer | None):
    """A function that returns the exact gradient of every step and the parameters of every block, both flat."""

    def one_block(loop, data):
        params, opt_state, state, carry = loop

        def one_step(inner, sample):
            state, carry, estimate = reference.step(params, *inner, *sample)
            return (state, carry), ravel_pytree(estimate.grad)[0]

        (state, carry), grads = jax.lax.scan(one_step, (state, carry), data)
        new = params
        if optimizer is not None:
            total = ravel_pytree(params)[1](jnp.sum(grads, axis=0))
            updates, opt_state = optimizer.update(total, opt_state, params)
            new = optax.apply_updates(params, updates)
        return (new, opt_state, state, carry), (grads, ravel_pytree(params)[0])

    @jax.jit
    def follow(params, state, blocks):
        carry = reference.init(params, state, jax.random.key(0))
        start = params, optimizer.init(params) if optimizer is not None else (), state, carry
        return jax.lax.scan(one_block, start, blocks)[1]

    return follow


def _measurer(estimator: Estimator, unravel, reference: Exact, keys: int):
    """A function that runs an estimator along a trajectory with many keys, and returns the moments of each step."""
    leaf_sums = np.eye(len(reference.leaves))[reference.leaf_of]

    @jax.jit
    def measure(key, trajectory, state, steps):
        def start(key):
            return state, estimator.init(unravel(trajectory[0]), state, key)

        # One run is enough for a method without noise.
        has_noise = any(is_prng_key(leaf) for leaf in jax.tree.leaves(jax.eval_shape(start, key)[1]))
        runs = keys if has_noise else 1

        def one_step(loop, inputs):
            (x, target), exact, block = inputs
            params = unravel(trajectory[block])

            def one_run(state, carry):
                state, carry, estimate = estimator.step(params, state, carry, x, target)
                return (state, carry), ravel_pytree(estimate.grad)[0][reference.chosen]

            loop, grads = jax.vmap(one_run, axis_size=runs)(*loop)
            errors = grads - exact
            products = errors**2, errors * jnp.sum(errors, axis=0), grads * exact, grads**2, exact**2
            reported = jax.vmap(estimator.report)(loop[1]) if estimator.report else {}
            return loop, ([product @ leaf_sums for product in products], reported)

        begin = jax.vmap(start)(jax.random.split(key, runs))
        return jax.lax.scan(one_step, begin, steps)[1]

    return measure
