"""The online learner: an estimator and an optimizer, applied one sample (or window) at a time."""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jax.typing import ArrayLike

from norewind.core import checks
from norewind.core.combinators import StreamsLoss, one_step_of
from norewind.core.estimator import Estimate, Estimator
from norewind.core.run import Run, Update, explain_call_error, nonfinite_error, nonfinite_leaf
from norewind.core.trees import Tree, floats_norm, key_from_numbers, key_numbers, without_weak_types
from norewind.errors import Diverged
from norewind.learners.chunks import SymbolCheck, chunk_is_finite, gradients_persist, loop_of, scan_some
from norewind.learners.keyed.keyed_program import KeyedProgram
from norewind.learners.learner import Learner

# Samples in one call of the compiled loop. A call costs as much as 40 samples of a GRU-64.
CHUNK, MIN_CHUNK = 4_000, 100
# The work in one chunk: samples times numbers in the run.
WORK = CHUNK * 50_000
NOTHING_PENDING = "learn: there is no pending input. Call predict(run, x) before learn(run, target)."


def online(
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    *,
    nonfinite: Literal["stop", "skip"] = "stop",
) -> "OnlineLearner":
    """Create a learner that estimates the gradient and updates the parameters at every step (or window).

    The learner starts a run with `init`, learns from one sample with `step` and from a
    chunk with `scan`, which is much faster; `predict` and `learn` are for targets that arrive later.

    Args:
        estimator: the gradient estimator, such as `norewind.uoro(...)`.
        optimizer: any optax optimizer. Its schedules are given the number of samples processed before the update, even
            when a window makes one update out of many samples.
        nonfinite: the reaction to a loss, gradient, state or carry that is not finite. `"stop"` raises `NonFiniteError`
            with the step where it happened and the last good run. `"skip"` drops that sample (parameters, state and
            carry stay the same) and counts it in `run.skipped`. Inside your own `jit` or `vmap` nothing can be raised,
            so `"stop"` lets the numbers through: check the losses.

    Returns:
        A learner; see `OnlineLearner`.

    Raises:
        ValueError: `nonfinite` is neither `"stop"` nor `"skip"`.
        ModelError: the estimator or the optimizer is not one.

    >>> import jax, jax.numpy as jnp, norewind, optax
    >>> cell = norewind.cells.gru(inputs=3, hidden=8, outputs=3)
    >>> estimator = norewind.uoro(cell.transition, norewind.losses.cross_entropy)
    >>> learner = norewind.online(estimator, optax.adam(norewind.inverse_sqrt(1e-2, alpha=0.03)))
    >>> run = learner.init(cell.init(jax.random.key(0)), cell.initial_state(), jax.random.key(1))
    >>> text = jnp.array([0, 0, 2, 1, 1, 2] * 50)
    >>> run, losses, _ = learner.scan(run, text[:-1], text[1:])
    >>> int(run.steps), bool(losses[-50:].mean() < losses[:50].mean())
    (299, True)
    """
    if nonfinite not in ("stop", "skip"):
        raise ValueError(f'nonfinite must be "stop" or "skip", not {nonfinite!r}.')
    checks.check_estimator("online", estimator)
    if not hasattr(optimizer, "update"):
        raise checks.ModelError(f"online takes an optax optimizer, such as optax.adam(1e-3), not {optimizer!r}.")
    return OnlineLearner(Update(estimator, optax.with_extra_args_support(optimizer)), stops=nonfinite == "stop")


class OnlineLearner(Learner):
    """A learner made of an estimator and an optimizer, as returned by `online`.

    Its methods are functions from run to run, around programs that are compiled once per
    shape. It takes windows of any length, so `window` is 0.

    Args:
        update: the estimator with the optimizer.
        stops: whether a number that is not finite raises an error; otherwise its sample is skipped.
    """

    window = 0

    def __init__(self, update: Update, stops: bool):
        self.update = update
        self.stops = stops
        self.compiled_step = jax.jit(partial(update.step, nonfinite="skip"))
        self.unchecked_loop = loop_of(update, "ignore")
        self.marking_loop = loop_of(update, "mark")
        self.skipping_loop = loop_of(update, "skip")
        self.compiled_transition = jax.jit(update.transition)
        self.compiled_forward = jax.jit(partial(forward_samples, update))
        self.compiled_reset = jax.jit(update.reset)
        self.compiled_report = update.estimator.report and jax.jit(update.estimator.report)
        self.symbols = SymbolCheck(update.estimator.model)

    def init(self, params: Tree, state: Tree, key: jax.Array) -> Run:
        """Start a run.

        Args:
            params: the initial parameters.
            state: the initial state of the model, to which a reset returns.
            key: a JAX PRNG key for the estimator's noise.

        Returns:
            The run before the first step.

        Raises:
            ModelError: the parameters or the state are not trees of suitable arrays.
        """
        return init_online(self.update, params, state, key)

    def step(self, run: Run, x: Tree, target: Tree) -> tuple[Run, Estimate]:
        """Learn from one sample or window.

        Args:
            run: the run to continue.
            x: the input of the model.
            target: the target, which the loss compares with the model's output.

        Returns:
            `(run, estimate)`, with the loss, the gradient and the output in the estimate.

        Raises:
            NonFiniteError: a number was not finite, unless such samples are skipped.
            ValueError: inputs are still waiting for their targets.
        """
        check_nothing_pending(run, "step")
        try:
            self.symbols.check("step", x, target)
            new, estimate, finite = self.compiled_step(run, x, target)
        except Exception as error:
            explain_call_error("step", error, self.update, run, x, target)
            raise
        if self.stops and _is_false(finite):
            raise nonfinite_error(run, place=self._nonfinite_place(run, x, target))
        return new, estimate

    def scan(
        self,
        run: Run,
        xs: Tree,
        targets: Tree,
        resets: ArrayLike | None = None,
        *,
        latest: Tree = None,
        count: int | jax.Array | None = None,
        outputs: bool = False,
        carry_limit: float | None = None,
    ) -> tuple[Run, jax.Array, Tree]:
        """Learn from a chunk in one fast compiled loop.

        The way a stream is cut into chunks changes nothing but rounding.

        Args:
            run: the run to continue.
            xs: inputs, one entry per step along the leading axis.
            targets: targets, likewise.
            resets: a boolean per step, or per step and stream. Where it is true a new sequence begins: state and carry
                are reset before that step.
            latest: a newer input for each step, to be answered after learning, with `run.latest_state`. The outputs are
                then those of the newer inputs. Cannot be combined with `resets`.
            count: learn from the first `count` steps only, and return zeros for the rest. Every count runs the same
                compiled loop, so partly filled chunks of one length do not even change rounding.
            outputs: whether to return the outputs as well; otherwise None is returned in their place.
            carry_limit: the largest norm of the carry after the chunk that does not count as divergence. `fit` uses
                1e6, as an influence that large makes every gradient useless.

        Returns:
            `(run, losses, outputs)`.

        Raises:
            NonFiniteError: a number was not finite, unless such samples are skipped.
            Diverged: the norm of the carry exceeds `carry_limit`.
            ValueError: the arguments do not fit together, or inputs are still waiting for their targets.
        """
        check_nothing_pending(run, "scan")
        if latest is not None and (resets is not None or run.latest_state is None):
            raise ValueError("scan: with `latest`, the run must have a `latest_state`, and resets are not supported.")
        if resets is not None:
            resets = jnp.asarray(resets)
            self._check_resets("scan: an entry of `resets`", resets[0] if resets.ndim and len(resets) else False)
        more = {"resets": resets, "latest": latest}
        inputs = {"xs": xs, "targets": targets, **{name: part for name, part in more.items() if part is not None}}
        length = checks.common_length("scan", **inputs)
        checks.check_count("scan", count, length)
        if not isinstance(count, Tracer):
            self.symbols.check("scan", xs, targets, length if count is None else int(count))
        steps = xs, targets, resets, latest
        loop = self.unchecked_loop if self.stops or gradients_persist(run.opt_state) else self.marking_loop
        new, losses, made, _ = loop(run, steps, count, outputs)
        # A separate program: within the loop's, the check would change how the loop rounds.
        finite = chunk_is_finite(run, new, losses if self.stops else (losses, new.opt_state))
        if self.stops:
            if _is_false(finite):
                # Repeat the chunk, checking every step, and once more up to the first bad step.
                *_, finite = self.skipping_loop(run, steps, count, False)
                first = np.argmin(np.append(finite[:count], False))
                good = self.skipping_loop(run, steps, first, False)[0]
                x, target, when, _ = jax.tree.map(lambda leaf: leaf[min(first, length - 1)], steps)
                raise nonfinite_error(good, place=self._nonfinite_place(good, x, target, when))
        elif isinstance(finite, Tracer) or not bool(finite):
            # Repeat the chunk, checking every step. Inside a caller's own transformation it is unknown whether this is
            # needed: the first pass is then unused, and the compiler drops it.
            new, losses, made, _ = self.skipping_loop(run, steps, count, outputs)
        if carry_limit is not None and (size := floats_norm(new.carry)) > carry_limit:
            reason = f"after sample {int(new.samples)} the norm of the carry is {size:g}, above {carry_limit:g}."
            raise Diverged(reason, int(new.samples), run, "The run before this chunk is this error's `run`.")
        return new, losses, made

    def _nonfinite_place(self, run: Run, x: Tree, target: Tree, when: Any = None) -> str:
        """Repeat a step, and return the place of its first number that is not finite; "" if there is none."""
        begin = run if when is None else self.compiled_reset(run, when)
        new, estimate, _ = jax.jit(self.update.step)(begin, x, target)
        parts = {"x": x, "target": target, "loss": estimate.loss, "grad": estimate.grad}
        return nonfinite_leaf(parts | {name: getattr(new, name) for name in ("carry", "state", "params")})

    def forward(self, run: Run, xs: Tree, *, count: int | jax.Array | None = None) -> tuple[Run, Tree]:
        """Predict a chunk of inputs without learning. Only the state changes, or `run.latest_state` if there is one.

        Args:
            run: the run to predict with.
            xs: inputs, one entry per sample, even if the learner takes windows.
            count: use only the first `count` samples, and return zeros for the rest.

        Returns:
            `(run, outputs)`.

        Raises:
            ValueError: `count` is out of range, or inputs are still waiting for their targets.
        """
        check_nothing_pending(run, "forward")
        length = checks.common_length("forward", xs=xs)
        checks.check_count("forward", count, length)
        return self.compiled_forward(run, xs, length if count is None else count)

    def predict(self, run: Run, x: Tree) -> tuple[Run, Tree]:
        """Predict the output for an input now, and keep the input in the run until its target arrives.

        Args:
            run: the run to continue.
            x: the input.

        Returns:
            `(run, output)`. Pass the run to `learn` when the target is known.
        """
        checks.check_run("predict", run, Run)
        try:
            self.symbols.check("predict", x)
            state = run.latest_state if run.pending else run.state
            latest_state, output = self.compiled_transition(run.params, state, x)
        except Exception as error:
            explain_call_error("predict", error, self.update, run, x)
            raise
        return run._replace(pending=(*run.pending, x), latest_state=latest_state), output

    def learn(self, run: Run, target: Tree) -> tuple[Run, Estimate]:
        """Learn from the oldest waiting input.

        Targets may arrive k samples late, in order: the run then holds k inputs and one more state.

        Args:
            run: a run returned by `predict`.
            target: the target of its oldest waiting input.

        Returns:
            `(run, estimate)`, as `step` returns them.

        Raises:
            ValueError: no input is waiting for a target.
            NonFiniteError: a number was not finite, unless such samples are skipped.
        """
        checks.check_run("learn", run, Run)
        if not run.pending:
            raise ValueError(NOTHING_PENDING)
        x, *later = run.pending
        new, estimate = self.step(run._replace(pending=(), latest_state=None), x, target)
        if not later:
            return new, estimate
        return new._replace(pending=tuple(later), latest_state=run.latest_state), estimate

    def carry(self, run: Run) -> Tree:
        """Return the estimator's carry."""
        return run.carry

    def report(self, run: Run) -> dict[str, float]:
        """Return the numbers that the estimator reports."""
        reported = self.compiled_report(run.carry) if self.compiled_report else {}
        return {name: float(value) for name, value in reported.items()}

    def chunk_size(self, run: Run) -> int:
        """Return the chunk size: smaller for a large model, so that it stops as quickly as a small one."""
        numbers = sum(leaf.size for leaf in jax.tree.leaves(run))
        return min(CHUNK, max(MIN_CHUNK, WORK // numbers))

    def for_keys(self, run: Run, *, share: bool = False) -> KeyedProgram:
        from norewind.learners.keyed.networks import KeyedNetworks

        return KeyedNetworks(self, run, share)

    def reset(self, run: Run, when: bool | np.ndarray | jax.Array = True) -> Run:
        """Begin a new sequence.

        The state returns to the initial one and the carry forgets the past. The parameters
        stay the same, and the noise continues.

        Args:
            run: the run to reset.
            when: a boolean, or one per stream: where it is true, a new sequence begins.

        Returns:
            The run after the reset.

        Raises:
            ModelError: `when` is not boolean, or does not have one entry per stream.
        """
        check_nothing_pending(run, "reset")
        mask = when if isinstance(when, jax.Array | np.ndarray) else np.asarray(when)
        if mask.dtype != bool:
            raise checks.ModelError(
                "reset: `when` must be True, False or a boolean per stream. The state returns to the one given to init."
            )
        self._check_resets("reset: `when`", mask)
        return self.compiled_reset(run, mask)

    def _check_resets(self, name: str, resets: Any) -> None:
        """Check that one reset (or one for every stream, if there are several) is given, not one for every unit."""
        if np.ndim(resets) and not isinstance(self.update.estimator.model.loss, StreamsLoss):
            raise checks.ModelError(
                f"{name} has shape {np.shape(resets)}, but this learner has one stream, which a single boolean resets. "
                "Use parallel(estimator, streams) for several."
            )


def init_online(update: Update, params: Tree, state: Tree, key: jax.Array) -> Run:
    """Create the run before the first step.

    Args:
        update: the estimator with the optimizer.
        params: the initial parameters.
        state: the initial state.
        key: a JAX PRNG key for the estimator's noise.
    """
    checks.check_params_and_state(params, state)
    params, state = without_weak_types(params), without_weak_types(state)
    # Every leaf is a separate array, so that a caller's jit may take over ("donate") the whole run.
    steps, samples, skipped = (jax.device_put(np.zeros((), np.int32)) for _ in range(3))
    first = jax.tree.map(lambda leaf: key_from_numbers(jnp.copy(key_numbers(leaf)), leaf), state)
    return Run(
        params=params,
        state=state,
        carry=without_weak_types(update.estimator.init(params, state, key)),
        opt_state=without_weak_types(update.optimizer.init(params)),
        steps=steps,
        samples=samples,
        skipped=skipped,
        initial_state=first,
    )


def forward_samples(update: Update, run: Run, xs: Tree, count: jax.Array) -> tuple[Run, Tree]:
    """Predict the first `count` inputs without learning; see `OnlineLearner.forward`. Nothing here is compiled."""
    state = run.state if run.latest_state is None else run.latest_state
    transition = one_step_of(update.estimator.model.transition)
    state, outputs = scan_some(lambda state, x: transition(run.params, state, x), state, xs, count)
    return run._replace(state=state) if run.latest_state is None else run._replace(latest_state=state), outputs


def check_nothing_pending(run: Any, caller: str, kind: type = Run) -> None:
    """Check that a value is a run, and that none of its inputs are waiting for their targets.

    Args:
        run: the value.
        caller: the name of the function that was called, for the message.
        kind: the kind of run that is expected.

    Raises:
        ModelError: it is something else.
        ValueError: inputs are waiting.
    """
    checks.check_run(caller, run, kind)
    if run.pending:
        single = len(run.pending) == 1
        inputs = "1 input is" if single else f"{len(run.pending)} inputs are"
        targets = "its target" if single else "their targets"
        raise ValueError(
            f"{caller}: {inputs} still waiting for {targets}. Call learn(run, target) for each of them first."
        )


def _is_false(flag: jax.Array) -> bool:
    """Whether a flag is known and false; inside a caller's own transformation it is not known."""
    return not isinstance(flag, Tracer) and not bool(flag)
